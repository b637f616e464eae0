"""Log-probabilities of emitted tokens: raw and processed, alternatives in order."""

import math

import pytest
import torch

from slipstream.sampling import laws, token_logprobs
from slipstream.types import Draft, Laws, SamplingParams, Sequence


def test_raw_is_the_log_softmax_of_the_models_own_logits() -> None:
    logits = torch.randn(4, 30)
    tokens = [3, 0, 29, 3]
    want = logits.double().log_softmax(-1)
    for row, token, (own, top) in zip(want, tokens, token_logprobs(logits, torch.tensor(tokens), 3), strict=True):
        assert own == pytest.approx(float(row[token]), abs=1e-6)
        best = row.topk(3).indices.tolist()
        assert list(top)[:3] == best
        assert set(top) == {*best, token}
        assert top == {i: pytest.approx(float(row[i]), abs=1e-6) for i in top}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_the_arithmetic_is_float32_or_better(dtype: torch.dtype) -> None:
    logits = torch.randn(1, 5000).to(dtype)
    own, top = token_logprobs(logits, [7], 0)[0]
    assert own == pytest.approx(float(logits.double().log_softmax(-1)[0, 7]), abs=2e-6)
    assert top == {7: own}


def test_ties_go_to_the_lower_id() -> None:
    logits = torch.zeros(1, 300)
    assert list(token_logprobs(logits, [200], 3)[0][1]) == [0, 1, 2, 200]


def test_processed_is_the_law_sampled_from() -> None:
    """top_k 2 at temperature 0.5, through the laws that verification used."""
    p = [0.5, 0.3, 0.15, 0.05]
    row = Sequence(id=0, tokens=[0], prompt_len=1, params=SamplingParams(temperature=0.5, top_k=2))
    one = torch.zeros(1, 1, dtype=torch.int64)
    root = Draft(tokens=one, parents=one - 1, length=one[0] + 1, draw=one)
    got = laws([row], torch.tensor([[p]], dtype=torch.float64).log(), root)
    assert got.probs is not None
    own, top = token_logprobs(torch.zeros(1, 4), [1], 3, processed=Laws(probs=got.probs[0]))[0]
    assert own == pytest.approx(math.log(0.09 / 0.34))
    assert top == {0: pytest.approx(math.log(0.25 / 0.34)), 1: own}  # nothing else has a probability


def test_a_greedy_law_is_a_point() -> None:
    points = Laws(points=torch.tensor([4, 2]))
    assert token_logprobs(torch.randn(2, 9), [4, 2], 3, processed=points) == [(0.0, {4: 0.0}), (0.0, {2: 0.0})]


def test_nothing_in_nothing_out() -> None:
    assert token_logprobs(torch.zeros(0, 5), [], 3) == []


def test_more_alternatives_than_tokens() -> None:
    assert list(token_logprobs(torch.tensor([[0.0, 2.0, 1.0]]), [0], 9)[0][1]) == [1, 2, 0]
