"""Case 29, the parts without an engine: laws over the real ids alone, whatever the widths of target and drafter."""

import pytest
import torch

from slipstream.sampling import draft_law, fit_vocab, laws
from slipstream.types import Draft, SamplingParams, Sequence

REAL, TARGET = 10, 12
WARM = SamplingParams(temperature=1.0)


def sequence(params: SamplingParams = WARM) -> Sequence:
    return Sequence(id=0, tokens=[1], prompt_len=1, params=params)


def wide(width: int, *lead: int) -> torch.Tensor:
    """Logits [*lead, width], the pad columns set very high."""
    logits = torch.randn(*lead, width, dtype=torch.float64)
    logits[..., REAL:] = 50.0
    return logits


@pytest.mark.parametrize("width", [16, 12, 10, 8])
def test_case_29_drafters_of_any_width_speak_of_the_real_ids(width: int) -> None:
    logits = wide(width, 3)
    q = draft_law([sequence()] * 3, [[]] * 3, fit_vocab(logits, REAL, logits=True))
    assert q.shape == (3, REAL)
    shared = min(width, REAL)
    torch.testing.assert_close(q[:, :shared], logits[:, :shared].softmax(-1))
    assert bool((q[:, shared:] == 0).all())


@pytest.mark.parametrize("width", [16, 12, 10, 8])
def test_case_29_probabilities_are_cut_and_normalised_again(width: int) -> None:
    q = torch.rand(2, 3, width, dtype=torch.float64)
    q /= q.sum(-1, keepdim=True)
    got = fit_vocab(q, REAL, logits=False)
    assert got.shape == (2, 3, REAL)
    torch.testing.assert_close(got.sum(-1), torch.ones(2, 3, dtype=torch.float64))
    shared = min(width, REAL)
    torch.testing.assert_close(got[..., :shared] * q[..., :shared].sum(-1, keepdim=True), q[..., :shared])
    assert bool((got[..., shared:] == 0).all())


def test_case_29_a_row_that_lived_beyond_the_vocabulary_becomes_uniform() -> None:
    q = torch.zeros(1, 16)
    q[0, 12] = 1.0
    assert fit_vocab(q, REAL, logits=False).tolist() == [[pytest.approx(0.1)] * REAL]


@pytest.mark.parametrize("kw", [{}, {"temperature": 1.0}, {"temperature": 1.0, "top_k": 4, "top_p": 0.9}], ids=str)
def test_case_29_padded_columns_of_the_target_change_nothing(kw: dict) -> None:
    """The target hands over a view of its padded logits; negative control: uncut, the pad columns take all mass."""
    row = sequence(SamplingParams(**kw))
    tokens = torch.tensor([[1, 2, 3]])
    draft = Draft(tokens, torch.tensor([[-1, 0, 1]]), torch.tensor([3]), 0 * tokens)
    padded = wide(TARGET, 1, 3)
    cut, apart, uncut = padded[..., :REAL], padded[..., :REAL].clone(), laws([row], padded, draft)
    assert not cut.is_contiguous()
    got, want = laws([row], cut, draft), laws([row], apart, draft)
    if got.probs is None:
        assert got.points is not None
        assert want.points is not None
        assert uncut.points is not None
        assert torch.equal(got.points, want.points)
        assert bool((got.points < REAL).all() and (uncut.points >= REAL).all())
        return
    assert want.probs is not None
    assert uncut.probs is not None
    assert torch.equal(got.probs, want.probs)
    assert got.probs.shape[-1] == REAL
    assert float(uncut.probs[..., REAL:].sum(-1).min()) > 0.99


def test_case_29_placeholder_ids_in_padding_reach_no_law() -> None:
    """A row without drafts carries -1: the other row's law, and its own root, are as if it were alone."""
    params = SamplingParams(temperature=1.0, repetition_penalty=1.3, frequency_penalty=0.5)
    rows = [sequence(params), sequence(params)]
    tokens = torch.tensor([[1, 2, 3], [1, -1, -1]])
    draft = Draft(tokens, torch.tensor([[-1, 0, 1]] * 2), torch.tensor([3, 1]), 0 * tokens)
    logits = torch.randn(2, 3, REAL, dtype=torch.float64)
    got = laws(rows, logits, draft).probs
    one = torch.ones(1, 1, dtype=torch.int64)
    alone = laws(rows[1:], logits[1:, :1], Draft(one, -one, one[0], 0 * one)).probs
    assert got is not None
    assert alone is not None
    assert torch.equal(got[1, 0], alone[0, 0])
    assert bool(got.isfinite().all())
