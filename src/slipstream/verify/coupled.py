"""Verification with shared noise (Daliri, Musco, Suresh 2408.07978): the same seed gives the same text, always.

At each reached node the target's token y is drawn with the noise of its absolute position; the child that carries y is
followed. Drafters that draw with the same noise often draw y. The output never depends on the draft, whatever its kind.
"""

from __future__ import annotations

import torch
from torch import Tensor

from slipstream.types import Draft, Rngs, Verdict
from slipstream.verify.points import walk_tokens
from slipstream.verify.rule import Rule


class CoupledRule(Rule):
    """Verify chains and trees against the token that plain decoding with the same seed would emit."""

    name = "coupled"
    shared_noise = True
    tree = True

    def judge(self, draft: Draft, p: Tensor, rngs: Rngs) -> Verdict:
        """Verify against dense rows p [B, N, V]."""
        row = torch.arange(p.shape[0], device=p.device)
        return walk_tokens(draft, lambda node, depth, alive: rngs.shared(p[row, node], depth, active=alive))
