"""What a pass of the target costs on this machine, by the number of nodes it scores.

In: a target with a free slot. Out: a `CostTable`: seconds(nodes), the measured steps-per-second table that drafters
weigh a longer draft against. It says nothing about tokens, so using it keeps the output's law (law 4).
"""

from __future__ import annotations

import statistics
import time
from bisect import bisect_left
from collections.abc import Mapping
from collections.abc import Sequence as Seq

import torch

from slipstream.types import Draft, RequestError, Target

POINTS = (1, 2, 4, 8, 16, 32, 64)
_CONTEXT = 64  # cached tokens behind the measured nodes


class CostTable:
    """Seconds of one target pass over `nodes` nodes in all, roots included; straight lines between measured points.

    More nodes never cost less: a measured dip is noise, and would make a scheduler hold out for it.
    """

    def __init__(self, points: Mapping[int, float]) -> None:
        if not points or min(points) < 1 or min(points.values()) <= 0:
            raise RequestError(f"a cost table needs seconds above 0 for at least one number of nodes, not {points!r}")
        self.nodes = sorted(points)
        self.seconds: list[float] = []
        for n in self.nodes:
            self.seconds.append(max(points[n], self.seconds[-1] if self.seconds else 0.0))

    def __call__(self, nodes: int) -> float:
        """Return the seconds of a pass; beyond the last point the last slope goes on."""
        at = bisect_left(self.nodes, nodes)
        if at < len(self.nodes) and self.nodes[at] == nodes:
            return self.seconds[at]
        if at == 0:
            return self.seconds[0]
        at = min(at, len(self.nodes) - 1)
        if at == 0:
            return self.seconds[0]
        left, right = self.nodes[at - 1], self.nodes[at]
        share = (nodes - left) / (right - left)
        return self.seconds[at - 1] + share * (self.seconds[at] - self.seconds[at - 1])


def measure(target: Target, *, points: Seq[int] = POINTS, seconds: float = 1.5, slot: int = 0) -> CostTable:
    """Time passes over chains of each number of nodes the target can score, in turn, for about `seconds` in all.

    The slot must be empty, and is left so. Each point is timed at least once, after a pass that is not counted.
    """
    points = [n for n in points if n <= target.caps.max_nodes and n + _CONTEXT <= target.caps.max_len]
    times: dict[int, list[float]] = {n: [] for n in points or [1]}
    try:
        target.prefill(slot, [0] * min(_CONTEXT, target.caps.max_len - 2))
        drafts = {n: _chain(n) for n in times}
        for draft in drafts.values():
            _timed(target, slot, draft)
        end = time.perf_counter() + seconds
        while True:
            for n, draft in drafts.items():
                times[n].append(_timed(target, slot, draft))
            if time.perf_counter() > end or len(times[min(times)]) >= 9:
                break
    finally:
        target.release(slot)
    return CostTable({n: statistics.median(found) for n, found in times.items()})


def _timed(target: Target, slot: int, draft: Draft) -> float:
    start = time.perf_counter()
    scores = target.score([slot], draft)
    if scores.logits.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - start


def _chain(nodes: int) -> Draft:
    zeros = torch.zeros(1, nodes, dtype=torch.int64)
    parents = torch.arange(-1, nodes - 1)[None]
    return Draft(zeros, parents, torch.tensor([nodes]), zeros)
