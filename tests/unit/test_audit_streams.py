"""The audit's checks of random numbers: silent on the production streams, loud on shared and coarse ones."""

from __future__ import annotations

import pytest

from slipstream.measure.audit.findings import ALARM
from slipstream.measure.audit.streams import logged, seeds, source, toy_text
from slipstream.sampling import RequestRngs, streams
from slipstream.testing import planted_engine as wrong
from slipstream.types import Sequence
from slipstream.verify import RULES


def coupled(rows: list[Sequence]) -> RequestRngs:
    return RequestRngs(rows, shared_noise=True)


@pytest.mark.parametrize(("rule", "make"), [("chain", RequestRngs), ("auto", RequestRngs), ("coupled", coupled)])
def test_production_streams_pass(rule: str, make: type[RequestRngs]) -> None:
    with logged() as log:
        toy_text(RULES[rule], make, [1, 2, 3])
    assert log.check("").passed
    assert bool(log.noise) == (rule == "coupled") == (not log.used)
    assert (source(make).p_value or 0) > ALARM
    checks = seeds(RULES[rule], make)
    assert all(check.passed for check in checks)
    assert len(checks) == (4 if rule == "coupled" else 3)


@pytest.mark.parametrize("kind", [wrong.SharedStream, wrong.SharedCoin, wrong.RepeatedRounds])
def test_numbers_used_twice_are_flagged(kind: type[RequestRngs]) -> None:
    with logged() as log:
        toy_text(RULES["chain"], kind, [1, 2])
    assert not log.check("").passed


@pytest.mark.parametrize("kind", [wrong.LowPrecision, wrong.SharedStream, wrong.RepeatedRounds])
def test_coarse_or_dependent_draws_are_flagged(kind: type[RequestRngs]) -> None:
    assert (source(kind).p_value or 0) < 1e-6


def test_a_run_that_drew_nothing_is_not_a_pass() -> None:
    with logged() as log:
        pass
    assert not log.check("").passed


def test_draws_that_depend_on_the_batch_are_flagged() -> None:
    assert [c.name for c in seeds(RULES["chain"], wrong.NeighbourRngs) if not c.passed]


def test_a_coupled_rule_without_shared_noise_is_flagged() -> None:
    """Its streams go by rounds, not positions: the text then depends on the draft."""

    class ByRound(RequestRngs):
        def shared(self, w, depth, active=None):  # type: ignore[no-untyped-def]
            return self.correct(w, active)

    assert [c.name for c in seeds(RULES["coupled"], lambda rows: ByRound(rows)) if not c.passed]


def test_the_log_leaves_nothing_behind() -> None:
    before = streams.raw
    with pytest.raises(RuntimeError), logged():
        raise RuntimeError
    assert streams.raw is before
