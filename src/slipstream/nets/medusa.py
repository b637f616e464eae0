"""Medusa-1 heads (2401.10774): residual blocks and a vocabulary projection for each place ahead.

In: the target's state after its final norm at the last cached token t. Out: logits, head i for the token at t + 2 + i
(the target's own head has t + 1). Heads know nothing of each other's tokens; there is no cache and no embedding.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from slipstream.nets.draft_config import DraftConfig, Tables
from slipstream.nets.draft_layers import Cast
from slipstream.nets.layers import Map
from slipstream.types import RequestError


class MedusaNet:
    """The heads of a file, on the target's device and in its dtype; a file without projections uses the target's."""

    row_bytes = 0  # bytes of cache per token of a row
    vocab_map: Tensor | None = None

    def __init__(
        self,
        config: DraftConfig,
        tensors: Mapping[str, Tensor],
        tables: Tables,
        *,
        max_rows: int,
        max_len: int,
        max_nodes: int,
    ) -> None:
        if config.heads is None:
            raise RequestError(f"a drafter of kind {config.algorithm!r} has no Medusa heads; its config needs `heads`")
        self.config, self.tables, self.device = config, tables, tables.device
        self.count = config.heads.count
        cast = Cast.of(tensors, tables)
        names = [f"heads.{i}" for i in range(self.count)]
        self._blocks = [[cast.map(f"{at}.blocks.{j}") for j in range(config.heads.blocks)] for at in names]
        self._heads: list[Map] = [cast.map(f"{at}.head", last=True) for at in names] if config.heads.own else []

    def features(self, taps: Mapping[int, Tensor]) -> Tensor:
        """Return what the heads read of {tap: [R, H]}, in the network's dtype and on its device."""
        return taps[self.config.features.taps[0]].to(self.tables.device, self.tables.dtype)

    def logits(self, features: Tensor, count: int) -> Tensor:
        """Features [R, H] -> logits of the first `count` heads [R, count, V]."""
        states = [self._state(i, features) for i in range(count)]
        if self._heads:
            return torch.stack([head(z) for head, z in zip(self._heads, states, strict=False)], 1)
        return self.tables.head(torch.stack(states, 1).flatten(0, 1)).unflatten(0, (-1, count))

    def _state(self, head: int, z: Tensor) -> Tensor:
        for block in self._blocks[head]:
            z = z + F.silu(block(z))
        return z

    @property
    def nbytes(self) -> int:
        """Bytes of the weights."""
        return sum(part.nbytes for blocks in (*self._blocks, self._heads) for part in blocks)
