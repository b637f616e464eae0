"""From measured units to numbers: rates, speed-ups with intervals, acceptance by position, where the time went.

In: a `Bench` whose results are there. Out: a `Summary`, which is all that the printed tables, the page and the JSON
object show. A speed-up exists only where the outputs agree. No I/O, no model.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

from slipstream.measure.bench_plan import PLAIN, Cell, Plan
from slipstream.measure.bench_predict import predictions
from slipstream.measure.bench_runs import PARTS, Run
from slipstream.measure.peers import PEERS
from slipstream.measure.report import Ratio, Times, rate, speedup

if TYPE_CHECKING:
    from slipstream.measure.bench_grid import Bench

Group = tuple[str, tuple[str, ...]]  # task, prompts


@dataclass(frozen=True)
class Outputs:
    """How one runner's greedy outputs compare with plain ones: counts of prompts; all 0 where they are not compared."""

    equal: int = 0
    near_ties: int = 0
    different: int = 0
    largest_gap: float = 0.0
    tau: float = 0.0

    @property
    def holds(self) -> bool:
        """True unless some output differs beyond rounding."""
        return self.different == 0

    @property
    def words(self) -> str:
        """Say it in a few words."""
        total = self.equal + self.near_ties + self.different
        if not total:
            return "not compared"
        if self.different:
            return f"{self.different} of {total} DIFFERENT"
        return f"{self.equal} equal, {self.near_ties} near-ties" if self.near_ties else "identical"


@dataclass(frozen=True)
class Side:
    """All runs of one runner in one cell: one list of repeats per group of prompts."""

    name: str
    runs: dict[Group, list[Run]]
    outputs: Outputs = field(default_factory=Outputs)

    @property
    def peer(self) -> bool:
        """True for another engine, which does not tell prefill from decoding."""
        return self.name in PEERS

    def times(self, part: str = "decode", task: str | None = None) -> list[Times]:
        """Return tokens and seconds of each group, decoding only or the whole call ("wall")."""
        groups = self._groups(task)
        return [Times(runs[0].count, [getattr(run, part) for run in runs]) for runs in groups]

    def rate(self, part: str = "decode", task: str | None = None) -> float:
        """Return tokens per second."""
        return rate(self.times(part, task))

    def seconds(self) -> dict[str, float]:
        """Return where the time went: medians of repeats, summed over prompts; `outside` is the rest of the calls."""
        groups = self._groups(None)
        found = {part: sum(median(r.seconds.get(part, 0.0) for r in runs) for runs in groups) for part in PARTS}
        wall = sum(median(r.wall for r in runs) for runs in groups)
        return found | {"outside": max(0.0, wall - sum(found.values())), "wall": wall}

    def counts(self, task: str | None = None) -> dict[str, int]:
        """Return the counts of the first repeat, summed over prompts."""
        first = [runs[0] for runs in self._groups(task)]
        return {
            "tokens": sum(r.count for r in first),
            "passes": sum(sum(r.passes) for r in first),
            "by_target": sum(sum(r.by_target) for r in first),
            "drafts": sum(r.drafts for r in first),
            "drafted": sum(r.drafted for r in first),
            "accepted": sum(r.accepted for r in first),
        }

    def acceptance_length(self, task: str | None = None) -> float:
        """Return tokens per target pass, the target's own token included; 0 for a peer."""
        counts = self.counts(task)
        return counts["tokens"] / counts["passes"] if counts["passes"] else 0.0

    def acceptance(self) -> list[float]:
        """Return, for each position, the share of drafts whose token there was accepted."""
        first = [runs[0] for runs in self._groups(None)]
        drafts = sum(r.drafts for r in first)
        depth = max((len(r.per_position) for r in first), default=0)
        at = [sum(r.per_position[k] for r in first if k < len(r.per_position)) for k in range(depth)]
        return [n / drafts for n in at] if drafts else []

    @property
    def memory(self) -> int:
        """Return the peak of memory over all runs, in bytes."""
        return max((run.memory for runs in self.runs.values() for run in runs), default=0)

    @property
    def repeats(self) -> int:
        """Return the fewest repeats of any group."""
        return min((len(runs) for runs in self.runs.values()), default=0)

    def _groups(self, task: str | None) -> list[list[Run]]:
        return [runs for (name, _), runs in self.runs.items() if task in (None, name)]


@dataclass(frozen=True)
class CellSummary:
    """One cell: plain decoding, the drafters, the peers. `predicted` has a (value, low, high) for some drafters."""

    cell: Cell
    plain: Side
    drafters: list[Side]
    peers: list[Side]
    tasks: list[str]
    predicted: dict[str, Ratio] = field(default_factory=dict)

    def speed_up(self, side: Side, part: str = "decode", task: str | None = None) -> Ratio | None:
        """Return how many times faster a side is than plain; None where its outputs differ beyond rounding."""
        return speedup(self.plain.times(part, task), side.times(part, task)) if side.outputs.holds else None

    @property
    def holds(self) -> bool:
        """True if no drafter changed an output beyond rounding."""
        return all(side.outputs.holds for side in self.drafters)


@dataclass(frozen=True)
class Summary:
    """The whole benchmark: what was measured, on what, and whether its totals add up."""

    plan: Plan
    about: dict[str, Any]
    cells: list[CellSummary]
    problems: list[str]
    record: dict[str, Any]

    @property
    def holds(self) -> bool:
        """True if every drafter's outputs agree with plain ones and all totals add up."""
        return not self.problems and all(cell.holds for cell in self.cells)

    def as_dict(self) -> dict[str, Any]:
        """Return everything for JSON."""
        return {
            **self.about,
            "suite": self.plan.suite.name,
            "prompts": len(self.plan.suite.prompts),
            "max_tokens": self.plan.max_tokens,
            "holds": self.holds,
            "totals_reconcile": not self.problems,
            "problems": self.problems,
            "cells": [_cell_dict(cell) for cell in self.cells],
            "record": self.record,
        }


def summarise(bench: Bench) -> Summary:
    """Return the summary of what a bench has measured and judged."""
    runs: dict[Cell, dict[str, dict[Group, list[Run]]]] = {}
    for unit, found in bench.units():
        group = (unit["task"], tuple(unit["prompts"]))
        here = runs.setdefault(Cell(**unit["cell"]), {})
        for name, run in found.items():
            here.setdefault(name, {}).setdefault(group, []).append(run)
    said: dict[tuple[Cell, str], list[dict[str, Any]]] = {}
    for line in bench.results.lines:
        if "verdict" in line:
            key = (Cell(**line["verdict"]["cell"]), line["verdict"]["runner"])
            said.setdefault(key, []).append(line)
    cells = [_cell(bench, cell, sides, said) for cell, sides in runs.items()]
    base = bench.base
    about = {
        "model": base.model,
        "dtype": str(base.opened.dtype).removeprefix("torch."),
        "device": base.opened.device,
        "target": base.opened.kind,
        "verify": base.config.verify,
    }
    return Summary(bench.plan, about, cells, bench.problems(), bench.record)


def _cell(bench: Bench, cell: Cell, sides: dict[str, dict[Group, list[Run]]], said: dict[Any, Any]) -> CellSummary:
    made = {name: Side(name, runs, _outputs(said.get((cell, name), ()))) for name, runs in sides.items()}
    return CellSummary(
        cell,
        made[PLAIN],
        [made[name] for name in bench.plan.names if name in made],
        [made[name] for name in bench.plan.peers if name in made],
        bench.plan.suite.tasks,
        {name: ratio for (where, name), ratio in predictions(bench).items() if where == cell and ratio},
    )


def _outputs(lines: Iterable[dict[str, Any]]) -> Outputs:
    """Count prompts by their worst verdict: repeats may differ where the arithmetic is not deterministic."""
    worst: dict[str, int] = {}
    lines = list(lines)
    for line in lines:
        level = 0 if line["agreement"] == "identical" else (1 if line["holds"] else 2)
        name = line["verdict"]["prompt"]
        worst[name] = max(level, worst.get(name, 0))
    levels = list(worst.values())
    return Outputs(
        levels.count(0),
        levels.count(1),
        levels.count(2),
        max((line.get("gap", 0.0) for line in lines), default=0.0),
        max((line.get("tau", 0.0) for line in lines), default=0.0),
    )


def _cell_dict(found: CellSummary) -> dict[str, Any]:
    return {
        "temperature": found.cell.temperature,
        "batch": found.cell.batch,
        "plain": _side_dict(found, found.plain),
        "drafters": [_side_dict(found, side) for side in found.drafters],
        "peers": [_side_dict(found, side) for side in found.peers],
    }


def _side_dict(cell: CellSummary, side: Side) -> dict[str, Any]:
    wall = {"tokens_per_second_with_prefill": side.rate("wall"), "tokens": side.counts()["tokens"]}
    found: dict[str, Any] = {"name": side.name, "repeats": side.repeats, "peak_memory_bytes": side.memory, **wall}
    if not side.peer:
        found |= {
            "tokens_per_second": side.rate(),
            "mean_acceptance_length": side.acceptance_length(),
            "acceptance_by_position": side.acceptance(),
            **side.counts(),
            "seconds": side.seconds(),
        }
    if side.name == PLAIN:
        return found
    found |= {"outputs": asdict(side.outputs), "speed_up_with_prefill": _ratio_dict(cell.speed_up(side, "wall"))}
    if not side.peer:
        predicted = cell.predicted.get(side.name)
        found |= {"speed_up": _ratio_dict(cell.speed_up(side)), "predicted_speed_up": _ratio_dict(predicted)}
        found["by_task"] = {task: _ratio_dict(cell.speed_up(side, task=task)) for task in _present(cell, side)}
    return found


def _ratio_dict(ratio: Ratio | None) -> dict[str, float] | None:
    return asdict(ratio) if ratio else None


def _present(cell: CellSummary, side: Side) -> Sequence[str]:
    return [task for task in cell.tasks if side.times(task=task)]
