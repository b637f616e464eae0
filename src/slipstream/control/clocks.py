"""Correct the cost profile by the clock: drafted rounds may be dearer, against plain ones, than was measured.

In: each round's seconds and what the profile says. Out: a factor for each drafter's rounds. Only rounds that follow
one another are compared, so that what slows all of them down, a busy machine, changes no choice. Where everything is
drafted, a plain round now and then (`due`) gives something to compare with.
"""

from __future__ import annotations

import math

_RECENT = 0.3
_JUMP = math.log(4.0)  # the most that one comparison may say
_LEAST, _MOST = math.log(0.5), math.log(4.0)
_TRUST, _WEIGHT = 3, 0.05  # comparisons that the profile counts for, and the least weight of a new one
_FIRST, _EVERY = 20, 100  # drafted rounds in a row


class Clocks:
    """Factors on the seconds of drafted rounds, relative to plain ones."""

    def __init__(self, arms: int) -> None:
        self._recent: dict[int, float] = {}  # log(seconds / profile) of the last rounds, by arm; -1: plain
        self._logs = [0.0] * arms
        self._found = [1.0] * arms
        self._compared = [0] * arms
        self._last: int | None = None
        self._drafted, self._limit = 0, _FIRST

    def scales(self) -> list[float]:
        """Return the factor of each arm."""
        return self._found

    def due(self) -> bool:
        """Say whether it is time for a plain round, to compare with."""
        return self._drafted >= self._limit

    def add(self, arm: int, seconds: float, expected: float) -> None:
        """Hear of a round: `arm` -1 is a plain one."""
        self._drafted = 0 if arm < 0 else self._drafted + 1
        self._limit = _EVERY if arm < 0 else self._limit
        if seconds <= 0.0 or expected <= 0.0:
            return
        off = math.log(seconds / expected)
        if self._last is not None and (arm < 0) != (self._last < 0):
            before = self._recent[self._last]
            self._compare(max(arm, self._last), off - before if arm >= 0 else before - off)
        # another kind of round in between: what was recent is no more
        stale = self._last != arm or arm not in self._recent
        self._recent[arm] = off if stale else self._recent[arm] + _RECENT * (off - self._recent[arm])
        self._last = arm

    def _compare(self, arm: int, off: float) -> None:
        off = max(-_JUMP, min(_JUMP, off - self._logs[arm]))
        weight = max(_WEIGHT, 1.0 / (self._compared[arm] + _TRUST))
        self._compared[arm] += 1
        self._logs[arm] = max(_LEAST, min(_MOST, self._logs[arm] + weight * off))
        self._found[arm] = math.exp(self._logs[arm])
