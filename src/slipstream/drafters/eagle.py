"""Draft with an EAGLE-type network, as a chain or as a dynamic tree (2401.15077, 2406.16858, 2503.01840).

In: committed tokens with the target's features there. Out: a draft whose first token is read from the last fed row and
whose later ones come from the network's own states. Rows are fed when the target has seen their token, so `propose`
writes scratch only. Which features, which vocabulary and what a state is are the network's business.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from slipstream.drafters.drawing import Drawing
from slipstream.drafters.feature_rows import FeatureNet
from slipstream.drafters.growth import Growth, GrowthOptions
from slipstream.drafters.net_drafters import FeatureDrafter
from slipstream.types import Draft, RequestError, Rngs, Sequence


@dataclass(frozen=True, kw_only=True)
class EagleOptions:
    """`shape` chain: as deep as the budget. tree: `depth` levels at most (6), `top_k` nodes run in each (8).

    Trees of greedy rows are those of EAGLE-2; the others have hybrid nodes (`drafters.growth`).
    """

    shape: Literal["chain", "tree"] = "chain"
    depth: int | None = None
    top_k: int | None = None

    def __post_init__(self) -> None:
        if self.shape not in ("chain", "tree"):
            raise RequestError(f"shape={self.shape!r} must be 'chain' or 'tree'")
        growth = self.growth
        for name in ("depth", "top_k"):
            if self.shape == "chain" and getattr(self, name) is not None:
                value = getattr(growth, name)
                raise RequestError(f"{name}={value!r} has no effect on a chain: use draft_tokens, or shape=tree")

    @property
    def growth(self) -> GrowthOptions:
        """How trees grow."""
        depth, top_k = 6 if self.depth is None else self.depth, 8 if self.top_k is None else self.top_k
        return GrowthOptions(depth=depth, top_k=top_k)


class Eagle(FeatureDrafter):
    """Drafts from the target's features; see `FeatureDrafter`."""

    name = "eagle"

    def __init__(
        self,
        net: FeatureNet,
        *,
        vocab: int,
        max_rows: int,
        device: torch.device | str = "cpu",
        options: EagleOptions | None = None,
    ) -> None:
        self.options = options or EagleOptions()
        tree = self.options.shape == "tree"
        super().__init__(net, vocab=vocab, max_rows=max_rows, device=device, tree=tree)
        grow = Growth(self._rows, self._logits, self.options.growth, room=net.max_nodes, device=device)
        self._growth = grow if tree else None

    def propose(self, rows: list[Sequence], budget: list[int], rngs: Rngs) -> Draft:
        """Draft at most `budget[b]` tokens for each row."""
        ready = self._rows.begin(rows)
        limits = [n if ok else 0 for n, ok in zip(budget, ready, strict=True)]
        if self._growth is None:
            return self._chain(rows, [min(n, self.net.max_nodes + 1) for n in limits], rngs)
        draft = self._growth.grow(rows, limits, rngs)
        self._dropped.add(self._growth.broken)
        return draft

    def _chain(self, rows: list[Sequence], limits: list[int], rngs: Rngs) -> Draft:
        work = Drawing(rows, limits, rngs, vocab=self.vocab, device=self.device)
        states, depth = self._rows.states(work.live) if work.live else torch.empty(0), 0
        while work.live:
            depth += 1
            going = work.draw(self._logits(states), depth)
            self._dropped.add(len(work.broken))
            if work.live:
                states = self._rows.step(work.live, work.last(), states[going], depth)
        return work.draft()
