"""Exact laws of unmodified code: a source of randomness that visits every branch instead of drawing one.

A `Trace` is one sequence's list of choices; `TraceRngs` is the `Rngs` role on top of it; `enumerate_traces` runs code
until all branches have been seen and returns the probability of every result. It finds wrong laws to rounding error;
it cannot see reused random numbers or floating point.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from collections.abc import Sequence as Seq
from typing import TypeVar

import torch
from torch import Tensor

from slipstream.types import Sequence

R = TypeVar("R", bound=Hashable)
Point = tuple[float, float]

# E / sum(E) of three exponentials is uniform on the simplex; a point of it is written by its first two coordinates
_SIMPLEX: tuple[Point, ...] = ((0.0, 0.0), (1.0, 0.0), (0.0, 1.0))


class Trace:
    """One run's choices: it follows `script` and, where that ends, takes the first branch of every choice."""

    def __init__(self, script: Seq[int] = ()) -> None:
        self.script = list(script)
        self.taken: list[int] = []
        self.branches: list[int] = []
        self.weight = 1.0
        self._noise: dict[int, tuple[Point, ...]] = {}

    def choose(self, weights: Seq[float]) -> int:
        """Branch over the positive weights; return the index of this run's one and multiply its share in."""
        live = [i for i, w in enumerate(weights) if w > 0]
        if not live:
            raise ValueError(f"nothing to draw from: no positive weight among {list(weights)}")
        at = len(self.taken)
        branch = self.script[at] if at < len(self.script) else 0
        self.taken.append(branch)
        self.branches.append(len(live))
        self.weight *= weights[live[branch]] / sum(weights)
        return live[branch]

    def race(self, weights: Seq[float], position: int) -> int:
        """Draw with the noise of an absolute position: the index i of the smallest E_i / w_i, E standard exponentials.

        All races of a position share one noise. What is known of it is a convex part of the simplex; a branch cuts it
        with the half-planes E_i w_v <= E_v w_i, and its share is the ratio of the areas.
        """
        if len(weights) > 3:
            raise ValueError(f"shared noise is enumerated for at most 3 tokens, got {len(weights)}")
        known = self._noise.get(position, _SIMPLEX)
        parts = [_winners(known, weights, i) for i in range(len(weights))]
        areas = [_area(part) for part in parts]
        floor = 1e-13 * max(areas)  # slivers of rounding along a shared border are not branches
        chosen = self.choose([area if area > floor else 0.0 for area in areas])
        self._noise[position] = parts[chosen]
        return chosen

    def others(self) -> list[list[int]]:
        """Return the scripts of the branches passed by beyond the script this run was given."""
        start = len(self.script)
        found = []
        for at in range(start, len(self.taken)):
            found += [[*self.taken[:at], branch] for branch in range(1, self.branches[at])]
        return found


class TraceRngs:
    """`Rngs` over traces, one per row (the same trace twice gives the joint law of both rows).

    `committed[b]` is the length of row b before the round; with `shared_noise` drafts use their position's noise.
    """

    def __init__(self, traces: Seq[Trace], committed: Seq[int] = (), *, shared_noise: bool = False) -> None:
        self.traces = list(traces)
        self.committed = list(committed) or [0] * len(self.traces)
        self.shared_noise = shared_noise

    def draft(self, w: Tensor, depth: int, active: Tensor | None = None) -> Tensor:
        """Branch over the drafted token at `depth` from w [B, V] -> [B]."""
        return self.shared(w, depth, active) if self.shared_noise else self._draw(w, active)

    def draft_nodes(self, w: Tensor, depth: int, owners: Seq[int]) -> Tensor:
        """Branch over the token of each node at `depth` from w [R, V] -> [R], in the traces of rows `owners`."""
        drawn = []
        for row, b in zip(w.tolist(), owners, strict=True):
            trace, position = self.traces[b], self.committed[b] + depth - 1
            drawn.append(trace.race(row, position) if self.shared_noise else trace.choose(row))
        return torch.tensor(drawn, dtype=torch.int64)

    def accept(self, a: Tensor, active: Tensor | None = None) -> Tensor:
        """Branch over coins a [B] or [B, K] -> bool."""
        rows = a.reshape(len(a), -1).tolist()
        coins = [[False] * len(row) for row in rows]
        for b in self._rows(active):
            coins[b] = [self._flip(self.traces[b], value) for value in rows[b]]
        return torch.tensor(coins, dtype=torch.bool).reshape(a.shape)

    def correct(self, w: Tensor, active: Tensor | None = None) -> Tensor:
        """Branch over the token after the accepted ones from w [B, V] -> [B]."""
        return self._draw(w, active)

    def shared(self, w: Tensor, depth: int, active: Tensor | None = None) -> Tensor:
        """Branch over the token at `depth` with its position's noise from w [B, V] -> [B]."""
        rows, out = w.tolist(), [0] * len(w)
        for b in self._rows(active):
            out[b] = self.traces[b].race(rows[b], self.committed[b] + depth - 1)
        return torch.tensor(out)

    def _draw(self, w: Tensor, active: Tensor | None) -> Tensor:
        rows, out = w.tolist(), [0] * len(w)
        for b in self._rows(active):
            out[b] = self.traces[b].choose(rows[b])
        return torch.tensor(out)

    def _rows(self, active: Tensor | None) -> list[int]:
        if active is None:
            return list(range(len(self.traces)))
        return [b for b, on in enumerate(active.tolist()) if on]

    @staticmethod
    def _flip(trace: Trace, a: float) -> bool:
        if not 0.0 <= a <= 1.0:
            raise ValueError(f"a coin has probability {a}; it must be within 0..1")
        return a == 1.0 or (a > 0.0 and trace.choose((1.0 - a, a)) == 1)


class TraceFactory:
    """Make a round's `TraceRngs` from the running rows: what the engine takes as `make_rngs`."""

    def __init__(self, traces: Seq[Trace], *, shared_noise: bool = False) -> None:
        """Give sequence id i the i-th trace."""
        self.traces = list(traces)
        self.shared_noise = shared_noise

    def __call__(self, rows: list[Sequence]) -> TraceRngs:
        """Return the randomness of one round of `rows`."""
        traces = [self.traces[row.id] for row in rows]
        return TraceRngs(traces, [len(row.tokens) for row in rows], shared_noise=self.shared_noise)


def enumerate_traces(run: Callable[[list[Trace]], Seq[R]], width: int = 1) -> dict[R, float]:
    """Return the exact law of `run`, which is given up to `width` traces and returns one result for each.

    Branches are independent runs, so `width` of them may share a batch; the law must not depend on it.
    """
    law: dict[R, float] = {}
    waiting: list[list[int]] = [[]]
    while waiting:
        batch, waiting = waiting[-width:], waiting[:-width]
        traces = [Trace(script) for script in batch]
        for trace, result in zip(traces, run(traces), strict=True):
            law[result] = law.get(result, 0.0) + trace.weight
            waiting += trace.others()
    return law


def _winners(part: Seq[Point], weights: Seq[float], i: int) -> tuple[Point, ...]:
    """Cut `part` to where i wins the race. Two tokens race as three, the third of weight 0."""
    w = [*weights, 0.0, 0.0][:3]
    if w[i] <= 0:
        return ()
    for v in range(3):
        if v != i and w[v] > 0:
            part = _clip(part, i, v, w)
    return tuple(part)


def _clip(part: Seq[Point], i: int, v: int, w: Seq[float]) -> list[Point]:
    """Keep the points with E_i w_v <= E_v w_i."""
    kept: list[Point] = []
    for at, point in enumerate(part):
        before = part[at - 1]
        ahead, behind = _lead(point, i, v, w), _lead(before, i, v, w)
        if (ahead > 0) != (behind > 0) and ahead != behind:
            t = behind / (behind - ahead)
            kept.append((before[0] + t * (point[0] - before[0]), before[1] + t * (point[1] - before[1])))
        if ahead > 0:
            kept.append(point)
    return kept


def _lead(point: Point, i: int, v: int, w: Seq[float]) -> float:
    noise = (point[0], point[1], 1.0 - point[0] - point[1])
    return noise[v] * w[i] - noise[i] * w[v]


def _area(part: Seq[Point]) -> float:
    if len(part) < 3:
        return 0.0
    twice = sum(
        part[i - 1][0] * part[i][1] - part[i][0] * part[i - 1][1] for i in range(len(part))
    )  # fmt: skip
    return abs(twice) / 2
