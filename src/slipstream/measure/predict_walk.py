"""From texts and timings to a predicted speed-up with an interval. Arrays in, a `Prediction` out; no model here.

A `Walk` says, for each place of a text where a round could start, how likely it keeps 1, 2, .. drafted tokens. Rounds
follow one another (a round that emits n tokens is followed by one n places on), so the expected number of rounds that
start at each place follows exactly, place by place: nothing is assumed to be independent of position or of the past.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from slipstream.measure.predict import Point, Prediction, prediction

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

DRAWS = 1000
DRIFT = 0.02  # between two runs on one machine, speeds differ by about this much however often each was timed

# Student's t at 95 %, by degrees of freedom: what a 90 % interval from few texts needs instead of 1.645
_T95: tuple[float, ...] = (6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812)
_T95 += (1.796, 1.782, 1.771, 1.761, 1.753, 1.746, 1.740, 1.734, 1.729, 1.725)


@dataclass(frozen=True)
class Walk:
    """One text of T tokens. `survival[t, k]` is the probability that a round starting before token t keeps at least
    k + 1 drafted tokens, 0 beyond what is drafted; `drafted[t]` is how many the drafter offers there, G at most."""

    survival: Array  # [T, G]
    drafted: Array  # [T]

    def at(self, length: int) -> Walk:
        """Return the walk of a drafter that drafts at most `length` tokens."""
        return Walk(self.survival[:, :length], np.minimum(self.drafted, length))


@dataclass(frozen=True)
class Profile:
    """Seconds of rounds on this machine, timed in cycles: each cycle times every size once, so that drift hits all.

    `sizes` are drafted tokens, the first 0. `rounds` [C, S] is all but drafting, `drafts` [C, S] is the drafting.
    """

    sizes: list[int]
    rounds: Array
    drafts: Array

    def costs(self, longest: int) -> Array:
        """Return the cost of rounds that draft 0..longest tokens, in plain rounds -> [longest + 1]."""
        return self._costs(np.arange(len(self.rounds))[None], longest)[0]

    def redrawn(self, longest: int, draws: int, seed: int) -> Array:
        """Return costs as they would be had other cycles been timed, `draws` times -> [draws, longest + 1]."""
        cycles = len(self.rounds)
        return self._costs(np.random.default_rng(seed).integers(cycles, size=(draws, cycles)), longest)

    def _costs(self, chosen: Array, longest: int) -> Array:
        base = np.median(self.rounds[chosen], axis=1)  # [R, S]
        total = base + np.median(self.drafts[chosen], axis=1)
        between = [np.interp(np.arange(longest + 1), self.sizes, unit) for unit in np.eye(len(self.sizes))]
        return np.asarray(total @ np.stack(between) / base[:, :1])

    @property
    def plain_seconds(self) -> float:
        """Seconds of a plain round."""
        return float(np.median(self.rounds[:, 0]))


def starts(walk: Walk) -> Array:
    """Return the expected number of rounds that start before each token -> [T]."""
    count, width = walk.survival.shape
    upto = np.concatenate([np.ones((count, 1)), walk.survival, np.zeros((count, 1))], axis=1)
    exactly = upto[:, :-1] - upto[:, 1:]  # [T, G + 1]: the round keeps exactly k
    begun = np.zeros(count + width + 1)
    begun[0] = 1.0
    for t in range(count):
        begun[t + 1 : t + 2 + width] += begun[t] * exactly[t]
    return np.asarray(begun[:count])


def round_counts(walk: Walk) -> Array:
    """Return the expected number of rounds that draft 0, 1, .. G tokens -> [G + 1]."""
    return np.bincount(walk.drafted, weights=starts(walk), minlength=walk.survival.shape[1] + 1)


def mean_survival(walks: Seq[Walk]) -> list[float]:
    """Return A_1..A_G: the share of rounds, over all walks, that keep at least k tokens."""
    begun = [starts(walk) for walk in walks]
    kept = sum(b @ walk.survival for b, walk in zip(begun, walks, strict=True))
    return [float(a) for a in np.asarray(kept) / max(sum(b.sum() for b in begun), 1e-12)]


def predict_walks(
    walks: Seq[Walk],
    profile: Profile,
    draft_tokens: int | None = None,
    *,
    seed: int = 0,
    drift: float = DRIFT,
    detail: dict[str, Any] | None = None,
) -> Prediction:
    """Predict for texts like these: every draft length up to the walks' G, each with a 90 % interval.

    The interval is for the speed-up on texts like these, on this machine: it redraws texts and timing cycles. One text
    alone says nothing about others: then it covers the timings only.
    """
    longest = walks[0].survival.shape[1]
    tokens = np.array([len(walk.drafted) for walk in walks], dtype=float)
    counts = np.stack([_padded(walks, g, longest) for g in range(longest + 1)])  # [G + 1, W, G + 1]
    costs = profile.costs(longest)
    spread = _spread(tokens, counts, profile.redrawn(longest, DRAWS, seed), drift, seed)
    curve = []
    for g in range(longest + 1):
        rounds = counts[g].sum(0)
        speed = float(tokens.sum() / (rounds @ costs))
        width = math.exp(spread[g]) if g else 1.0
        per_round = float(tokens.sum() / rounds.sum())
        if g == 0:  # a draft length of 0 turns the drafter off: not even its bookkeeping is left
            speed = 1.0
        curve.append(Point(g, per_round, per_round / speed, speed, speed / width, speed * width))
    cost: Callable[[int], float] = lambda g: float(costs[g])  # noqa: E731
    return prediction(curve, draft_tokens, cost, mean_survival(walks), detail)


def _padded(walks: Seq[Walk], length: int, longest: int) -> Array:
    rows = [round_counts(walk.at(length)) for walk in walks]
    return np.stack([np.pad(row, (0, longest + 1 - len(row))) for row in rows])


def _spread(tokens: Array, counts: Array, costs: Array, drift: float, seed: int) -> Array:
    """Return the half-width of each length's interval, in log(speed-up) -> [G + 1]."""
    rng = np.random.default_rng(seed + 1)
    texts = len(tokens)
    chosen = rng.integers(texts, size=(DRAWS, texts))
    weights = np.stack([np.bincount(row, minlength=texts) for row in chosen]).astype(float)  # [R, W]
    seconds = counts @ costs.mean(0)  # [G + 1, W]
    by_text = np.log((weights @ tokens)[:, None] / (weights @ seconds.T))  # [R, G + 1]
    by_time = np.log(np.einsum("gd,rd->rg", counts.sum(1), costs))
    small = texts / (texts - 1) if texts > 1 else 1.0
    # the bootstrap's variance of n texts is (n - 1) / n of the real one
    variance = small * by_text.var(0) + by_time.var(0)
    quantile = _T95[texts - 2] if 2 <= texts <= len(_T95) + 1 else 1.645
    return np.asarray(np.sqrt(quantile**2 * variance + (1.645 * drift) ** 2))
