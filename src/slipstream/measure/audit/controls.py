"""Negative controls: errors planted into a copy of the engine, each of which its part of the audit must flag.

In: nothing but a seed. Out: one `Check` per planted error, passed when it was flagged. If one is not, the audit itself
has failed: it could not have seen a bug of that kind. The real rules run beside them, so what flags is the difference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from slipstream.measure.audit.exact import EXACT, Setting, V, error
from slipstream.measure.audit.findings import ALARM, Check, decide
from slipstream.measure.audit.statistics import statistics
from slipstream.measure.audit.streams import logged, seeds, source, toy_text
from slipstream.measure.audit.toy_rounds import MakeRngs, Play, play, play_three
from slipstream.testing import RandomLaw, SampledToy, planted, planted_engine
from slipstream.testing.controls import CONTROLS, bias
from slipstream.types import Draft, Draw, SamplingParams
from slipstream.verify import RULES

_ROWS = 1000
Plant = Callable[[], bool]  # plants an error and says whether it was flagged


def controls() -> Iterator[Check]:
    """Run the controls, one after another."""
    for name, control in CONTROLS.items():
        found, right = bias(control.wrong, control), bias(control.right, control)
        said = f"exact enumeration: total variation {found:.3f}; its right twin {right:.0e}"
        yield Check(f"planted: {name}", "control", said, passed=found > EXACT * 1e3 and right < EXACT)
    for name, plant in {**_engine(), **_streams(), **_drawn()}.items():
        flagged = plant()
        yield Check(f"planted: {name}", "control", "flagged" if flagged else "NOT flagged", passed=flagged)


def _engine() -> dict[str, Plant]:
    """Errors around the rules, enumerated through the engine."""
    q, chain = RandomLaw(V, 2), RULES["chain"]
    penalised = SamplingParams(
        temperature=1.0, presence_penalty=0.9, frequency_penalty=0.4, max_tokens=3, ignore_eos=True
    )
    plain = replace(penalised, presence_penalty=0.0, frequency_penalty=0.0)

    def flagged(setting: Setting, drafter: type[SampledToy] = SampledToy) -> Plant:
        return lambda: error(setting, lambda: drafter(q, V)) > EXACT * 1e3

    return {
        "penalties frozen at the start of a round": flagged(
            Setting(chain, penalised, engine=planted_engine.FrozenPenalty)
        ),
        "a stale slot in the cache": flagged(
            Setting(chain, plain, around=lambda target: planted_engine.StaleSlot(target, after=0))
        ),
        "top-p on the draft's draws, q recorded without it": flagged(
            Setting(chain, plain), planted_engine.OneSidedTopP
        ),
    }


def _streams() -> dict[str, Plant]:
    """Errors in the random numbers."""

    def used_twice(kind: MakeRngs) -> Plant:
        def plant() -> bool:
            with logged() as log:
                toy_text(RULES["chain"], kind, [1, 2])
            return not log.check("").passed

        return plant

    def coarse() -> bool:
        return (source(planted_engine.LowPrecision).p_value or 0.0) < ALARM / 100

    def neighbours() -> bool:
        return not all(check.passed for check in seeds(RULES["chain"], planted_engine.NeighbourRngs))

    return {
        "draft and correction share a stream": used_twice(planted_engine.SharedStream),
        "accept coins share the draft's stream": used_twice(planted_engine.SharedCoin),
        "every round draws the same numbers": used_twice(planted_engine.RepeatedRounds),
        "uniforms of bfloat16": coarse,
        "draws that depend on the batch": neighbours,
    }


def _drawn() -> dict[str, Plant]:
    """Errors that the tests of emitted and drafted tokens must see, on toy rows."""
    chain = RULES["chain"]
    return {
        "everything accepted (seen by PIT)": lambda: seen(Play(planted.WrongChain(coins=torch.ones_like))),
        "refused tokens redrawn from p (seen by PIT)": lambda: seen(Play(planted.RedrawFromP())),
        "fixed guesses accepted too often (seen by z)": lambda: seen(
            Play(planted.WrongChain(coins=lambda a: a.sqrt()), Draw.FIXED)
        ),
        "unlikely drawn tokens withdrawn (seen in the drafts)": lambda: seen(Play(chain, tamper=_withdraw)),
        "q recorded at another temperature (seen in the drafts)": lambda: seen(Play(chain, tamper=_other_heat)),
        "coins from the draft's numbers (seen by counting)": lambda: (
            play_three(Play(chain, make_rngs=planted_engine.SharedCoin), _ROWS).p_value() < ALARM / 100
        ),
    }


def seen(what: Play, rows: int = _ROWS, seed: int = 0) -> bool:
    """Play and return whether any test flags it."""
    checks = statistics(play(what, rows, seed), "toy rows")
    decide(checks)
    return not all(check.passed for check in checks)


def _withdraw(draft: Draft) -> Draft:
    """End the draft before the first token of less than 0.2 in q, after having seen it."""
    assert draft.q is not None
    mass = draft.q[:, :-1].gather(2, draft.tokens[:, 1:, None])[..., 0]
    kept = (mass >= 0.2).long().cumprod(1).sum(1)
    return replace(draft, length=1 + kept)


def _other_heat(draft: Draft) -> Draft:
    assert draft.q is not None
    return replace(draft, q=_heated(draft.q, 1.4))


def _heated(q: Tensor, temperature: float) -> Tensor:
    raised = q ** (1.0 / temperature)
    return raised / raised.sum(-1, keepdim=True)
