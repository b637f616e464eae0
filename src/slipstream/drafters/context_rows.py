"""What a block drafter's network knows of each row: which slot, and how much of the row's text is its context.

In: committed tokens with the target's features, many rows at once. Out: context in the network's cache, and the states
of the slots that draft. A row heard with a gap, or longer than the network's cache, is not drafted for; nothing is
drawn here.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass

import torch
from torch import Tensor

from slipstream.drafters.slots import Slots
from slipstream.nets.dflash import DFlashNet
from slipstream.nets.draft_layers import Segment
from slipstream.types import Sequence


@dataclass
class _Place:
    """A row's slot; `whole` until the row was heard with a gap."""

    slot: int
    whole: bool = True


class ContextRows:
    """One slot of the network for each row, from its first tokens until `forget`."""

    def __init__(self, net: DFlashNet, max_rows: int) -> None:
        self.net = net
        self.places = Slots(max_rows, _Place, f"{net.config.algorithm} drafter")

    def observe(self, rows: list[Sequence], tokens: list[list[int]], taps: list[Mapping[int, Tensor]]) -> None:
        """Feed what was committed, all rows in one pass."""
        fed: list[tuple[Segment, Mapping[int, Tensor]]] = []
        for row, new, felt in zip(rows, tokens, taps, strict=True):
            segment = self._next(row, new)
            if segment is not None:
                fed.append((segment, felt))
        if not fed:
            return
        needed = self.net.config.features.taps
        joined = {tap: torch.cat([felt[tap] for _, felt in fed]) for tap in needed}  # [R, Ht]
        self.net.context(joined, [segment for segment, _ in fed])

    def limits(self, rows: list[Sequence], budget: list[int], most: int | None = None) -> list[int]:
        """Return how many tokens to draft for each row, at most `most`, by default as many as a block drafts.

        None where the context does not end just before the root.
        """
        most = self.net.shape.drafts if most is None else most
        return [min(n, most) if n > 0 and self._ready(row) else 0 for row, n in zip(rows, budget, strict=True)]

    def block(self, rows: list[Sequence], depth: int, *, anchor: bool = False) -> Tensor:
        """Return the states that predict the next `depth` tokens of each row, root not counted -> [B, depth, H].

        `anchor`: the state of the anchor's slot in front of them, where that slot predicts nothing.
        """
        shape = self.net.shape
        first = 0 if shape.anchor_predicts else 1
        # where no slot sees a later one, those that nobody asked for change nothing
        size = first + depth if all(shape.causal) else shape.size
        anchors = torch.tensor([row.tokens[-1] for row in rows])
        states = self.net.block(anchors, [self.places[row.id].slot for row in rows], size)
        return states[:, 0 if anchor else first : first + depth]

    def forget(self, row: Sequence) -> None:
        """Empty the row's slot, for another to use."""
        place = self.places.drop(row)
        if place is not None:
            self.net.layers.keep(place.slot, 0)

    def _next(self, row: Sequence, tokens: Seq[int]) -> Segment | None:
        place = self.places.of(row)
        at = self.net.layers.length(place.slot)
        end = at + len(tokens)
        follows = end <= self.net.layers.cache.shape.max_len and row.tokens[at:end] == list(tokens)
        place.whole = place.whole and follows
        return Segment(place.slot, at, range(at, end)) if place.whole and end > at else None

    def _ready(self, row: Sequence) -> bool:
        place = self.places.of(row)
        return place.whole and self.net.layers.length(place.slot) == len(row.tokens) - 1
