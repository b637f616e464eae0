"""Token-by-token rejection sampling of a chain (Leviathan et al. 2211.17192, Chen et al. 2302.01318).

Node x below prefix s stands with probability min(1, p(x|s) / q(x|s)); the first failure is replaced by a draw from
max(p - q, 0), normalised; a draft that stands whole is followed by a draw from p. FIXED nodes are point masses.
"""

from __future__ import annotations

import torch
from torch import Tensor

from slipstream.types import Draft, Draw, Rngs, Verdict
from slipstream.verify import here
from slipstream.verify.rule import (
    Rule,
    chain_verdict,
    drafted,
    drafting,
    drawn,
    drop,
    need_q,
    or_else,
    refuse_undrawable,
)


class ChainRule(Rule):
    """Verify chains one token after another."""

    name = "chain"

    def judge(self, draft: Draft, p: Tensor, rngs: Rngs) -> Verdict:
        """Verify against dense rows p [B, N, V]."""
        if here.applies(p):
            return here.judge_chains(draft, p, rngs)
        valid = drafted(draft)  # [B, L], L = N - 1
        ratio = chain_ratios(draft, p, valid)
        passed = rngs.accept(ratio.clamp(max=1.0), active=drafting(draft)) & valid
        accepted = passed.long().cumprod(1).sum(1)
        return chain_verdict(draft, accepted, rngs.correct(_next_law(draft, p, accepted)))


def chain_ratios(draft: Draft, p: Tensor, valid: Tensor) -> Tensor:
    """Return p(x) / q(x) of each drafted node, 0 on padding -> [B, N - 1]; q(x) is 1 for a FIXED node."""
    marks = drawn(draft)
    q = need_q(draft, marks)
    x = draft.tokens[:, 1:, None].clamp(min=0)
    p_x = p[:, :-1].gather(2, x)[..., 0]
    ratio = p_x
    if q is not None:
        q_x = q[:, : draft.nodes - 1].gather(2, x)[..., 0]
        refuse_undrawable(q_x, marks)
        ratio = p_x / torch.where(marks, q_x, 1.0)
    return torch.where(valid, ratio, 0.0)


def _next_law(draft: Draft, p: Tensor, accepted: Tensor) -> Tensor:
    """Return what the token after the accepted nodes is drawn from: the residual of the one refused node, or p."""
    row = torch.arange(len(accepted), device=p.device)
    p_row = p[row, accepted]  # [B, V]
    refused = accepted < draft.length - 1
    child = (accepted + 1).clamp(max=draft.nodes - 1)
    if draft.q is None:
        weights = p_row.clone()
    else:
        from_q = refused & (draft.draw[row, child] != int(Draw.FIXED))
        q_row = draft.q[row, accepted].masked_fill_(~from_q[:, None], 0.0)
        weights = (p_row - q_row).clamp_(min=0)
    return or_else(drop(weights, draft.tokens[row, child], refused), p_row)
