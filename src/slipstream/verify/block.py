"""Block verification of a chain (Sun et al. 2403.10444): never fewer accepted tokens than token by token, same law.

With r_i = min(1, r_{i-1} p(x_i)/q(x_i)) and R_i = max(r_i p - q, 0) after node i, level i passes with probability
s_i / (s_i + 1 - r_i), s_i = sum R_i, and the last level with r_L; the longest passing level stands and is followed
by a draw from R_i (from p at the last). FIXED nodes are point masses.
"""

from __future__ import annotations

import torch
from torch import Tensor

from slipstream.devices import maybe
from slipstream.types import Draft, Draw, Rngs, Verdict
from slipstream.verify import here
from slipstream.verify.chain import chain_ratios
from slipstream.verify.rule import Rule, chain_verdict, drafted, drafting, drop, or_else


class BlockRule(Rule):
    """Verify chains as a whole."""

    name = "block"

    def judge(self, draft: Draft, p: Tensor, rngs: Rngs) -> Verdict:
        """Verify against dense rows p [B, N, V]."""
        if here.applies(p):
            return here.judge_blocks(draft, p, rngs)
        valid = drafted(draft)
        r = _running_ratio(chain_ratios(draft, p, valid))  # [B, N]
        level = torch.arange(1, draft.nodes, device=p.device)
        # no early exit: the LAST passing level wins, whatever failed before it
        passed = rngs.accept(_levels(draft, p, r), active=drafting(draft)) & valid
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


def _residual(draft: Draft, rows: tuple[Tensor, Tensor | None], r: Tensor, node: Tensor) -> Tensor:
    """Return R = max(r p - q, 0) at `node` [B, M], of which node + 1 is the child; rows are p and q there [B, M, V]."""
    p, q = rows
    child = (node + 1).clamp(max=draft.nodes - 1)
    fixed = draft.draw.gather(1, child) == int(Draw.FIXED)
    weights = p * r[..., None].to(p.dtype)
    if q is not None:
        if maybe(fixed):
            q = q.masked_fill(fixed[..., None], 0.0)
        weights = (weights.sub_(q) if q.dtype == p.dtype else weights - q).clamp_(min=0)
    # below a FIXED child q is 1 at its token, so nothing is left there
    return drop(weights, draft.tokens.gather(1, child), fixed)


def _levels(draft: Draft, p: Tensor, r: Tensor) -> Tensor:
    """Return the pass probability of levels 1..L -> [B, L] float64; padding gets whatever, it is masked."""
    last = draft.nodes - 1
    nodes = torch.arange(1, last, device=p.device).expand(p.shape[0], -1)
    levels = r[:, 1:].clone()  # right for each row's last level
    if last > 1:
        rows = p[:, 1:last], None if draft.q is None else draft.q[:, 1:last]
        s = _residual(draft, rows, r[:, 1:last], nodes).sum(2).double()
        whole = s + 1.0 - r[:, 1:last]
        inner = torch.where(whole > 0, s / whole, 1.0)
        levels[:, :-1] = torch.where(nodes < draft.length[:, None] - 1, inner, r[:, 1:last])
    return levels.clamp_(0.0, 1.0)


def _next_law(draft: Draft, p: Tensor, r: Tensor, accepted: Tensor) -> Tensor:
    row = torch.arange(len(accepted), device=p.device)
    p_row, q_row = p[row, accepted], None if draft.q is None else draft.q[row, accepted]
    node = accepted[:, None]
    rows = p_row[:, None], None if q_row is None else q_row[:, None]
    weights = _residual(draft, rows, r.gather(1, node), node)[:, 0]
    whole = accepted == draft.length - 1
    if maybe(whole):
        weights = torch.where(whole[:, None], p_row, weights)
    return or_else(weights, p_row)
