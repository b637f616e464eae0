"""Draft a whole block from one pass over the target's features (DFlash, Chen et al. 2602.06036).

In: committed tokens and the target's hidden states. Out: one chain per row, or one tree. The block's slots answer at
once and do not see each other's tokens: q of a chain is the product of its slots' laws, each under the row's own
sampling parameters, with the tokens drafted before it where a penalty needs them; a tree holds the likeliest paths
through the slots and is FIXED. Loads nothing, verifies nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from slipstream.drafters.chains import chain_draft
from slipstream.drafters.context_rows import ContextRows
from slipstream.drafters.drawing import Drawing, Dropped
from slipstream.drafters.marginals import broken, marginal_tree
from slipstream.drafters.reduced import Reduced
from slipstream.drafters.trees import Seconds
from slipstream.nets.dflash import DFlashNet
from slipstream.types import Draft, Needs, RequestError, Rngs, Sequence

_MOST_LOGITS = 1 << 26  # numbers computed at once: bounds the memory of many rows of a large vocabulary


@dataclass(frozen=True, kw_only=True)
class DFlashOptions:
    """`shape`: draft a chain, or the tree of the likeliest paths through the block (DDTree, 2604.12989)."""

    shape: Literal["chain", "tree"] = "chain"

    def __post_init__(self) -> None:
        if self.shape not in ("chain", "tree"):
            raise RequestError(f"shape={self.shape!r} must be chain or tree")


class DFlash:
    """Drafts with a block network. `dropped` counts drafts cut short because the logits were not finite.

    `vocab` is the target's number of token ids, `device` where the target wants its draft. `seconds(n)` is the time of
    a round whose target pass reads n tokens: with it, a tree is cut to the size that pays (CaDDTree, 2606.01813).
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
        self.needs = Needs(taps=net.config.features.taps, tree=self.options.shape == "tree")
        self.net, self.vocab, self.device = net, vocab, torch.device(device)
        self.reduced = Reduced(net.vocab_map, vocab, net.layers.device)
        self.context = ContextRows(net, max_rows)
        self.seconds = seconds
        self._dropped = Dropped("dflash drafter")

    @property
    def dropped(self) -> int:
        """Drafts cut short because the drafter's logits were not finite."""
        return self._dropped.count

    def propose(self, rows: list[Sequence], budget: list[int], rngs: Rngs) -> Draft:
        """Draft at most `budget[b]` tokens for each row, and never deeper than the block."""
        if self.options.shape == "tree":
            return self._tree(rows, self.context.limits(rows, budget, max(budget, default=0)))
        work = Drawing(rows, self.context.limits(rows, budget), rngs, vocab=self.vocab, device=self.device)
        if work.live:
            self._chains(work)
        return work.draft()

    def observe(self, rows: list[Sequence], tokens: list[list[int]], taps: list[Mapping[int, Tensor]]) -> None:
        """Feed what was committed to the network's context."""
        self.context.observe(rows, tokens, taps)

    def forget(self, row: Sequence) -> None:
        """Free the row's place in the network's cache."""
        self.context.forget(row)

    def _chains(self, work: Drawing) -> None:
        deepest = max(work.limits)
        states = self.context.block([work.rows[b] for b in work.live], deepest)  # [live, D, H]
        step = max(1, _MOST_LOGITS // (self.vocab * len(work.live)))
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
