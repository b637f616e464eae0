"""Recorded passes: the kernels of one size are recorded once and started together from then on (CUDA graphs).

In: a pass made of device operations over buffers that stay where they are. Out: its outputs, which the next replay of
the same recording overwrites. The host's own work during a recording is not repeated: nothing in a recorded pass may
depend on a value of the host. Recordings are kept by size, the longest unused dropped first. Knows no decoder.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor

Run: TypeAlias = Callable[[], list[Tensor]]

_WARM_UPS = 2  # libraries choose kernels and allocate workspaces in their first calls, which cannot be recorded


@dataclass(frozen=True)
class Recording:
    """What a recorded pass writes to, and how to run it again."""

    outputs: list[Tensor]
    replay: Callable[[], None]


class Recorder(Protocol):
    """Whoever can record a pass."""

    def record(self, run: Run) -> Recording:
        """Call `run`, maybe more than once, and return its recording; outputs are valid after `replay`."""


class CudaRecorder:
    """Record with CUDA graphs, all in one memory pool: only outputs that are alive take memory of their own."""

    def __init__(self) -> None:
        self._pool: Any = None

    def record(self, run: Run) -> Recording:
        """Warm up on a side stream, as graphs need, and record."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(_WARM_UPS):
                run()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        # what other threads do meanwhile is not recorded and does no harm
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            outputs = run()
        self._pool = graph.pool()
        return Recording(outputs, graph.replay)


class Recordings:
    """Recordings by key, at most `limit`."""

    def __init__(self, recorder: Recorder, limit: int = 48) -> None:
        self.recorder, self.limit = recorder, limit
        self.recorded = 0  # how often a pass had to be recorded
        self._kept: OrderedDict[Hashable, Recording] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def run(self, key: Hashable, run: Run) -> list[Tensor]:
        """Replay the recording of `key`, made from `run` when there is none; outputs hold until the next replay."""
        found = self._kept.get(key)
        if found is None:
            while len(self._kept) >= self.limit:
                self._kept.popitem(last=False)
            found = self._kept[key] = self.recorder.record(run)
            self.recorded += 1
        self._kept.move_to_end(key)
        found.replay()
        return found.outputs
