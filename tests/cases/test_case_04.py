"""Case 04: temperature, top-p, top-k, min-p and bias shape the law of every position, not of the bonus token alone."""

from typing import Any

import pytest
import torch

from slipstream.sampling import draft_law, laws
from slipstream.testing import SampledToy, distance, enumerate_traces, memoryless, run_law
from slipstream.testing.rounds import Round, Tokens
from slipstream.testing.trace import Trace, TraceRngs
from slipstream.types import Draft, Laws, SamplingParams, Sequence
from slipstream.verify import RULES

P, Q = torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64), (0.1, 0.2, 0.3, 0.4)
SETTINGS: list[tuple[dict[str, Any], list[float]]] = [
    ({"top_p": 0.75}, [0.625, 0.375, 0, 0]),
    ({"top_k": 2}, [0.625, 0.375, 0, 0]),
    ({"min_p": 0.2}, [0.526, 0.316, 0.158, 0]),
    ({"temperature": 0.5}, [0.685, 0.247, 0.062, 0.007]),
    ({"logit_bias": {2: 2.0}}, [0.255, 0.153, 0.566, 0.026]),
    ({"logit_bias": {0: -100.0}}, [0, 0.6, 0.3, 0.1]),
]


def drafted_round(params: SamplingParams, rule: str, frozen: bool = False) -> Round:
    """One round of four drafted tokens from Q; `frozen` leaves all positions but the last with the raw law (wrong)."""

    def run(traces: list[Trace], prefix: Tokens) -> list[Tokens]:
        rows = [Sequence(id=b, tokens=list(prefix), prompt_len=1, params=params) for b in range(len(traces))]
        drafter = SampledToy(memoryless(*Q), 4)
        drafter.observe(rows, [row.tokens[:-1] for row in rows], [{} for _ in rows])
        rngs = TraceRngs(traces, [len(prefix)] * len(traces), shared_noise=RULES[rule].shared_noise)
        draft = drafter.propose(rows, [2] * len(rows), rngs)
        p = laws(rows, P.log().expand(len(rows), draft.nodes, 4), draft)
        if frozen:
            assert p.probs is not None
            p = Laws(torch.cat([P.expand(len(rows), draft.nodes - 1, 4), p.probs[:, -1:]], 1))
        verdict = RULES[rule](draft, p, rngs)
        paths = [path[:n] for path, n in zip(verdict.path.tolist(), verdict.accepted.tolist(), strict=True)]
        return [(*draft.tokens[b, path].tolist(), int(t)) for b, (path, t) in enumerate(zip(paths, verdict.next_token))]

    return lambda prefix: enumerate_traces(lambda traces: run(traces, prefix), 32)


def settled(kw: dict[str, Any]) -> SamplingParams:
    return SamplingParams(**{"temperature": 1.0} | kw)


def product(p: list[float]) -> dict[Tokens, float]:
    return {(a, b): p[a] * p[b] for a in range(4) for b in range(4) if p[a] * p[b]}


@pytest.mark.parametrize("kw, want", SETTINGS, ids=lambda value: str(value) if isinstance(value, dict) else "")
def test_case_04_every_node_and_the_drafters_law_are_shaped(kw: dict[str, Any], want: list[float]) -> None:
    row = Sequence(id=0, tokens=[1], prompt_len=1, params=settled(kw))
    tokens = torch.tensor([[1, 3, 0, 2, 1]])
    chain = Draft(tokens, torch.arange(-1, 4)[None], torch.tensor([5]), torch.zeros_like(tokens))
    for dtype in (torch.float64, torch.float32):
        logits = P.log().to(dtype)
        probs = laws([row], logits.expand(1, 5, 4), chain).probs
        assert probs is not None
        for node in range(5):
            assert probs[0, node].tolist() == pytest.approx(want, abs=5e-4)
            if "logit_bias" not in kw:
                assert [v > 0 for v in probs[0, node].tolist()] == [v > 0 for v in want]  # outside: exactly zero
        assert torch.equal(draft_law([row], [[1]], logits[None])[0], probs[0, 0])


@pytest.mark.parametrize("rule", ["chain", "block"])
@pytest.mark.parametrize("kw, want", SETTINGS, ids=lambda value: str(value) if isinstance(value, dict) else "")
def test_case_04_accepted_corrected_and_bonus_tokens_follow_one_law(
    kw: dict[str, Any], want: list[float], rule: str
) -> None:
    row = Sequence(id=0, tokens=[0], prompt_len=1, params=settled(kw))
    exact = draft_law([row], [[0]], P.log()[None])[0].tolist()
    assert exact == pytest.approx(want, abs=5e-4)
    found = run_law(drafted_round(row.params, rule), (0,), 2)
    assert distance(found, product(exact)) < 1e-12
    dead = {i for i, v in enumerate(exact) if v == 0}
    assert not any(dead & set(tokens) for tokens in found)


def test_case_04_raw_laws_before_the_bonus_are_told_apart() -> None:
    exact = [0.625, 0.375, 0.0, 0.0]
    wrong = run_law(drafted_round(settled({"top_k": 2}), "chain", frozen=True), (0,), 2)
    assert distance(wrong, product(exact)) > 0.1
