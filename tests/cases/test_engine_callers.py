"""The engine against its callers: callbacks that raise, abort or call back, and drafters that overdo it."""

from __future__ import annotations

import pytest
from cases_kit import chain_target, finish, make_engine, output, request

from slipstream.testing import ScriptedToy, every_toy
from slipstream.types import RequestError, Status, WorkError

TEXT = [3, 4, 5, 6, 7, 8]


def engine_of(**options):
    target = chain_target(TEXT)
    return make_engine(target, every_toy(target.law, 16, 3), 4, **options)


def test_a_callback_that_raises_in_the_commit_ends_the_round_s_rows_and_nothing_else() -> None:
    """Some rows have grown and some have not, and no cache has: going on would decode from wrong prefixes."""
    seen = []

    def trace(found) -> None:
        seen.append(found)
        if len(seen) == 3:
            raise KeyboardInterrupt

    engine = engine_of(trace=trace, max_rows=2)
    rows = [request(k) for k in range(3)]
    for row in rows:
        engine.add(row)
    with pytest.raises(KeyboardInterrupt):
        finish(engine)
    assert [row.finish_reason for row in rows] == ["error", "error", None]
    assert "KeyboardInterrupt" in rows[0].error
    finish(engine)
    assert output(rows[2]) == (TEXT * 4)[:20]
    assert len(engine.scheduler._free) == 2


def test_an_abort_from_within_a_round_waits_for_its_end() -> None:
    """The row leaves after the round: a slot released in the middle would be written by the commit."""
    rows = [request(k) for k in range(3)]

    def trace(found) -> None:
        if found.sequence is rows[0] and found.sequence.rounds == 2:
            for row in (rows[0], rows[1]):
                engine.abort(row)
            assert engine.scheduler._free == []

    engine = engine_of(trace=trace, max_rows=3)
    finish(engine, *rows)
    assert [row.finish_reason for row in rows] == ["abort", "abort", "length"]
    assert all(row.status is Status.FINISHED for row in rows)
    assert output(rows[2]) == (TEXT * 4)[:20]
    assert sorted(engine.scheduler._free) == [0, 1, 2]


def test_a_round_within_a_round_is_refused() -> None:
    engine = engine_of(trace=lambda found: engine.step())
    with pytest.raises(RequestError, match="a round is under way"):
        finish(engine, request())
    assert engine.idle


def test_a_row_is_held_to_its_own_budget_not_to_its_neighbour_s() -> None:
    """A row with room for one more token may draft nothing, however much the rows beside it may."""

    class Greedy(ScriptedToy):
        def propose(self, rows, budget, rngs):
            return super().propose(rows, [max(budget)] * len(rows), rngs)

    engine = make_engine(chain_target(TEXT), Greedy(lambda prefix, n: [1] * n, 16), 3)
    with pytest.raises(WorkError, match="drafted 3 nodes with a budget of 0"):
        finish(engine, request(1), request(2, max_tokens=1))
