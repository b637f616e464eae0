"""Score drafts that were looked at and perhaps not used, against the text that came out (2510.20064).

In: what a drafter would have drafted, and then each round's verdict. Out: values by position, as of a draft that was
used: soft ones where the target's law is at hand. A drafter has one such draft at a time; the next begins where it
was refuted or used up, as rounds would. No target pass and no exploration is spent on it.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

import torch


@dataclass
class Shadow:
    """A draft under way: its tokens, how sure the drafter was, and how many of them have come out."""

    tokens: list[int]
    strength: int
    stood: int = 0


@dataclass
class Shadows:
    """The drafts of one row, by drafter."""

    under_way: dict[int, Shadow] = field(default_factory=dict)

    def propose(self, arm: int, strength: int, tokens: list[int]) -> None:
        """Hear what a drafter would draft now; kept unless an earlier draft of it is still standing."""
        if tokens and arm not in self.under_way:
            self.under_way[arm] = Shadow(tokens, strength)

    def hear(self, emitted: Seq[int], rows: torch.Tensor | None) -> Iterator[tuple[int, int, int, list[float]]]:
        """Take a round's tokens, and the laws they came from [len(emitted), V] (None: point masses).

        Yields (arm, strength, position of the first value, values) of each draft.
        """
        for arm in list(self.under_way):
            shadow = self.under_way[arm]
            start, guesses = shadow.stood, shadow.tokens[shadow.stood : shadow.stood + len(emitted)]
            values: list[float] = []
            for guess, token in zip(guesses, emitted, strict=False):
                values.append(float(guess == token))
                if guess != token:
                    break
            shadow.stood += int(sum(values))
            if shadow.stood == len(shadow.tokens) or 0.0 in values:
                del self.under_way[arm]
            if rows is not None:
                values = _chances(rows, guesses[: len(values)])
            yield arm, shadow.strength, start, values


def _chances(rows: torch.Tensor, guesses: Seq[int]) -> list[float]:
    ids = torch.tensor(guesses, dtype=torch.int64, device=rows.device)
    found: list[float] = rows[: len(guesses)].gather(1, ids[:, None])[:, 0].tolist()
    return [min(1.0, max(0.0, v)) if v == v else 0.0 for v in found]
