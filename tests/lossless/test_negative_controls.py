"""Every planted control is flagged by exact enumeration, and its right twin passes."""

import pytest
import torch

from slipstream.testing import (
    PeekingToy,
    SampledToy,
    TraceRngs,
    distance,
    enumerate_traces,
    make_round,
    marginals,
    memoryless,
    plain_law,
    run_law,
)
from slipstream.testing.controls import CHAIN, CONTROLS, PROMPT, N, P, Q, V, bias
from slipstream.testing.rounds import Tokens
from slipstream.testing.toys import Law
from slipstream.types import Draft, Laws, Rngs


@pytest.mark.parametrize("name", CONTROLS)
def test_the_wrong_way_is_flagged_and_the_right_one_passes(name: str) -> None:
    control = CONTROLS[name]
    found = bias(control.wrong, control)
    assert found > control.least
    assert bias(control.right, control) < 1e-12


def test_penalties_frozen_at_the_start_of_the_round_are_flagged() -> None:
    def penalised(seen: Tokens) -> Law:
        return lambda prefix: _norm([w**1.6 if t in seen else w for t, w in enumerate(P(prefix))])

    def true_law(prefix: Tokens) -> list[float]:
        return list(penalised(prefix)(prefix))

    plain = plain_law(true_law, PROMPT, N)
    frozen = run_law(lambda prefix: make_round(penalised(prefix), SampledToy(Q, V), CHAIN, 2)(prefix), PROMPT, N)
    assert distance(frozen, plain) > 0.01
    assert distance(run_law(make_round(true_law, SampledToy(Q, V), CHAIN, 2), PROMPT, N), plain) < 1e-12


def test_a_global_search_over_draft_lengths_is_flagged() -> None:
    """The counterexample of 2607.05147, appendix A: token A is submitted since its successor looks good, B is not."""
    law, drafter_law = memoryless(0.7, 0.3), memoryless(0.5, 0.5)
    value = {1: 1.0, 2: 0.5, 3: 0.45}  # rounds per second with 0, 1, 2 drafted tokens

    def throughput(k: int, second: float) -> float:
        return (1.0, 1.8, 1.8 + 0.8 * second)[k] * value[k + 1]

    def searched(prefix: Tokens, drafted: Tokens) -> bool:
        second = 0.9 if drafted[0] == 0 else 0.0
        return max(range(3), key=lambda k: throughput(k, second)) == 0

    found = run_law(make_round(law, PeekingToy(drafter_law, 2, searched), CHAIN, 1), (0,), 1)
    assert marginals(found, 2)[0] == pytest.approx([0.85, 0.15])
    stopped_early = throughput(1, 0.0) > throughput(0, 0.0)  # decided before the token is drawn: no draft at all
    right = run_law(make_round(law, SampledToy(drafter_law, 2), CHAIN, int(stopped_early)), (0,), 1)
    assert marginals(right, 2)[0] == pytest.approx([0.7, 0.3])


def test_a_correction_that_shares_the_drafts_noise_is_flagged() -> None:
    """Given that token 0 won the draft's race, token 1 wins the correction's with 1 - .3/1.1 and not with .7."""

    class SharedCorrection(TraceRngs):
        def correct(self, w: torch.Tensor, active: torch.Tensor | None = None) -> torch.Tensor:
            return self.shared(w, 1, active)

    p, q = ((0.1, 0.6, 0.3),), ((0.6, 0.25, 0.15),)

    def first(rngs: Rngs) -> int:
        x = rngs.draft(torch.tensor(q, dtype=torch.float64), 1)
        tokens = torch.stack([torch.zeros(1, dtype=torch.int64), x], 1)
        rows = torch.tensor([[*q, *q]], dtype=torch.float64)
        draft = Draft(tokens, torch.tensor([[-1, 0]]), torch.tensor([2]), torch.tensor([[0, 1]]), rows)
        verdict = CHAIN(draft, Laws(torch.tensor([[*p, *p]], dtype=torch.float64)), rngs)
        return int(x) if int(verdict.accepted) else int(verdict.next_token)

    shared = enumerate_traces(lambda traces: [first(SharedCorrection(traces, shared_noise=True))])
    assert shared[1] == pytest.approx(0.25 + 0.5 * (1 - 0.3 / 1.1), abs=1e-12)  # .6136 where .6 is due
    fresh = enumerate_traces(lambda traces: [first(TraceRngs(traces))])
    assert [fresh[t] for t in range(3)] == pytest.approx(p[0], abs=1e-12)


def _norm(row: list[float]) -> list[float]:
    return [w / sum(row) for w in row]
