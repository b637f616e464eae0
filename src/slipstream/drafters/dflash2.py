"""Draft a path through a block: each slot's likeliest tokens, chosen left to right (DFlash 2, Inco AI and Z Lab 2026).

In: committed tokens and the target's hidden states. Out: one chain per row. At every slot the highest logits are scored
as followers of the token chosen before; one of those few is drawn under the row's own sampling parameters. q is the law
over exactly those few that were in the draw, zero elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from slipstream.drafters.context_rows import ContextRows
from slipstream.drafters.drawing import Drawing, Dropped
from slipstream.drafters.reduced import Reduced
from slipstream.nets.dflash2 import DFlash2Net
from slipstream.types import Draft, Needs, Rngs, Sequence

_MOST_LOGITS = 1 << 26  # numbers computed at once: bounds the memory of many rows of a large vocabulary


@dataclass(frozen=True, kw_only=True)
class DFlash2Options:
    """Nothing to choose: how many tokens a path may choose from at each slot is the checkpoint's."""


@dataclass(frozen=True)
class _Slots:
    """The slots of a block that draft: the few tokens of each, their logits, and the slots' own part of a score."""

    tokens: Tensor  # [n, D, K]
    logits: Tensor  # [n, D, K]
    mixed: Tensor  # [n, D, r]


class DFlash2:
    """Drafts with a block network and its path selector. `dropped` counts drafts that logits not finite cut short.

    `vocab` is the target's number of token ids, `device` where the target wants its draft.
    """

    name = "dflash2"

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
        self.needs = Needs(taps=net.config.features.taps)
        self.net, self.vocab, self.device = net, vocab, torch.device(device)
        self.reduced = Reduced(net.vocab_map, vocab, net.layers.device)
        self.context = ContextRows(net, max_rows)
        self._dropped = Dropped("dflash2 drafter")

    @property
    def dropped(self) -> int:
        """Drafts cut short because the drafter's logits were not finite."""
        return self._dropped.count

    def propose(self, rows: list[Sequence], budget: list[int], rngs: Rngs) -> Draft:
        """Draft at most `budget[b]` tokens for each row, never more than the block has."""
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
            for some in flat.split(max(1, _MOST_LOGITS // self.vocab))
        ]
        tokens, logits = torch.cat([t.indices for t in top]), torch.cat([t.values for t in top])
        parts = (tokens, logits, self.net.mixed(flat))
        return _Slots(*(part.unflatten(0, states.shape[:2]) for part in parts))

    def _spread(self, tokens: Tensor, scores: Tensor) -> Tensor:
        """Scores [live, K] of tokens -> logits [live, V]; -inf for the others: q is the law of the few (law 3)."""
        return scores.new_full((len(scores), self.vocab), -torch.inf).scatter_(1, tokens, scores)


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()
