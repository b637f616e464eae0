"""Compare two readings on the same places of the same texts. Pure numbers, no model.

In: accepted lengths [texts, places], -1 where a text has no such place. Neighbouring places share most of their text,
so runs of `RUN` places are the units of the sign test and of the interval, not single ones.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

RUN = 4
ALARM = 0.01  # over all readings tried
LEAST_GAIN = 0.05  # tokens per draft, and the same share of what the file's own reading has

Array = NDArray[np.int64]


@dataclass(frozen=True)
class Share:
    """A share of places and its 95 % interval (Wilson)."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Comparison:
    """Another reading against the file's own: mean gain in accepted tokens, and how sure its sign is (two-sided)."""

    gain: float
    better_runs: int
    worse_runs: int
    p_value: float

    def clear(self, own: float, tried: int) -> bool:
        """Say whether the gain is beyond chance among `tried` readings and worth changing a file for."""
        return self.gain >= LEAST_GAIN * max(1.0, own) and self.p_value * max(1, tried) <= ALARM


def first_share(lengths: Array) -> Share:
    """Return the share of places whose first drafted token was the target's."""
    kept = lengths[lengths >= 0]
    return wilson(int((kept > 0).sum()), len(kept))


def mean_length(lengths: Array) -> float:
    """Return the mean number of drafted tokens accepted."""
    kept = lengths[lengths >= 0]
    return float(kept.mean()) if len(kept) else 0.0


def compare(own: Array, other: Array) -> Comparison:
    """Compare accepted lengths of two readings, place by place."""
    both = (own >= 0) & (other >= 0)
    if not both.any():
        return Comparison(0.0, 0, 0, 1.0)
    sums = np.concatenate([_runs((b - a)[m]) for a, b, m in zip(own, other, both, strict=True)])
    better, worse = int((sums > 0).sum()), int((sums < 0).sum())
    return Comparison(float((other - own)[both].mean()), better, worse, sign_test(better, worse))


def sign_test(better: int, worse: int) -> float:
    """Return the two-sided p-value of a fair coin showing so uneven a split."""
    n, k = better + worse, min(better, worse)
    tail = sum(math.comb(n, i) for i in range(k + 1)) / 2**n
    return min(1.0, 2 * tail)


def wilson(hits: int, count: int) -> Share:
    """Return hits / count with its 95 % interval."""
    if count == 0:
        return Share(0.0, 0.0, 1.0)
    z, p = 1.96, hits / count
    middle, spread = p + z * z / (2 * count), z * math.sqrt(p * (1 - p) / count + (z / (2 * count)) ** 2)
    scale = 1 + z * z / count
    return Share(p, max(0.0, (middle - spread) / scale), min(1.0, (middle + spread) / scale))


def _runs(differences: Array) -> Array:
    starts = range(0, len(differences), RUN)
    return np.array([differences[k : k + RUN].sum() for k in starts], dtype=np.int64)
