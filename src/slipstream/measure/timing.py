"""Time several ways of decoding the same prompts, in turn, in one process.

In: named runners (a runner decodes one prompt and returns a `Timing`) and prompts as ids. Out: every timing of every
runner. Each prompt is finished by all runners before the next begins and the order is reversed on every second repeat,
so that a machine that slows down or heats up does so for all of them. Nothing is averaged here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from slipstream.llm import LLM
    from slipstream.types import SamplingParams


@dataclass(frozen=True)
class Timing:
    """One generation: its ids, decode seconds (prefill apart), seconds from call to return, and the engine's stats."""

    tokens: list[int]
    decode: float
    wall: float
    stats: Mapping[str, Any]

    @property
    def outside(self) -> float:
        """Seconds of the call that are neither prefill nor part of a decode round; 0 without stats."""
        return max(0.0, self.wall - self.decode - self.stats["prefill_seconds"]) if self.stats else 0.0


Runner = Callable[[list[int]], Timing]
Results = dict[str, list[list[Timing]]]  # runner -> prompt -> repeat


def llm_runner(llm: LLM, params: SamplingParams) -> Runner:
    """Return a runner that decodes with `llm`; `params` should be greedy, or seeded, to make repeats equal."""

    def run(ids: list[int]) -> Timing:
        start = time.perf_counter()
        done = llm.generate(ids, params)
        wall = time.perf_counter() - start
        parts = ("draft_seconds", "target_seconds", "other_seconds")
        return Timing(done.token_ids, sum(done.stats[p] for p in parts), wall, done.stats)

    return run


def in_turn(
    runners: Mapping[str, Runner],
    prompts: list[list[int]],
    repeats: int,
    *,
    tick: Callable[[], object] = lambda: None,
    deadline: float | None = None,
) -> Results:
    """Run every runner on every prompt `repeats` times, in turn; past `deadline` (monotonic) no new repeat begins.

    The first repeat always completes, so every prompt has a timing of every runner.
    """
    results: Results = {name: [[] for _ in prompts] for name in runners}
    names = list(runners)
    for repeat in range(repeats):
        if repeat and deadline is not None and time.monotonic() > deadline:
            break
        for i, ids in enumerate(prompts):
            for name in names if repeat % 2 == 0 else reversed(names):
                results[name][i].append(runners[name](ids))
                tick()
    return results


def warm_up(runners: Mapping[str, Runner], ids: list[int]) -> None:
    """Run each runner once, unmeasured: first calls allocate caches and build thread pools."""
    for run in runners.values():
        run(ids)
