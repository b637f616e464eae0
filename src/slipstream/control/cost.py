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
CONTEXT = 64  # cached tokens behind the measured nodes
_CHUNK = 512  # prompt tokens fed at once
_BEFORE, _SETTLED = 4, 0.01  # passes of the same kind before the one that counts, or seconds of them


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


def measure(
    target: Target,
    *,
    points: Seq[int] = POINTS,
    seconds: float = 1.5,
    slot: int = 0,
    rows: int = 1,
    context: int = CONTEXT,
) -> CostTable:
    """Time passes over chains of each number of nodes per row the target can score, in turn, for about `seconds`.

    The `rows` slots from `slot` on must be empty, and are left so; each holds `context` tokens meanwhile. The table is
    by nodes in all. Each point is timed at least once, after a pass of the widest that is not counted. Points go up and
    down by turns, and short passes are timed behind others of their own kind, as they come in decoding: one node right
    after 32 may take half as long again, and the processor is itself again only some 20 ms later.
    """
    caps = target.caps
    points = [n for n in points if n <= caps.max_nodes and n + context <= caps.max_len]
    times: dict[int, list[float]] = {n: [] for n in points or [1]}
    slots = list(range(slot, slot + rows))
    try:
        for each in slots:
            _fill(target, each, min(context, caps.max_len - 2))
        drafts = {n: _chain(n, rows) for n in times}
        _timed(target, slots, drafts[max(drafts)])
        end = time.perf_counter() + seconds
        order = list(drafts.items())
        while True:
            order.reverse()  # begins with the widest, which has just been run
            for n, draft in order:
                times[n].append(_settled(target, slots, draft))
            if time.perf_counter() > end or len(times[min(times)]) >= 9:
                break
    finally:
        for each in slots:
            target.release(each)
    return CostTable({n * rows: statistics.median(found) for n, found in times.items()})


def _fill(target: Target, slot: int, tokens: int) -> None:
    for start in range(0, tokens, _CHUNK):
        target.prefill(slot, [0] * min(_CHUNK, tokens - start))


def _settled(target: Target, slots: list[int], draft: Draft) -> float:
    """Time the last of a few passes."""
    spent = last = _timed(target, slots, draft)
    for _ in range(_BEFORE):
        if spent >= _SETTLED:
            break
        last = _timed(target, slots, draft)
        spent += last
    return last


def _timed(target: Target, slots: list[int], draft: Draft) -> float:
    start = time.perf_counter()
    scores = target.score(slots, draft)
    if scores.logits.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - start


def _chain(nodes: int, rows: int = 1) -> Draft:
    zeros = torch.zeros(rows, nodes, dtype=torch.int64)
    parents = torch.arange(-1, nodes - 1).repeat(rows, 1)
    return Draft(zeros, parents, torch.full((rows,), nodes), zeros)
