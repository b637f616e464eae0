"""Runs alternate, every prompt gets every runner, and a deadline only stops further repeats."""

from __future__ import annotations

import time

from slipstream.measure.timing import Runner, Timing, in_turn


def logging_runner(name: str, log: list[tuple[str, int]]) -> Runner:
    def run(ids: list[int]) -> Timing:
        log.append((name, ids[0]))
        return Timing(ids, 1.0, 2.0, {})

    return run


def test_runners_alternate_prompt_by_prompt_and_swap_order_each_repeat() -> None:
    log: list[tuple[str, int]] = []
    runners = {name: logging_runner(name, log) for name in ("a", "b")}
    results = in_turn(runners, [[1], [2]], 2)
    assert log == [("a", 1), ("b", 1), ("a", 2), ("b", 2), ("b", 1), ("a", 1), ("b", 2), ("a", 2)]
    assert [[t.tokens for t in runs] for runs in results["b"]] == [[[1], [1]], [[2], [2]]]


def test_deadline_ends_after_a_whole_repeat() -> None:
    log: list[tuple[str, int]] = []
    results = in_turn({"a": logging_runner("a", log)}, [[1], [2]], 5, deadline=time.monotonic() - 1)
    assert [len(runs) for runs in results["a"]] == [1, 1]


def test_every_run_ticks() -> None:
    ticks: list[None] = []
    in_turn({"a": logging_runner("a", [])}, [[1], [2], [3]], 2, tick=lambda: ticks.append(None))
    assert len(ticks) == 6


def test_outside_is_what_neither_prefill_nor_rounds_took() -> None:
    assert Timing([1], 1.0, 1.75, {"prefill_seconds": 0.5}).outside == 0.25
    assert Timing([1], 1.75, 1.75, {}).outside == 0.0
