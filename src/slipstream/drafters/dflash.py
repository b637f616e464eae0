"""Draft a whole block from one pass over the target's features (DFlash, Chen et al. 2602.06036).

In: committed tokens and the target's hidden states. Out: one chain per row, or one tree. The block's slots answer at
once and do not see each other's tokens: q of a chain is the product of its slots' laws, each under the row's own
sampling parameters, with the tokens drafted before it where a penalty needs them; a tree holds the likeliest paths
through the slots and is FIXED. Loads nothing, verifies nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from slipstream.drafters.chains import chain_draft
from slipstream.drafters.drawing import Drawing
from slipstream.drafters.marginals import broken, marginal_tree
from slipstream.drafters.net_drafters import BlockDrafter
from slipstream.drafters.trees import Seconds
from slipstream.nets.dflash import DFlashNet
from slipstream.types import Draft, RequestError, Rngs, Sequence


@dataclass(frozen=True, kw_only=True)
class DFlashOptions:
    """`shape`: draft a chain, or the tree of the likeliest paths through the block (DDTree, 2604.12989)."""

    shape: Literal["chain", "tree"] = "chain"

    def __post_init__(self) -> None:
        if self.shape not in ("chain", "tree"):
            raise RequestError(f"shape={self.shape!r} must be chain or tree")


class DFlash(BlockDrafter):
    """Drafts with a block network; see `NetDrafter`.

    `seconds(n)` is the time of a round whose target pass reads n tokens: with it, a tree is cut to the size that pays
    (CaDDTree, 2606.01813).
    """

    name = "dflash"

    def __init__(
        self,
        net: DFlashNet,
        *,
        vocab: int,
        max_rows: int,
        device: torch.device | str = "cpu",
        options: DFlashOptions | None = None,
        seconds: Seconds | None = None,
    ) -> None:
        self.options = options or DFlashOptions()
        super().__init__(net, vocab=vocab, max_rows=max_rows, device=device, tree=self.options.shape == "tree")
        self.seconds = seconds

    def propose(self, rows: list[Sequence], budget: list[int], rngs: Rngs) -> Draft:
        """Draft at most `budget[b]` tokens for each row, and never deeper than the block."""
        if self.options.shape == "tree":
            return self._tree(rows, self.context.limits(rows, budget, max(budget, default=0)))
        return super().propose(rows, budget, rngs)

    def _chains(self, work: Drawing) -> None:
        deepest = max(work.limits)
        states = self.context.block([work.rows[b] for b in work.live], deepest)  # [live, D, H]
        step = self._at_once(len(work.live))
        for done in range(0, deepest, step):
            logits = self._logits(states[:, done : done + step])  # [live, <= step, V]
            at = list(range(len(work.live)))  # where each row still drafting is in `logits`
            for depth in range(logits.shape[1]):
                going = work.draw(logits[at, depth], done + depth + 1)
                self._dropped.add(len(work.broken))
                at = [at[i] for i in going]
                if not at:
                    return
            states = states[at]

    def _tree(self, rows: list[Sequence], limits: list[int]) -> Draft:
        live = [b for b, limit in enumerate(limits) if limit > 0]
        if not live:
            return chain_draft(rows, [[] for _ in rows], device=self.device)
        depth = min(max(limits), self.net.shape.drafts)
        logits = found = self._logits(self.context.block([rows[b] for b in live], depth))  # [live, D, V]
        if len(live) < len(rows):
            logits = found.new_zeros(len(rows), depth, self.vocab)
            logits[live] = found
        self._dropped.add(len(broken(logits, limits)))
        return marginal_tree(rows, logits, limits, seconds=self.seconds, device=self.device)

    def _logits(self, states: Tensor) -> Tensor:
        """States [B, D, H] -> logits [B, D, V] over the target's ids."""
        return self.reduced.spread(self.net.logits(states.flatten(0, 1))).unflatten(0, states.shape[:2])
