"""Enumeration inside the audit: right engines are proved under any parameters, planted ones are not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slipstream.control.budget import FixedBudget
from slipstream.measure.audit.controls import controls
from slipstream.measure.audit.exact import EXACT, Q, Setting, V, drafters, enumerate_rule, error, small
from slipstream.testing import SampledToy, planted, planted_engine
from slipstream.types import SamplingParams
from slipstream.verify import RULES

PENALISED = SamplingParams(temperature=0.8, presence_penalty=0.9, frequency_penalty=0.4, max_tokens=3, ignore_eos=True)
PLAIN = SamplingParams(temperature=1.0, max_tokens=3, ignore_eos=True)


@pytest.mark.parametrize("rule", ["block", "auto", "coupled"])
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(temperature=0.8, top_p=0.9, top_k=40),
        SamplingParams(temperature=1.3, repetition_penalty=1.2, logit_bias={40_000: 2.0}, min_tokens=9, n=2),
    ],
    ids=["greedy", "cuts", "edits"],
)
def test_right_rules_are_proved(rule: str, params: SamplingParams) -> None:
    checks = enumerate_rule(rule, RULES[rule], FixedBudget(10), params, tokens=3)
    assert [check.name for check in checks if not check.passed] == []
    assert len(checks) >= 25


def right(drafter: type[SampledToy] = SampledToy, **changes: object) -> float:
    return error(replace(Setting(RULES["chain"], PLAIN), **changes), lambda: drafter(Q, V))  # type: ignore[arg-type]


def test_errors_planted_around_the_rule_are_flagged_and_their_twins_are_not() -> None:
    assert right() < EXACT
    assert right(params=PENALISED) < EXACT
    assert right(params=PENALISED, engine=planted_engine.FrozenPenalty) > 1e-3
    assert right(params=PLAIN, engine=planted_engine.FrozenPenalty) < EXACT  # without penalties nothing is frozen
    assert right(around=lambda target: planted_engine.StaleSlot(target, after=0)) > 1e-3
    assert right(planted_engine.OneSidedTopP) > 1e-3
    assert right(rule=planted.RowBefore()) > 1e-3


def test_a_controller_that_peeks_would_be_seen() -> None:
    class Peeking(FixedBudget):
        """Not a controller's right: it tells the drafter to take an unlikely token back."""

    def withdrawn(prefix: tuple[int, ...], drafted: tuple[int, ...]) -> bool:
        return Q((*prefix, *drafted[:-1]))[drafted[-1]] < 0.4

    from slipstream.testing import PeekingToy

    setting = Setting(RULES["chain"], PLAIN, lambda: Peeking(2))
    assert error(setting, lambda: PeekingToy(Q, V, withdrawn)) > 0.01


def test_ids_are_folded_into_the_small_vocabulary() -> None:
    found = small(SamplingParams(logit_bias={7: 1.5}, stop_token_ids=(5,), min_tokens=50, n=3, seed=4, stop="x"), 4)
    assert found.logit_bias == {1: 1.5}
    assert found.stop_token_ids == (2,)
    assert (found.min_tokens, found.max_tokens, found.n, found.seed, list(found.stop)) == (3, 4, 1, None, [])
    assert "distinct siblings" not in drafters(Q, False)


def test_every_planted_control_of_an_audit_is_flagged() -> None:
    found = list(controls())
    assert [check.name for check in found if not check.passed] == []
    assert len(found) >= 30
