"""Where the time of a round goes that is not the target's forward: drafting, and everything else (`other_seconds`).

Batch 1, end-of-text ignored; greedy, for which there are limits, and sampled. `other` is the round without the target's
forward and without the drafter's calls; `outside` is what a call spends neither in prefill nor in a round (encoding,
admission, handing over text).
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import TYPE_CHECKING, Any

from slipstream.measure.report import table
from slipstream.measure.timing import Timing, in_turn, llm_runner, warm_up
from slipstream.types import SamplingParams

if TYPE_CHECKING:
    from slipstream.llm import LLM

LIMITS = {"none": 2.0, "lookup": 5.0}  # percent of the target's time that `other` may take in a greedy round
WARM = 0.7  # the temperature of sampled rounds


def overhead(
    llms: dict[str, LLM],
    prompts: dict[str, list[int]],
    params: SamplingParams,
    repeats: int,
    tick: Callable[[], object],
) -> list[dict[str, Any]]:
    """Return one row per drafter (the keys of `llms`, all on one target): milliseconds per round and percentages."""
    runners = {name: llm_runner(llm, params) for name, llm in llms.items()}
    ids = list(prompts.values())
    warm_up(runners, ids[0])
    results = in_turn(runners, ids, repeats, tick=tick)
    some = next(iter(llms.values()))
    dtype = str(some.opened.dtype).removeprefix("torch.")
    return [
        {
            "model": some.model,
            "dtype": dtype,
            "temperature": params.temperature,
            "drafter": name,
            **_per_round([t for p in results[name] for t in p]),
        }
        for name in llms
    ]


def _per_round(timings: list[Timing]) -> dict[str, Any]:
    """Medians over generations of each part's milliseconds per round, and of its share of the target's time."""
    found: dict[str, Any] = {"rounds": sum(t.stats["target_passes"] for t in timings)}
    for part in ("target", "draft", "other"):
        found[f"{part}_ms"] = median(1000 * t.stats[f"{part}_seconds"] / t.stats["target_passes"] for t in timings)
    found["outside_ms"] = median(1000 * t.outside / t.stats["target_passes"] for t in timings)
    for part in ("draft", "other"):
        shares = [100 * t.stats[f"{part}_seconds"] / t.stats["target_seconds"] for t in timings]
        found[f"{part}_percent"] = median(shares)
    return found


def within_limits(rows: list[dict[str, Any]]) -> bool:
    """Tell whether `other` keeps its limit for every drafter that has one."""
    return all(row["other_percent"] <= (_limit(row) or float("inf")) for row in rows)


def _limit(row: dict[str, Any]) -> float | None:
    return LIMITS.get(row["drafter"]) if row["temperature"] == 0.0 else None


def show(rows: list[dict[str, Any]]) -> str:
    """Return the rows as text."""
    head = ["dtype, T, drafter", "target", "draft", "other", "outside", "other %", "limit", "draft+other %"]
    lines = [
        [
            f"{r['dtype']} {r['temperature']:g} {r['drafter']}",
            *(f"{r[part + '_ms']:.2f}" for part in ("target", "draft", "other", "outside")),
            f"{r['other_percent']:.2f}",
            "-" if _limit(r) is None else f"{_limit(r):.0f}",
            f"{r['other_percent'] + r['draft_percent']:.2f}",
        ]
        for r in rows
    ]
    title = f"Overhead: {rows[0]['model']}, batch 1, ms per round (medians); percent of the target's time"
    return f"{title}\n{table(head, lines)}"
