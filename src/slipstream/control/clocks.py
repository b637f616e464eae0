"""Correct the cost profile by the clock: drafted rounds may be dearer, against plain ones, than was measured.

In: each round's seconds and what the profile says. Out: a factor for each drafter's rounds. What slows all rounds down
alike, a busy machine, changes no choice and is kept out of the factors; one slow round cannot change much.
"""

from __future__ import annotations

import math

_FAST, _SLOW = 0.1, 0.03
_JUMP = 0.5  # the most one round may say, in log-seconds
_LEAST, _MOST = 0.5, 3.0


class Clocks:
    """Factors on the seconds of drafted rounds, relative to plain ones."""

    def __init__(self, arms: int) -> None:
        self._logs = [0.0] * arms  # of drafted rounds against plain ones
        self._common = 0.0  # of all rounds against the profile
        self._rounds = 0
        self._found = [1.0] * arms

    def scales(self) -> list[float]:
        """Return the factor of each arm."""
        return self._found

    def add(self, arm: int, seconds: float, expected: float) -> None:
        """Hear of a round: `arm` -1 is a plain one."""
        if seconds <= 0.0 or expected <= 0.0:
            return
        off = math.log(seconds / expected)
        if self._rounds == 0:
            self._common = off
        self._rounds += 1
        off -= self._common + (self._logs[arm] if arm >= 0 else 0.0)
        off = max(-_JUMP, min(_JUMP, off))
        self._common += _FAST * off
        if arm >= 0:
            self._logs[arm] = max(math.log(_LEAST), min(math.log(_MOST), self._logs[arm] + _SLOW * off))
            self._found[arm] = math.exp(self._logs[arm])
