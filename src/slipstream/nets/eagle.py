"""EAGLE-1/2: one layer that continues the target's last hidden state (Li et al. 2401.15077, 2406.16858).

In: rows (token after a position, feature of the position). Out: a guess at the next position's feature, which the
target's own head reads, and which is fed back as it is. No norm before the layer or after it. No drafting here.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq

import torch
from torch import Tensor

from slipstream.nets.draft_config import DraftConfig, Tables
from slipstream.nets.draft_layers import Cast, DraftLayers, Plan, Segment
from slipstream.nets.draft_tables import DraftTables
from slipstream.types import RequestError


class EagleNet:
    """The network. Features are [R, H], the target's state after its final norm."""

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
        if config.body is None:
            raise RequestError(f"a drafter of kind {config.algorithm} needs transformer layers; the file names none")
        cast = Cast.of(tensors, tables)
        self.config, self.body, self.max_len, self.max_nodes = config, config.body, max_len, max_nodes
        self.vocab_map, self.device = tensors.get("vocab_map"), tables.device
        self.tables = DraftTables(config, cast, tables)
        self.layers = DraftLayers(
            config.body, cast, max_rows=max_rows, max_len=max_len, scratch=max_nodes, offset=config.rows.offset
        )
        self._load(cast)

    def _load(self, cast: Cast) -> None:
        self.fc = cast.map("fc")

    def fuse(self, taps: Mapping[int, Tensor]) -> Tensor:
        """{tap: [R, Ht]} -> features [R, H]: here the one tap as it is."""
        (tap,) = self.config.features.taps
        return taps[tap].to(self.layers.device, self.layers.dtype)

    @torch.no_grad()
    def step(self, tokens: Tensor, features: Tensor, segments: Seq[Segment]) -> Tensor:
        """Run rows (tokens [R], features [R, H]) -> states [R, H]; writes keys and values at the segments' places."""
        h = self.fc(torch.cat([self.tables.embed(tokens.to(self.layers.device)), features], dim=-1))
        plan = self.layers.plan(segments)
        for index in range(self.body.layers):
            h = plain_layer(self.layers, index, h, plan)
        return h

    @torch.no_grad()
    def logits(self, states: Tensor) -> Tensor:
        """States [R, H] -> logits [R, Vd]."""
        return self.tables.head(states)

    @property
    def nbytes(self) -> int:
        """Bytes of the weights, the target's tables not counted."""
        return self.layers.nbytes + self.tables.nbytes + self.fc.nbytes

    @property
    def row_bytes(self) -> int:
        """Bytes one token of one row takes in the cache."""
        return self.layers.row_bytes


def plain_layer(layers: DraftLayers, index: int, h: Tensor, plan: Plan) -> Tensor:
    """Run rows h [R, H] through one layer."""
    h = h + layers.attention(index, layers.attn_norm(index, h), plan)
    return h + layers.mlp(index, h)
