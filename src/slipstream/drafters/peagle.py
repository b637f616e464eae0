"""Draft all depths in one pass of a P-EAGLE network: a chain over marginals.

In: committed tokens with the target's features there. Out: a chain whose first token is read from the last fed row, and
the token at depth d > 1 from the d-1-th of the mask rows behind it. Depths are independent given the committed text, so
the rows of q are the marginals themselves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from slipstream.drafters.drawing import Drawing
from slipstream.drafters.feature_rows import FeatureNet
from slipstream.drafters.net_drafters import FeatureDrafter
from slipstream.types import Draft, RequestError, Rngs, Sequence


class MaskNet(FeatureNet, Protocol):
    """A network with a mask row: a token and a feature [H]."""

    mask_token: int
    mask_feature: Tensor


@dataclass(frozen=True, kw_only=True)
class PEagleOptions:
    """`depth`: most tokens of a draft; networks are trained for so many and get worse beyond."""

    depth: int = 8

    def __post_init__(self) -> None:
        if isinstance(self.depth, bool) or not isinstance(self.depth, int) or self.depth < 1:
            raise RequestError(f"depth={self.depth!r} must be a whole number of at least 1")


class PEagle(FeatureDrafter):
    """Drafts a whole chain from one pass; see `FeatureDrafter`."""

    name = "peagle"
    net: MaskNet

    def __init__(
        self,
        net: MaskNet,
        *,
        vocab: int,
        max_rows: int,
        device: torch.device | str = "cpu",
        options: PEagleOptions | None = None,
    ) -> None:
        self.options = options or PEagleOptions()
        super().__init__(net, vocab=vocab, max_rows=max_rows, device=device)

    def propose(self, rows: list[Sequence], budget: list[int], rngs: Rngs) -> Draft:
        """Draft at most `budget[b]` tokens for each row."""
        most = min(self.options.depth, self.net.max_nodes + 1)
        limits = [min(n, most) if ok else 0 for n, ok in zip(budget, self._rows.begin(rows), strict=True)]
        work = Drawing(rows, limits, rngs, vocab=self.vocab, device=self.device)
        if work.live:
            states, starts = self._ahead(work.live, limits)
        depth = 0
        while work.live:
            at = [starts[b] + depth for b in work.live]
            depth += 1
            work.draw(self._logits(states[at]), depth)
            self._dropped.add(len(work.broken))
        return work.draft()

    def _ahead(self, live: list[int], limits: list[int]) -> tuple[Tensor, dict[int, int]]:
        """Run the mask rows; return the states of all depths, batch row after batch row, and where each one starts."""
        counts = [limits[b] - 1 for b in live]
        first = self._rows.states(live)  # [live, H]
        which = [b for b, n in zip(live, counts, strict=True) for _ in range(n)]
        depths = [d for n in counts for d in range(1, n + 1)]
        if which:
            tokens = torch.full((len(which),), self.net.mask_token)
            rest = self._rows.step(which, tokens, self.net.mask_feature.expand(len(which), -1), depths)
            parts = zip(first.split(1), rest.split(counts), strict=True)
            first = torch.cat([part for pair in parts for part in pair])
        starts, at = {}, 0
        for b in live:
            starts[b], at = at, at + limits[b]
        return first, starts
