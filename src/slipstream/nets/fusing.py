"""Several of the target's layers made one row: what EAGLE-3 and the block drafters read of a token.

In: the taps of R tokens, in any dtype, on any device. Out: rows [R, H] in the network's. Norms and map are the file's.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq

import torch
from torch import Tensor

from slipstream.nets.draft_config import DraftConfig
from slipstream.nets.draft_layers import Cast
from slipstream.nets.layers import rms_norm


class Fusing:
    """A norm for each tap or one over all of them, the map `fc` where there is one, and a norm `behind` it."""

    def __init__(self, config: DraftConfig, cast: Cast, *, behind: str = "") -> None:
        assert config.body is not None
        features = config.features
        self.taps, self.eps, self.dtype, self.device = features.taps, config.body.eps, cast.dtype, cast.device
        each = range(len(features.taps)) if features.norm == "each" else ()
        self.each = [cast(f"fc_norm.{c}.weight") for c in each]
        self.whole = cast("input_norm.weight") if features.norm == "whole" else None
        self.fc = cast.map("fc") if features.fused else None
        self.behind = cast(behind) if behind else None

    def __call__(self, taps: Mapping[int, Tensor]) -> Tensor:
        """{tap: [R, Ht]} -> [R, H]."""
        return self.join([taps[tap].to(self.device, self.dtype) for tap in self.taps])

    def join(self, parts: Seq[Tensor]) -> Tensor:
        """Make one row of the taps' values [R, Ht], in their order -> [R, H]."""
        if self.each:
            parts = [rms_norm(part, weight, self.eps) for part, weight in zip(parts, self.each, strict=True)]
        x = parts[0] if len(parts) == 1 else torch.cat(list(parts), dim=-1)
        x = x if self.whole is None else rms_norm(x, self.whole, self.eps)
        x = x if self.fc is None else self.fc(x)
        return x if self.behind is None else rms_norm(x, self.behind, self.eps)

    @property
    def nbytes(self) -> int:
        """Bytes of the weights."""
        return sum(part.nbytes for part in (self.whole, self.fc, self.behind, *self.each) if part is not None)
