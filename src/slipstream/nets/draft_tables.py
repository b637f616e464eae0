"""The embedding and the head of a drafter: its own where the file has them, else the target's.

In: canonical tensors and the target's tables. Out: two functions on rows. Ids the embedding has no row for stand in as
id 0: a worse guess, never a wrong law.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from slipstream.nets.draft_config import DraftConfig, Tables
from slipstream.nets.draft_layers import Cast
from slipstream.nets.layers import Map

RowMap = Callable[[Tensor], Tensor]


class DraftTables:
    """`embed` maps ids [R] -> [R, H]; `head` maps normed states [R, H] -> logits [R, Vd], Vd the drafter's ids."""

    def __init__(self, config: DraftConfig, cast: Cast, tables: Tables) -> None:
        self._table = cast.table("embed.weight") if config.vocab.own_embed else None
        self._embed, self._dtype = tables.embed, cast.dtype
        self.rows = tables.rows if self._table is None else self._table.shape[0]
        self._own: Map | None = cast.map("head", last=True) if config.vocab.own_head else None
        self._head: RowMap = self._own or tables.head
        self._kept: Tensor | None = None
        if config.vocab.reduced and self._own is None:
            # the target's head has rows for its real ids only; those beyond are never proposed, whatever they read
            self._kept = cast.tensors["vocab_map"].to(tables.device, torch.int64).clamp(max=tables.vocab - 1)

    def embed(self, tokens: Tensor) -> Tensor:
        """Ids [R] -> [R, H]."""
        known = torch.where(tokens < self.rows, tokens, 0)
        return (self._embed(known) if self._table is None else F.embedding(known, self._table)).to(self._dtype)

    def head(self, states: Tensor) -> Tensor:
        """Normed states [R, H] -> logits [R, Vd]."""
        logits = self._head(states)
        return logits if self._kept is None else logits[:, self._kept]

    @property
    def nbytes(self) -> int:
        """Bytes of the drafter's own tables."""
        own = 0 if self._own is None else self._own.nbytes
        return own + (0 if self._table is None else self._table.nbytes)
