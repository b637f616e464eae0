"""A network for growing trees whose law is known: its states are prefixes, and it checks what it is shown.

Every node must see its own ancestors among the scratch places of its row, and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from slipstream.drafters.growth import Growth, GrowthOptions
from slipstream.testing.toys import Law
from slipstream.types import Draft, Needs, Rngs
from slipstream.types import Sequence as Row


class ToyFeed:
    """`passes` counts network passes, `fed` the nodes run of each batch row."""

    def __init__(self, law: Law) -> None:
        self.law = law
        self.passes = 0
        self.broken: frozenset[tuple[int, ...]] = frozenset()  # prefixes after which the logits are NaN

    def begin(self, rows: Sequence[Row]) -> None:
        self.known = [tuple(row.tokens) for row in rows]
        self.roots = [len(row.tokens) for row in rows]
        self.places: list[list[tuple[int, ...]]] = [[] for _ in rows]
        self.fed = [0] * len(rows)

    def states(self, which: Sequence[int]) -> Tensor:
        return torch.tensor([[float(b)] for b in which], dtype=torch.float64)

    def step(
        self,
        which: Sequence[int],
        tokens: Tensor,
        states: Tensor,
        depth: int,
        seen: Sequence[Tensor | None] | None = None,
    ) -> Tensor:
        assert list(which) == sorted(which)
        assert seen is not None
        self.passes += 1
        new = []
        for b, token, state in zip(which, tokens.tolist(), states[:, 0].tolist(), strict=True):
            prefix = (*self.known[int(state)], token)
            assert len(prefix) == self.roots[b] + depth
            new.append(prefix)
            self.places[b].append(prefix)
            self.fed[b] += 1
        self._check(which, new, seen)
        self.known += new
        return torch.arange(len(self.known) - len(new), len(self.known), dtype=torch.float64)[:, None]

    def logits(self, states: Tensor) -> Tensor:
        prefixes = [self.known[int(i)] for i in states[:, 0].tolist()]
        rows = torch.tensor([self.law(s) for s in prefixes], dtype=torch.float64).log()
        rows[[s in self.broken for s in prefixes]] = torch.nan
        return rows

    def _check(self, which: Sequence[int], new: list[tuple[int, ...]], seen: Sequence[Tensor | None]) -> None:
        rows = list(dict.fromkeys(which))
        assert len(seen) == len(rows)
        for b, mask in zip(rows, seen, strict=True):
            assert mask is not None
            mine = [s for s, row in zip(new, which, strict=True) if row == b]
            assert mask.shape == (len(mine), len(self.places[b]))
            for prefix, marks in zip(mine, mask.tolist(), strict=True):
                visible = [s for s, on in zip(self.places[b], marks, strict=True) if on]
                assert visible == [prefix[:n] for n in range(self.roots[b] + 1, len(prefix) + 1)]


class GrowingToy:
    """The `Drafter` role over `Growth` and a known law."""

    name = "toy-growing"
    needs = Needs(tree=True)

    def __init__(self, law: Law, *, room: int = 99, **options: Any) -> None:
        self.feed = ToyFeed(law)
        self.growth = Growth(self.feed, self.feed.logits, GrowthOptions(**options), room=room)

    def propose(self, rows: list[Row], budget: list[int], rngs: Rngs) -> Draft:
        self.feed.begin(rows)
        return self.growth.grow(rows, budget, rngs)

    def observe(self, rows: list[Row], tokens: list[list[int]], taps: list[Mapping[int, Tensor]]) -> None:
        """Needs nothing: the law is a function of the row."""

    def forget(self, row: Row) -> None:
        """Keeps nothing."""
