"""Statistics of emitted tokens: randomised PIT ordered by q/p, Kolmogorov-Smirnov, z-tests, power on recorded rows.

For a token y with law p let the vocabulary be ordered by q/p, highest first: U = p(before y) + V p(y), V uniform, is
uniform if y really has law p, whatever q is, since q is fixed before y is drawn. A rule that leans to the draft makes
small U too frequent. All functions are pure; the p-values are two-sided unless said otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Tester = Callable[[Array], list[float]]


def pit(p: Tensor, order: Tensor, y: Tensor, v: Tensor) -> Tensor:
    """Return U [R] of tokens y [R] under p [R, V]: larger `order` [R, V] first, then likelier, then lower ids.

    v [R] is uniform in [0, 1) and independent of everything else.
    """
    p = p.double()
    p = p / p.sum(1, keepdim=True)
    at = y[:, None]
    mine, own = order.gather(1, at), p.gather(1, at)
    ids = torch.arange(p.shape[1], device=p.device)
    tied = (order == mine) & ((p > own) | ((p == own) & (ids < at)))
    before = torch.where((order > mine) | tied, p, 0.0).sum(1)
    return (before + v * own[:, 0]).clamp(0.0, 1.0)


def lean(p: Tensor, q: Tensor) -> Tensor:
    """Return the order [R, V] in which the draft is favoured: q/p, 0 where p has nothing."""
    return torch.where(p > 0, q.double() / p.double().clamp(min=1e-300), 0.0)


def ks(u: Array) -> float:
    """Return the p-value of the largest gap between U and uniform (Kolmogorov, with Stephens' small-sample factor)."""
    n = len(u)
    if n == 0:
        return 1.0
    s = np.sort(u)
    steps = np.arange(n) / n
    d = float(max((s - steps).max(), (steps + 1 / n - s).max()))
    t = d * (math.sqrt(n) + 0.12 + 0.11 / math.sqrt(n))
    if t < 0.3:
        return 1.0
    return min(1.0, max(0.0, 2.0 * sum((-1) ** (k - 1) * math.exp(-2.0 * k * k * t * t) for k in range(1, 101))))


def curve(u: Array, points: int = 25) -> list[tuple[float, float]]:
    """Return sqrt(n) (share of U below x, minus x) for x from 0 to 1: what a page draws; KS is its largest height."""
    if not len(u):
        return []
    places = np.linspace(0.0, 1.0, points)
    below = np.searchsorted(np.sort(u), places, side="right") / len(u)
    return [(float(x), float(math.sqrt(len(u)) * (b - x))) for x, b in zip(places, below, strict=True)]


def mean_z(u: Array) -> float:
    """Return z of the mean of U: negative when emitted tokens lean to the draft."""
    return float((u.mean() - 0.5) * math.sqrt(12.0 * len(u))) if len(u) else 0.0


def serial_z(u: Array) -> float:
    """Return z of the correlation of U with its predecessor: reused random numbers show here."""
    if len(u) < 3:
        return 0.0
    w = u - 0.5
    return float(12.0 * (w[1:] * w[:-1]).sum() / math.sqrt(len(u) - 1))


def hits_z(hits: Array, mass: Array) -> float:
    """Return z of how often emitted tokens hit the fixed guesses, against the target's mass on them."""
    variance = float((mass * (1.0 - mass)).sum())
    return float((hits - mass).sum()) / math.sqrt(variance) if variance > 0 else 0.0


def hits_p(hits: Array, mass: Array) -> float:
    """Return the p-value of the hits: normal with enough variance, else the bound of Bernstein's inequality.

    A hit that the target gives nothing, or a miss where it gives everything, has p-value 0.
    """
    if len(hits) and bool(((hits > 0) & (mass <= 0)).any()):
        return 0.0
    variance, gap = float((mass * (1.0 - mass)).sum()), abs(float((hits - mass).sum()))
    if variance >= 25.0:
        return two_sided(hits_z(hits, mass))
    if gap < 1e-9:
        return 1.0
    return min(1.0, 2.0 * math.exp(-0.5 * gap * gap / (variance + gap / 3.0)))


def two_sided(z: float) -> float:
    """Return the p-value of a standard normal z."""
    return math.erfc(abs(z) / math.sqrt(2.0))


def binomial_p(hits: int, n: int, p: float) -> float:
    """Return a p-value of `hits` out of n coins of probability p: exact at 0 and 1, Chernoff's bound with few hits."""
    if p <= 0.0 or p >= 1.0:
        return 1.0 if hits == round(n * p) else 0.0
    if n * p * (1 - p) >= 400:
        return two_sided((hits - n * p) / math.sqrt(n * p * (1 - p)))
    f = hits / n
    parts = [a * math.log(a / b) for a, b in ((f, p), (1 - f, 1 - p)) if a > 0]
    return min(1.0, 2.0 * math.exp(-n * sum(parts)))


def reach(tester: Tester, draw: Callable[[float, np.random.Generator], Array], bias: float, seed: int = 0) -> float:
    """Return how often (0..1, 200 runs) the tests, after correction for their number, flag data drawn with `bias`."""
    from slipstream.measure.audit.findings import ALARM

    rng = np.random.default_rng(seed)
    found = 0
    for _ in range(200):
        values = tester(draw(bias, rng))
        found += min(values) <= ALARM / max(1, len(values))
    return found / 200
