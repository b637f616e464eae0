"""EAGLE-3 and P-EAGLE: fused taps of several layers, one layer that reads embedding and feature side by side.

In: rows (token after a position, fused feature of the position) (Li et al. 2503.01840, section 3). Out: states, fed
back as features and read by a head over the drafter's own ids. P-EAGLE drafts all depths in one pass: rows after the
last real one hold the mask token and one learned feature. No drafting here.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq

import torch
from torch import Tensor

from slipstream.nets.draft_layers import Cast, Plan, Segment
from slipstream.nets.eagle import EagleNet, plain_layer
from slipstream.nets.fusing import Fusing
from slipstream.nets.layers import rms_norm
from slipstream.types import RequestError


class Eagle3Net(EagleNet):
    """The network, with every variant of the record: norms before `fc`, residual, feedback, extra layers."""

    def _load(self, cast: Cast) -> None:
        self.norm = cast.get("norm.weight")
        self.fusing = Fusing(self.config, cast)

    @torch.no_grad()
    def fuse(self, taps: Mapping[int, Tensor]) -> Tensor:
        """{tap: [R, Ht]} -> features [R, H]."""
        return self.fusing(taps)

    @torch.no_grad()
    def step(self, tokens: Tensor, features: Tensor, segments: Seq[Segment]) -> Tensor:
        """Run rows (tokens [R], features [R, H]) -> states [R, H]; writes keys and values at the segments' places."""
        plan = self.layers.plan(segments)
        h = self._first(self.tables.embed(tokens.to(self.layers.device)), features, plan)
        for index in range(1, self.body.layers):
            h = plain_layer(self.layers, index, h, plan)
        return self._normed(h) if self.config.rows.feedback == "post" else h

    @torch.no_grad()
    def logits(self, states: Tensor) -> Tensor:
        """States [R, H], as `step` returns them -> logits [R, Vd]."""
        raw = self.config.rows.feedback == "pre" and self.config.rows.logit_norm
        return self.tables.head(self._normed(states) if raw else states)

    @property
    def nbytes(self) -> int:
        """Bytes of the weights, the target's tables not counted."""
        own = 0 if self.norm is None else self.norm.nbytes
        return own + self.fusing.nbytes + self.layers.nbytes + self.tables.nbytes

    def _first(self, embedded: Tensor, features: Tensor, plan: Plan) -> Tensor:
        layers, eps = self.layers, self.body.eps
        first = layers.layers[0]
        assert first.attn_in is not None
        assert first.hidden_norm is not None
        normed = rms_norm(features, first.hidden_norm, eps)
        x = torch.cat([rms_norm(embedded, first.attn_in, eps), normed], dim=-1)
        h = (normed if self.config.rows.residual_norm else features) + layers.attention(0, x, plan)
        return h + layers.mlp(0, h)

    def _normed(self, h: Tensor) -> Tensor:
        return h if self.norm is None else rms_norm(h, self.norm, self.body.eps)


class PEagleNet(Eagle3Net):
    """The network that drafts all depths in one pass. `mask_token` and `mask_feature` [H] fill the rows to predict."""

    def _load(self, cast: Cast) -> None:
        super()._load(cast)
        assert self.config.block is not None
        self.mask_token = self.config.block.mask_token
        if not 0 <= self.mask_token < self.tables.rows:
            raise RequestError(
                f"mask token {self.mask_token} is not one of 0..{self.tables.rows - 1}, the ids embedded"
            )
        with torch.no_grad():
            parts = cast("mask_hidden").view(1, -1).split(self.config.features.width, dim=-1)
            self.mask_feature = self.fusing.join(parts)[0]
