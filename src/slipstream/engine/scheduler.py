"""Who decodes when: admission to rows of the target's cache, chunked prefill, leaving.

A request waits until a row is free, is prefilled up to its last prompt token (law 1) and then decodes until it ends.
Every row's capacity is reserved, so nothing is ever preempted.
"""

from __future__ import annotations

import time
from collections import deque

from slipstream.types import Drafter, Sequence, Status, Target


class Scheduler:
    """Keep the waiting line and the rows. `prefill_chunk` bounds prompt tokens per step while others are decoding."""

    def __init__(self, target: Target, drafter: Drafter, max_rows: int, prefill_chunk: int) -> None:
        self._target = target
        self._drafter = drafter
        self._chunk = prefill_chunk
        self._free = list(range(max_rows))[::-1]
        self.waiting: deque[Sequence] = deque()
        self.rows: list[Sequence] = []

    @property
    def idle(self) -> bool:
        """True when there is nothing to do."""
        return not self.rows and not self.waiting

    def add(self, row: Sequence) -> None:
        """Queue a request."""
        self.waiting.append(row)

    def plan(self) -> list[Sequence]:
        """Admit, prefill, and return the rows that decode in this round, in order of arrival."""
        while self._free and self.waiting:
            row = self.waiting.popleft()
            row.slot, row.status, row.cached = self._free.pop(), Status.PREFILL, 0
            self.rows.append(row)
        self._prefill()
        return [row for row in self.rows if row.status is Status.RUNNING]

    def leave(self, row: Sequence) -> None:
        """Free whatever the row holds; harmless when it holds nothing."""
        if row in self.waiting:
            self.waiting.remove(row)
        if row in self.rows:
            self.rows.remove(row)
            self._target.release(row.slot)
            self._drafter.forget(row)
            self._free.append(row.slot)
            row.slot = -1
        row.status = Status.FINISHED

    def _prefill(self) -> None:
        decoding = any(row.status is Status.RUNNING for row in self.rows)
        left = self._chunk if decoding else None
        for row in self.rows:
            if row.status is Status.PREFILL and left != 0:
                left = self._prefill_row(row, left)

    def _prefill_row(self, row: Sequence, left: int | None) -> int | None:
        start = time.perf_counter()
        stop = len(row.tokens) - 1 if left is None else min(len(row.tokens) - 1, row.cached + left)
        new = row.tokens[row.cached : stop]
        if new:
            try:
                taps = self._target.prefill(row.slot, new)
                self._drafter.observe([row], [new], [taps])
            except BaseException:
                self._back_to_line(row)
                raise
        row.cached = stop
        if row.cached == len(row.tokens) - 1:
            row.status = Status.RUNNING
        row.stats.prefill_seconds += time.perf_counter() - start
        return None if left is None else left - len(new)

    def _back_to_line(self, row: Sequence) -> None:
        """A failed prefill leaves the cache in an unknown state: empty it, and start again from the prompt."""
        self.leave(row)
        row.status, row.cached = Status.WAITING, 0
        self.waiting.appendleft(row)
