"""Controls that must fail: known ways to lose the target's law, each beside its right twin.

A harness that has never flagged a wrong rule has shown nothing. `least` is about half of the total variation of the
first tokens that exact enumeration finds. The tests run all of them, the audit command a selection at every run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from slipstream.testing import planted
from slipstream.testing.rounds import Tokens, distance, make_round, plain_law, run_law
from slipstream.testing.toy_drafters import PeekingToy, SampledToy, ToyDrafter, TreeToy, greedy_toy
from slipstream.testing.toys import Law, RandomLaw, memoryless
from slipstream.types import Draw, VerifyRule
from slipstream.verify import RULES

_F, _S, _D = Draw.FIXED, Draw.SAMPLED, Draw.DISTINCT
V, N, PROMPT = 3, 3, (0,)
P, Q = RandomLaw(V, 1), RandomLaw(V, 2)


def sharpen(law: Law, power: float) -> Law:
    """Return a law with its rows raised to a power."""

    def sharp(prefix: Tokens) -> list[float]:
        row = [w**power for w in law(prefix)]
        return [w / sum(row) for w in row]

    return sharp


def _unlikely(prefix: Tokens, drafted: Tokens) -> bool:
    return Q((*prefix, *drafted[:-1]))[drafted[-1]] < 0.4


def _stop_kept(prefix: Tokens, drafted: Tokens) -> bool:
    return bool(drafted) and _unlikely(prefix, drafted)


@dataclass
class Control:
    """A wrong way and its right twin, as (drafter, rule); `law` is the target's. `least` is a floor for the bias."""

    wrong: tuple[Callable[[], ToyDrafter], VerifyRule]
    right: tuple[Callable[[], ToyDrafter], VerifyRule]
    least: float
    law: Law = P
    budget: int = 2


def _sampled() -> ToyDrafter:
    return SampledToy(Q, V)


CHAIN, BLOCK, TREE = RULES["chain"], RULES["block"], RULES["tree"]
HALF, TOY_P, TOY_Q = sharpen(P, 2.0), memoryless(0.5, 0.5, 0.0), memoryless(0.5, 0.0, 0.5)
MANY = 8

CONTROLS: Mapping[str, Control] = {
    "unlikely drawn tokens withdrawn": Control(
        (lambda: PeekingToy(Q, V, _unlikely), CHAIN), (lambda: SampledToy(Q, V, stop=_stop_kept), CHAIN), 0.1
    ),
    "unlikely drawn tokens withdrawn, block": Control(
        (lambda: PeekingToy(Q, V, _unlikely), BLOCK), (lambda: SampledToy(Q, V, stop=_stop_kept), BLOCK), 0.1
    ),
    "drawn draft cut at an illegal token": Control(
        (lambda: PeekingToy(TOY_Q, V, lambda s, d: d[-1] == 2), CHAIN),
        (lambda: SampledToy(TOY_Q, V), CHAIN),
        0.12,
        TOY_P,
    ),
    "duplicate siblings skipped": Control(
        (lambda: planted.Deduplicating(Q, V, (_S, _S), 1), TREE),
        (lambda: TreeToy(Q, V, (_S, _S), 1), TREE),
        0.01,
        P,
        MANY,
    ),
    "drawn without replacement, tested with plain q": Control(
        (lambda: planted.Mislabelled(Q, V, (_D, _D), _S), TREE),
        (lambda: TreeToy(Q, V, (_D, _D), 1), TREE),
        0.05,
        P,
        MANY,
    ),
    "hybrid node, drawn child tested with plain q": Control(
        (lambda: planted.Mislabelled(Q, V, (_S, _F)), TREE), (lambda: TreeToy(Q, V, (_S, _F), 1), TREE), 0.02, P, MANY
    ),
    "top-2 tested with q": Control(
        (lambda: planted.Mislabelled(Q, V, (_F, _F), _S), TREE),
        (lambda: TreeToy(Q, V, (_F, _F), 1), TREE),
        0.1,
        P,
        MANY,
    ),
    "argmax tested with softmax q": Control(
        (lambda: planted.Mislabelled(Q, V, (_F,), _S, 2), CHAIN), (lambda: greedy_toy(Q, V), CHAIN), 0.1
    ),
    "raw q for sharpened draws": Control(
        (lambda: planted.RawQ(sharpen(Q, 2.0), V), CHAIN), (lambda: SampledToy(sharpen(Q, 2.0), V), CHAIN), 0.03
    ),
    "q rows shifted by one": Control((lambda: planted.ShiftedQ(Q, V), CHAIN), (_sampled, CHAIN), 0.1),
    "dynamic tree over drawn children": Control(
        (lambda: planted.BestOfDrawn(Q, V, (_D, _D), 1), CHAIN),
        (lambda: TreeToy(Q, V, (_D, _D), 1), TREE),
        0.05,
        P,
        MANY,
    ),
    "residual softmaxed, not renormalised": Control(
        (
            _sampled,
            planted.WrongChain(lambda w: torch.where((w.sum(1, keepdim=True) - 1).abs() < 1e-9, w, w.softmax(1))),
        ),
        (_sampled, CHAIN),
        0.05,
    ),
    "redraw from p": Control((_sampled, planted.RedrawFromP()), (_sampled, CHAIN), 0.05),
    "accept everything": Control((_sampled, planted.WrongChain(coins=torch.ones_like)), (_sampled, CHAIN), 0.1),
    "first drafted token not checked": Control(
        (_sampled, planted.WrongChain(coins=planted.first_coin_passes)), (_sampled, CHAIN), 0.1
    ),
    "coins of half the probability": Control(
        (_sampled, planted.WrongChain(coins=lambda a: a / 2)), (_sampled, CHAIN), 0.05
    ),
    "bonus row off by one": Control((_sampled, planted.RowBefore()), (_sampled, CHAIN), 0.02),
    "bonus without temperature": Control((_sampled, planted.UntemperedBonus()), (_sampled, CHAIN), 0.005, HALF),
    "early exit in block verification": Control((_sampled, planted.EarlyExit()), (_sampled, BLOCK), 0.005),
    "token residual in block verification": Control((_sampled, planted.TokenResidual()), (_sampled, BLOCK), 0.005),
    "uncapped last ratio": Control(
        (_sampled, planted.UncappedLast(False)), (_sampled, planted.UncappedLast(True)), 0.005
    ),
    "typical acceptance": Control(
        (lambda: greedy_toy(Q, V), planted.Typical()), (lambda: greedy_toy(Q, V), CHAIN), 0.2
    ),
    "refused siblings not removed": Control(
        (lambda: TreeToy(Q, V, (_F, _F), 1), planted.Unrenormalised()),
        (lambda: TreeToy(Q, V, (_F, _F), 1), TREE),
        0.02,
        P,
        MANY,
    ),
}


def bias(pair: tuple[Callable[[], ToyDrafter], VerifyRule], control: Control) -> float:
    """Return the exact total variation between what this drafter and rule emit and plain decoding."""
    law = run_law(make_round(control.law, pair[0](), pair[1], control.budget), PROMPT, N)
    return distance(law, plain_law(control.law, PROMPT, N)) + abs(sum(law.values()) - 1)
