"""From timings to numbers a person can quote: medians, their ratio with an interval, aligned tables.

Rates are tokens per second over a set of prompts: all tokens divided by the sum of the prompts' median seconds. The
interval is a percentile bootstrap that redraws prompts and, within a prompt, its repeats, so that it covers both the
noise of the machine and the choice of prompts. Pure Python, no I/O.
"""

from __future__ import annotations

import random
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True)
class Times:
    """One prompt: tokens generated, and the seconds of each repeat."""

    tokens: int
    seconds: list[float]


@dataclass(frozen=True)
class Ratio:
    """How many times faster, and a 95 % interval."""

    value: float
    low: float
    high: float

    def words(self) -> str:
        """Write the ratio with its interval."""
        return f"{self.value:.2f}x (95 %: {self.low:.2f}-{self.high:.2f})"


def rate(times: Seq[Times]) -> float:
    """Return tokens per second over these prompts, from each prompt's median seconds."""
    seconds = sum(median(t.seconds) for t in times)
    return sum(t.tokens for t in times) / seconds if seconds > 0 else 0.0


def speedup(plain: Seq[Times], drafted: Seq[Times], *, draws: int = 1000, seed: int = 0) -> Ratio:
    """Return rate(drafted) / rate(plain) with its bootstrap interval. Both list the same prompts in the same order."""
    if len(plain) != len(drafted) or not plain:
        raise ValueError(
            f"{len(plain)} plain and {len(drafted)} drafted prompts; a ratio needs the same ones, at least 1"
        )
    rng = random.Random(seed)
    ratios = sorted(_redrawn(plain, drafted, rng) for _ in range(draws))
    return Ratio(rate(drafted) / rate(plain), ratios[int(0.025 * draws)], ratios[int(0.975 * draws)])


def _redrawn(plain: Seq[Times], drafted: Seq[Times], rng: random.Random) -> float:
    chosen = rng.choices(range(len(plain)), k=len(plain))
    both = [[_resample(side[i], rng) for i in chosen] for side in (plain, drafted)]
    return rate(both[1]) / rate(both[0])


def _resample(times: Times, rng: random.Random) -> Times:
    return Times(times.tokens, rng.choices(times.seconds, k=len(times.seconds)))


def table(head: Seq[str], rows: Seq[Seq[str]]) -> str:
    """Return an aligned text table: the first column to the left, the others to the right, a rule under the head."""
    widths = [max(len(row[c]) for row in (head, *rows)) for c in range(len(head))]
    lines = [_line(head, widths), "  ".join("-" * w for w in widths)]
    return "\n".join([*lines, *(_line(row, widths) for row in rows)])


def _line(cells: Seq[str], widths: Seq[int]) -> str:
    rest = [cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True)]
    return "  ".join([cells[0].ljust(widths[0]), *rest]).rstrip()
