"""Draft a path through a block: each slot's likeliest tokens, chosen left to right (DFlash 2, Inco AI and Z Lab 2026).

In: committed tokens and the target's hidden states. Out: one chain per row. At every slot the highest logits are scored
as followers of the token chosen before; one of those few is drawn under the row's own sampling parameters. q is the law
over exactly those few that were in the draw, zero elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from slipstream.drafters.drawing import Drawing
from slipstream.drafters.net_drafters import BlockDrafter
from slipstream.nets.dflash2 import DFlash2Net


@dataclass(frozen=True, kw_only=True)
class DFlash2Options:
    """Nothing to choose: how many tokens a path may choose from at each slot is the checkpoint's."""


@dataclass(frozen=True)
class _Slots:
    """The slots of a block that draft: the few tokens of each, their logits, and the slots' own part of a score."""

    tokens: Tensor  # [n, D, K]
    logits: Tensor  # [n, D, K]
    mixed: Tensor  # [n, D, r]


class DFlash2(BlockDrafter):
    """Drafts with a block network and its path selector; see `NetDrafter`."""

    name = "dflash2"
    net: DFlash2Net

    def __init__(
        self,
        net: DFlash2Net,
        *,
        vocab: int,
        max_rows: int,
        device: torch.device | str = "cpu",
        options: DFlash2Options | None = None,
    ) -> None:
        self.options = options or DFlash2Options()
        super().__init__(net, vocab=vocab, max_rows=max_rows, device=device)

    def _chains(self, work: Drawing) -> None:
        """Walk every row's path, slot after slot."""
        rows, deepest = [work.rows[b] for b in work.live], max(work.limits)
        slots = self._slots(self.context.block(rows, deepest))
        at = list(range(len(rows)))  # where each row still drafting is in `slots`
        previous = torch.tensor([row.tokens[-1] for row in rows], device=slots.tokens.device)
        for depth in range(1, deepest + 1):
            tokens, logits = slots.tokens[at, depth - 1], slots.logits[at, depth - 1]
            scores = self.net.scores(slots.mixed[at, depth - 1], previous, tokens, logits)  # [live, K]
            going = work.draw(self._spread(tokens, scores), depth)
            self._dropped.add(len(work.broken))
            if not going:
                return
            at = [at[i] for i in going]
            previous = work.last().to(previous.device)

    def _slots(self, states: Tensor) -> _Slots:
        """Keep the few likeliest tokens of each slot in states [n, D, H]."""
        flat = states.flatten(0, 1)
        top = [
            self.reduced.spread(_wide(self.net.logits(some))).topk(min(self.net.paths.top_k, self.vocab))
            for some in flat.split(self._at_once())
        ]
        tokens, logits = torch.cat([t.indices for t in top]), torch.cat([t.values for t in top])
        parts = (tokens, logits, self.net.mixed(flat))
        return _Slots(*(part.unflatten(0, states.shape[:2]) for part in parts))

    def _spread(self, tokens: Tensor, scores: Tensor) -> Tensor:
        """Scores [live, K] of tokens -> logits [live, V]; -inf for the others: q is the law of the few (law 3)."""
        return scores.new_full((len(scores), self.vocab), -torch.inf).scatter_(1, tokens, scores)


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()
