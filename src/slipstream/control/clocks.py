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
_MANY = 64  # rounds that may wait to be counted
_NEVER = -2  # no arm, and not plain


class Clocks:
    """Factors on the seconds of drafted rounds, relative to plain ones."""

    def __init__(self, arms: int) -> None:
        self._last, self._recent = _NEVER, 0.0  # arm of the last rounds (-1: plain), and their log(seconds / profile)
        self._later: list[float] = []  # seconds / profile of rounds like the last that are not in `_recent` yet
        self._logs = [0.0] * arms
        self._found = [1.0] * arms
        self._compared = [0] * arms
        self._drafted, self._limit = 0, _FIRST

    def scales(self) -> list[float]:
        """Return the factor of each arm."""
        return self._found

    def due(self) -> bool:
        """Say whether it is time for a plain round, to compare with."""
        return self._drafted >= self._limit

    def add(self, arm: int, seconds: float, expected: float) -> None:
        """Hear of a round: `arm` -1 is a plain one."""
        if arm < 0:
            self._drafted, self._limit = 0, _EVERY
        else:
            self._drafted += 1
        if seconds <= 0.0 or expected <= 0.0:
            return
        if arm == self._last:
            self._later.append(seconds / expected)
            if len(self._later) >= _MANY:
                self._catch_up()
            return
        self._catch_up()
        off = math.log(seconds / expected)
        if self._last != _NEVER and (arm < 0) != (self._last < 0):
            self._compare(max(arm, self._last), off - self._recent if arm >= 0 else self._recent - off)
        # another kind of round: what was recent is no more
        self._last, self._recent = arm, off

    def _catch_up(self) -> None:
        # once a round each logarithm is dear: what it needs is no longer in the caches when the target's pass is over
        for ratio in self._later:
            self._recent += _RECENT * (math.log(ratio) - self._recent)
        self._later.clear()

    def _compare(self, arm: int, off: float) -> None:
        off = max(-_JUMP, min(_JUMP, off - self._logs[arm]))
        weight = max(_WEIGHT, 1.0 / (self._compared[arm] + _TRUST))
        self._compared[arm] += 1
        self._logs[arm] = max(_LEAST, min(_MOST, self._logs[arm] + weight * off))
        self._found[arm] = math.exp(self._logs[arm])
