"""The block drafter's network: DFlash, and the body DSpark stands on.

In: target features as context, an anchor token for each slot. Out: the states of a whole block of slots from one pass.
The block is the anchor followed by mask tokens; every layer's keys and values are those of the context, which is one
tensor for all layers and does not pass a layer's input norm, followed by the block's own. Context is committed, the
block never is: it lives in the scratch behind it. What a slot predicts and what is drawn from it is not decided here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from slipstream.nets.draft_config import Block, Body, DraftConfig, Tables
from slipstream.nets.draft_layers import Cast, DraftLayers, Plan, Segment
from slipstream.nets.draft_tables import DraftTables
from slipstream.nets.fusing import Fusing
from slipstream.nets.layers import rms_norm
from slipstream.types import RequestError

_Kind = tuple[int | None, bool]  # window, causal inside the block
Sublayer = Literal["attention", "mlp"]


class DFlashNet:
    """One slot for each row: `context` writes what is behind the anchor, `block` denoises what follows it."""

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
        self.config, self.device = config, tables.device
        self.body, self.shape = _checked(config, tensors, tables)
        self.vocab_map = tensors.get("vocab_map")  # [Vd] target ids, None: ids are the target's
        cast = Cast.of(tensors, tables)
        scratch = max(max_nodes, self.shape.size)
        self.layers = DraftLayers(self.body, cast, max_rows=max_rows, max_len=max_len, scratch=scratch)
        self.tables = DraftTables(config, cast, tables)
        self.fusing = Fusing(config, cast, behind="hidden_norm.weight")
        self.norm = cast("norm.weight")
        self._kinds = list(zip(self.body.windows, self.shape.causal, strict=True))

    @torch.no_grad()
    def context(self, taps: Mapping[int, Tensor], segments: Seq[Segment]) -> None:
        """Commit the features {tap: [R, Ht]} of the segments' tokens: R rows, segment after segment."""
        plan = self.layers.plan(segments, sights=False)
        x = self.fusing(taps)
        for index in range(self.body.layers):
            self.layers.write(index, x, plan)
        for s in segments:
            self.layers.keep(s.slot, s.at + s.rows)

    @torch.no_grad()
    def block(self, anchors: Tensor, slots: Seq[int], size: int | None = None) -> Tensor:
        """Denoise the block behind each slot's context: anchors [B] -> states after the final norm [B, S, H].

        S is `size`, by default the whole block: a slot that sees later ones answers differently when they are missing.
        Commits nothing.
        """
        size = self.shape.size if size is None else size
        if not 1 <= size <= self.shape.size:
            raise RequestError(f"a block of {size} slots; this drafter was trained on 1 to {self.shape.size}")
        tokens = torch.full((len(slots), size), self.shape.mask_token, device=self.layers.device)
        tokens[:, 0] = anchors.to(self.layers.device)
        h = self.embed(tokens.flatten())
        plans = {kind: self._plan(slots, size, kind) for kind in set(self._kinds)}
        for index, kind in enumerate(self._kinds):
            x = self.layers.attn_norm(index, h)
            h = h + self.around("attention", index, x, size, partial(self.layers.attention, index, plan=plans[kind]))
            x = self.layers.mlp_norm(index, h)
            h = h + self.around("mlp", index, x, size, partial(self.layers.bare_mlp, index))
        return rms_norm(h, self.norm, self.body.eps).view(len(slots), size, -1)

    def around(self, which: Sublayer, index: int, x: Tensor, size: int, run: Callable[[Tensor], Tensor]) -> Tensor:
        """Run a sublayer of a layer over its normed input: rows [B * S, H], a block's S = `size` slots together."""
        return run(x)

    def embed(self, tokens: Tensor) -> Tensor:
        """Ids [R] -> [R, H], from the drafter's own table or the target's."""
        return self.tables.embed(tokens)

    @torch.no_grad()
    def logits(self, states: Tensor) -> Tensor:
        """States after the final norm [R, H] -> logits [R, Vd]."""
        return self.tables.head(states)

    @property
    def nbytes(self) -> int:
        """Bytes of the weights, the target's tables not counted."""
        return self.layers.nbytes + self.tables.nbytes + self.fusing.nbytes + self.norm.nbytes

    @property
    def row_bytes(self) -> int:
        """Bytes one token of one row takes in the cache."""
        return self.layers.row_bytes

    def _plan(self, slots: Seq[int], size: int, kind: _Kind) -> Plan:
        seen = _inside(size, kind)
        starts = [self.layers.length(slot) for slot in slots]
        return self.layers.plan(
            [
                Segment(slot, start, range(start, start + size), base=start, seen=seen)
                for slot, start in zip(slots, starts, strict=True)
            ]
        )


def _inside(size: int, kind: _Kind) -> Tensor:
    """Which slots of its own block each slot sees: bool [S, S]; a window that is not causal reaches both ways."""
    window, causal = kind
    at = torch.arange(size)
    ahead = at[None] - at[:, None]
    if causal:
        return ahead <= 0
    return torch.ones(size, size, dtype=torch.bool) if window is None else ahead < window


def _checked(config: DraftConfig, tensors: Mapping[str, Tensor], tables: Tables) -> tuple[Body, Block]:
    body, block = config.body, config.block
    if body is None or block is None:
        raise RequestError(f"a {config.algorithm} drafter without layers or without a block cannot be a block drafter")
    own = config.vocab.own_embed
    if body.hidden != tables.hidden and not (own and config.vocab.own_head):
        raise RequestError(
            f"the drafter's width {body.hidden} is not the target's, {tables.hidden}, and it has no embedding and head "
            f"of its own; use the target it was made for"
        )
    ids = tensors["embed.weight"].shape[0] if own else tables.rows
    for what, token in (("mask token", block.mask_token), ("the target's token", tables.vocab - 1)):
        if not 0 <= token < ids:
            raise RequestError(f"{what} {token} has no row in the embedding of {ids} rows that the drafter reads")
    return body, block
