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

from slipstream.devices import listed
from slipstream.types import Draft, Verdict


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

    def hear(
        self, emitted: Seq[int], laws: torch.Tensor | None, nodes: Seq[int]
    ) -> Iterator[tuple[int, int, int, list[float]]]:
        """Take a round's tokens, the row's laws [N, V] (None: point masses), and the node whose law each came from.

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
            if laws is not None:
                values = _chances(laws, nodes[: len(values)], guesses[: len(values)])
            yield arm, shadow.strength, start, values


def emitted(draft: Draft, verdict: Verdict) -> tuple[list[list[int]], list[list[int]]]:
    """Return for each row the tokens that came out, and the node whose law each came from."""
    after = listed(verdict.next_token)
    if draft.nodes == 1:
        return [[token] for token in after], [[0] for _ in after]
    ids, accepted = listed(draft.tokens), listed(verdict.accepted)
    paths = [path[:n] for path, n in zip(listed(verdict.path), accepted, strict=True)]
    tokens = [[*(own[i] for i in path), token] for own, path, token in zip(ids, paths, after, strict=True)]
    return tokens, [[0, *path] for path in paths]


def _chances(laws: torch.Tensor, nodes: Seq[int], guesses: Seq[int]) -> list[float]:
    """Read what each node's law gives its guess: few numbers of long rows, mostly a single one."""
    if len(guesses) == 1:
        found = [laws[nodes[0], guesses[0]].item()]
    else:
        at = torch.tensor([nodes, guesses], device=laws.device)
        found = laws[at[0], at[1]].tolist()
    return [min(1.0, max(0.0, v)) if v == v else 0.0 for v in found]
