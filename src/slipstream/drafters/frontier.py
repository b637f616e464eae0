"""The nodes of a growing tree that a network has run, level by level: their states, and which of them each one sees.

In: the nodes to run next, ragged over the rows of a batch. Out: the network's logits after them. One pass a level for
all rows; which nodes are worth a pass is decided by whoever grows the tree.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor


class Feed(Protocol):
    """The part of `feature_rows.FeatureRows` that a tree needs."""

    def states(self, which: Seq[int]) -> Tensor:
        """States [n, H] of the batch rows `which`, of which the logits at depth 1 are computed."""

    def step(
        self, which: Seq[int], tokens: Tensor, states: Tensor, depth: int, seen: Seq[Tensor | None] | None = None
    ) -> Tensor:
        """Run tokens at `depth` with their parents' states -> their states [n, H]."""


@dataclass(frozen=True)
class Level:
    """Nodes at one depth of B rows, those not `ok` being padding. `scores` are log-probabilities of paths.

    `at` is a node's place in whatever it is collected in; `home` says which row of the last states its parent has.
    """

    tokens: Tensor  # [B, F]
    scores: Tensor  # [B, F] float64
    at: Tensor  # [B, F]
    home: Tensor  # [B, F]
    ok: Tensor  # [B, F] bool

    def best(self, width: int) -> Level:
        """Return the `width` best nodes of each row, best first, ties by place."""
        order = self.scores.masked_fill(~self.ok, -torch.inf).sort(dim=1, descending=True, stable=True).indices
        order = order[:, : max(0, width)]
        return Level(*(part.gather(1, order) for part in vars(self).values()))

    def within(self, room: Tensor) -> Level:
        """Leave the first `room` [B] nodes of each row."""
        at = torch.arange(self.ok.shape[1], device=self.ok.device)
        return replace(self, ok=self.ok & (at < room.to(at.device)[:, None]))


class Frontier:
    """The last level run for the batch rows `which`."""

    def __init__(self, feed: Feed, logits: Callable[[Tensor], Tensor], which: Seq[int]) -> None:
        self._feed, self._logits, self.which = feed, logits, list(which)
        self.states = feed.states(self.which)
        self._begin = list(range(len(self.which)))  # where each row's states begin
        self._seen: list[Tensor | None] = [None] * len(self.which)  # [nodes of the last level, places so far]

    def roots(self) -> Tensor:
        """Return the logits [B, V] at depth 1."""
        return self._logits(self.states)

    def step(self, level: Level, depth: int) -> tuple[Tensor, Tensor]:
        """Run the nodes that are `ok` -> logits [n, V], in order of row and place; and where each one is, [B, F]."""
        b, f = level.ok.nonzero(as_tuple=True)
        rows = b.tolist()
        home = level.home[b, f]
        counts = level.ok.sum(1).tolist()
        seen, begin = [], 0
        for row, n in enumerate(counts):
            if n:
                seen.append(self._look(row, home[begin : begin + n].cpu()))
            self._begin[row] = begin
            begin += n
        tokens = level.tokens[b, f]
        which = [self.which[row] for row in rows]
        self.states = self._feed.step(which, tokens.to(self.states.device), self.states[home], depth, seen)
        where = torch.full_like(level.at, -1)
        where[b, f] = torch.arange(len(rows), device=where.device)
        return self._logits(self.states), where

    def _look(self, row: int, home: Tensor) -> Tensor:
        """Return what the new nodes of a row see of its scratch places: what their parents saw, and themselves."""
        own = torch.eye(len(home), dtype=torch.bool)
        before = self._seen[row]
        seen = own if before is None else torch.cat([before[home - self._begin[row]], own], 1)
        self._seen[row] = seen
        return seen
