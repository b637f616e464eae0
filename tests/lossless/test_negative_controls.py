"""Controls that must fail: known ways to lose the target's law, each caught by the harness that passes the right code.

A harness that has never flagged a wrong rule has shown nothing. `least` is a floor for the total variation of the first
tokens, about half of what is found.
"""

from collections.abc import Callable
from dataclasses import dataclass

import planted
import pytest
import torch

from slipstream.testing import (
    PeekingToy,
    RandomLaw,
    SampledToy,
    ToyDrafter,
    TraceRngs,
    TreeToy,
    distance,
    enumerate_traces,
    greedy_toy,
    make_round,
    marginals,
    memoryless,
    plain_law,
    run_law,
)
from slipstream.testing.rounds import Tokens
from slipstream.testing.toys import Law
from slipstream.types import Draft, Draw, Laws, Rngs, VerifyRule
from slipstream.verify import RULES

F, S, D = Draw.FIXED, Draw.SAMPLED, Draw.DISTINCT
V, N, PROMPT = 3, 3, (0,)
P, Q = RandomLaw(V, 1), RandomLaw(V, 2)


def sharpen(law: Law, power: float) -> Law:
    def sharp(prefix: Tokens) -> list[float]:
        row = [w**power for w in law(prefix)]
        return [w / sum(row) for w in row]

    return sharp


def unlikely(prefix: Tokens, drafted: Tokens) -> bool:
    return Q((*prefix, *drafted[:-1]))[drafted[-1]] < 0.4


def stop_kept(prefix: Tokens, drafted: Tokens) -> bool:
    return bool(drafted) and unlikely(prefix, drafted)


# ---------------------------------------------------------------- the table


@dataclass
class Control:
    """A wrong way and its right twin, as (drafter, rule); `law` is the target's."""

    wrong: tuple[Callable[[], ToyDrafter], VerifyRule]
    right: tuple[Callable[[], ToyDrafter], VerifyRule]
    least: float
    law: Law = P
    budget: int = 2


def sampled() -> ToyDrafter:
    return SampledToy(Q, V)


CHAIN, BLOCK, TREE = RULES["chain"], RULES["block"], RULES["tree"]
HALF, TOY_P, TOY_Q = sharpen(P, 2.0), memoryless(0.5, 0.5, 0.0), memoryless(0.5, 0.0, 0.5)
MANY = 8

CONTROLS = {
    "unlikely drawn tokens withdrawn": Control(
        (lambda: PeekingToy(Q, V, unlikely), CHAIN), (lambda: SampledToy(Q, V, stop=stop_kept), CHAIN), 0.1
    ),
    "unlikely drawn tokens withdrawn, block": Control(
        (lambda: PeekingToy(Q, V, unlikely), BLOCK), (lambda: SampledToy(Q, V, stop=stop_kept), BLOCK), 0.1
    ),
    "drawn draft cut at an illegal token": Control(
        (lambda: PeekingToy(TOY_Q, V, lambda s, d: d[-1] == 2), CHAIN),
        (lambda: SampledToy(TOY_Q, V), CHAIN),
        0.12,
        TOY_P,
    ),
    "duplicate siblings skipped": Control(
        (lambda: planted.Deduplicating(Q, V, (S, S), 1), TREE), (lambda: TreeToy(Q, V, (S, S), 1), TREE), 0.01, P, MANY
    ),
    "drawn without replacement, tested with plain q": Control(
        (lambda: planted.Mislabelled(Q, V, (D, D), S), TREE), (lambda: TreeToy(Q, V, (D, D), 1), TREE), 0.05, P, MANY
    ),
    "hybrid node, drawn child tested with plain q": Control(
        (lambda: planted.Mislabelled(Q, V, (S, F)), TREE), (lambda: TreeToy(Q, V, (S, F), 1), TREE), 0.02, P, MANY
    ),
    "top-2 tested with q": Control(
        (lambda: planted.Mislabelled(Q, V, (F, F), S), TREE), (lambda: TreeToy(Q, V, (F, F), 1), TREE), 0.1, P, MANY
    ),
    "argmax tested with softmax q": Control(
        (lambda: planted.Mislabelled(Q, V, (F,), S, 2), CHAIN), (lambda: greedy_toy(Q, V), CHAIN), 0.1
    ),
    "raw q for sharpened draws": Control(
        (lambda: planted.RawQ(sharpen(Q, 2.0), V), CHAIN), (lambda: SampledToy(sharpen(Q, 2.0), V), CHAIN), 0.03
    ),
    "q rows shifted by one": Control((lambda: planted.ShiftedQ(Q, V), CHAIN), (sampled, CHAIN), 0.1),
    "dynamic tree over drawn children": Control(
        (lambda: planted.BestOfDrawn(Q, V, (D, D), 1), CHAIN), (lambda: TreeToy(Q, V, (D, D), 1), TREE), 0.05, P, MANY
    ),
    "residual softmaxed, not renormalised": Control(
        (
            sampled,
            planted.WrongChain(lambda w: torch.where((w.sum(1, keepdim=True) - 1).abs() < 1e-9, w, w.softmax(1))),
        ),
        (sampled, CHAIN),
        0.05,
    ),
    "redraw from p": Control((sampled, planted.RedrawFromP()), (sampled, CHAIN), 0.05),
    "accept everything": Control((sampled, planted.WrongChain(coins=torch.ones_like)), (sampled, CHAIN), 0.1),
    "first drafted token not checked": Control(
        (sampled, planted.WrongChain(coins=planted.first_coin_passes)), (sampled, CHAIN), 0.1
    ),
    "coins of half the probability": Control(
        (sampled, planted.WrongChain(coins=lambda a: a / 2)), (sampled, CHAIN), 0.05
    ),
    "bonus row off by one": Control((sampled, planted.RowBefore()), (sampled, CHAIN), 0.02),
    "bonus without temperature": Control((sampled, planted.UntemperedBonus()), (sampled, CHAIN), 0.005, HALF),
    "early exit in block verification": Control((sampled, planted.EarlyExit()), (sampled, BLOCK), 0.005),
    "token residual in block verification": Control((sampled, planted.TokenResidual()), (sampled, BLOCK), 0.005),
    "uncapped last ratio": Control(
        (sampled, planted.UncappedLast(False)), (sampled, planted.UncappedLast(True)), 0.005
    ),
    "typical acceptance": Control(
        (lambda: greedy_toy(Q, V), planted.Typical()), (lambda: greedy_toy(Q, V), CHAIN), 0.2
    ),
    "refused siblings not removed": Control(
        (lambda: TreeToy(Q, V, (F, F), 1), planted.Unrenormalised()),
        (lambda: TreeToy(Q, V, (F, F), 1), TREE),
        0.02,
        P,
        MANY,
    ),
}


def error(pair: tuple[Callable[[], ToyDrafter], VerifyRule], control: Control) -> float:
    law = run_law(make_round(control.law, pair[0](), pair[1], control.budget), PROMPT, N)
    assert sum(law.values()) == pytest.approx(1, abs=1e-9)
    return distance(law, plain_law(control.law, PROMPT, N))


@pytest.mark.parametrize("name", CONTROLS)
def test_the_wrong_way_is_flagged_and_the_right_one_passes(name: str) -> None:
    control = CONTROLS[name]
    found = error(control.wrong, control)
    assert found > control.least
    assert error(control.right, control) < 1e-12


def test_penalties_frozen_at_the_start_of_the_round_are_flagged() -> None:
    def penalised(seen: Tokens) -> Law:
        return lambda prefix: _norm([w**1.6 if t in seen else w for t, w in enumerate(P(prefix))])

    def true_law(prefix: Tokens) -> list[float]:
        return list(penalised(prefix)(prefix))

    plain = plain_law(true_law, PROMPT, N)
    frozen = run_law(lambda prefix: make_round(penalised(prefix), sampled(), CHAIN, 2)(prefix), PROMPT, N)
    assert distance(frozen, plain) > 0.01
    assert distance(run_law(make_round(true_law, sampled(), CHAIN, 2), PROMPT, N), plain) < 1e-12


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
