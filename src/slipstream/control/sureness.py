"""When a drafter that says how sure it is should stop: what its word has been worth, and what the next token costs.

In: the probability a drafter gave each token it drafted, and which of them stood. Out: whether another is worth its
time: A > lambda dT, with A the chance that all so far stand and the next ones do too. For greedy rows alone, whose
drafts may be ended by anything at all; lengths of drawn drafts are decided before the first draw (law 4).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from collections.abc import Sequence as Seq

from slipstream.types import Sequence

GoOn = Callable[[Sequence, Seq[float]], bool]  # (row, probabilities of its drafted tokens so far) -> draft another
Steer = Callable[[GoOn | None], None]

_CLASSES = (0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.97)
_WEIGHT, _DECAY = 4.0, 0.99


class Sureness:
    """How often a drafter's tokens stand, by the probability it gave them. At first it is taken at its word."""

    def __init__(self) -> None:
        self._hits = [0.0] * (len(_CLASSES) + 1)
        self._seen = [0.0] * (len(_CLASSES) + 1)
        self._mean, self._count = 2.0, 4.0

    def chance(self, sure: float) -> float:
        """Return the chance that a token stands which the drafter gave this probability."""
        at = bisect_right(_CLASSES, sure)
        return (self._hits[at] + _WEIGHT * sure) / (self._seen[at] + _WEIGHT)

    @property
    def next(self) -> float:
        """The chance that a token stands of which nothing is known yet."""
        return self._mean / self._count

    def add(self, sure: Seq[float], values: Seq[float]) -> None:
        """Count drafted tokens that were reached: the probability of each, and whether it stood."""
        for each, value in zip(sure, values, strict=False):
            at = bisect_right(_CLASSES, each)
            self._hits[at] = self._hits[at] * _DECAY + value
            self._seen[at] = self._seen[at] * _DECAY + 1.0
            self._mean = self._mean * _DECAY + value
            self._count = self._count * _DECAY + 1.0

    def pays(self, sure: Seq[float], seconds: Seq[float], rate: float) -> bool:
        """Say whether a draft should go on: `seconds[k]` is a round's time with k tokens more than there are now.

        `rate` is in tokens per second. All lengths ahead are tried, for a step in the costs may hide what pays.
        """
        chance = 1.0
        for each in sure:
            chance *= self.chance(each)
        gained, following = 0.0, self.next
        for time in seconds[1:]:
            chance *= following
            gained += chance
            if gained > rate * (time - seconds[0]):
                return True
        return False
