"""Block verification of a chain (Sun et al. 2403.10444): never fewer accepted tokens than token by token, same law.

With r_i = min(1, r_{i-1} p(x_i)/q(x_i)) and R_i = max(r_i p - q, 0) after node i, level i passes with probability
s_i / (s_i + 1 - r_i), s_i = sum R_i, and the last level with r_L; the longest passing level stands and is followed
by a draw from R_i (from p at the last). FIXED nodes are point masses.
"""

from __future__ import annotations

import torch
from torch import Tensor

from slipstream.types import Draft, Rngs, Verdict
from slipstream.verify.chain import chain_ratios
from slipstream.verify.rule import Rule, chain_verdict, drafted


class BlockRule(Rule):
    """Verify chains as a whole."""

    name = "block"

    def judge(self, draft: Draft, p: Tensor, rngs: Rngs) -> Verdict:
        """Verify against dense rows p [B, N, V]."""
        if draft.nodes == 1:
            return chain_verdict(draft, torch.zeros_like(draft.length), rngs.correct(p[:, 0]))
        valid = drafted(draft)
        r = _running_ratio(chain_ratios(draft, p, valid))  # [B, N]
        level = torch.arange(1, draft.nodes, device=p.device)
        # no early exit: the LAST passing level wins, whatever failed before it
        passed = rngs.accept(_levels(draft, p, r), active=valid.any(1)) & valid
        accepted = (passed * level).amax(1)
        return chain_verdict(draft, accepted, rngs.correct(_next_law(draft, p, r, accepted)))


def _running_ratio(ratio: Tensor) -> Tensor:
    """Return r_0..r_L [B, N] in float64: the product of ratios, capped at 1 after every factor."""
    r = torch.ones(ratio.shape[0], dtype=torch.float64, device=ratio.device)
    out = [r]
    for i in range(ratio.shape[1]):
        r = (r * ratio[:, i]).clamp(max=1.0)
        out.append(r)
    return torch.stack(out, 1)


def _residual(draft: Draft, p: Tensor, r: Tensor, node: Tensor) -> Tensor:
    """Return R = max(r p - q, 0) at `node` [B, M], whose child is node + 1; p [B, M, V] and r [B, M] are its rows."""
    weights = r[..., None].to(p.dtype) * p
    child = (node + 1).clamp(max=draft.nodes - 1)
    if draft.q is not None:
        from_q = draft.draw.gather(1, child) != 0
        q = draft.q if node.shape[1] == draft.nodes else draft.q.gather(1, _wide(node, p))
        weights = torch.where(from_q[..., None], (weights - q).clamp(min=0), weights)
        keep_x = from_q
    else:
        keep_x = torch.zeros_like(node, dtype=torch.bool)
    x = draft.tokens.gather(1, child).clamp(min=0)[..., None]
    # below a FIXED child q is 1 at its token, so nothing is left there
    at_x = torch.where(keep_x[..., None], weights.gather(2, x), 0.0)
    return weights.scatter(2, x, at_x)


def _levels(draft: Draft, p: Tensor, r: Tensor) -> Tensor:
    """Return the pass probability of levels 1..L -> [B, L] float64; padding gets whatever, it is masked."""
    nodes = torch.arange(draft.nodes, device=p.device).expand(p.shape[0], -1)
    s = _residual(draft, p, r, nodes)[:, 1:].sum(2, dtype=torch.float64)
    r = r[:, 1:]
    whole = s + 1.0 - r
    inner = torch.where(whole > 0, s / whole, 1.0)
    return torch.where(nodes[:, 1:] == draft.length[:, None] - 1, r, inner).clamp(0.0, 1.0)


def _next_law(draft: Draft, p: Tensor, r: Tensor, accepted: Tensor) -> Tensor:
    node = accepted[:, None]
    p_row = p.gather(1, _wide(node, p))
    weights = _residual(draft, p_row, r.gather(1, node), node)[:, 0]
    p_row = p_row[:, 0]
    weights = torch.where((accepted < draft.length - 1)[:, None], weights, p_row)
    return torch.where(weights.sum(1, keepdim=True) > 0, weights, p_row)


def _wide(node: Tensor, p: Tensor) -> Tensor:
    return node[..., None].expand(-1, -1, p.shape[-1])
