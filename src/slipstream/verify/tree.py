"""Top-down verification of trees, one node's children after another (2305.09781, 2402.14160, 2502.18779).

At a reached node with row P, child k stands with probability min(1, P(x_k) / Q_k(x_k)), else P becomes max(P - Q_k, 0)
normalised and the next child is tried; when none stands the last P gives the next token. Q_k is the law child k was
drawn from given its earlier siblings: a point mass (FIXED), the row of q (SAMPLED), or that row without the earlier
siblings' tokens (DISTINCT). Every mixture of kinds, and chains, are this one walk.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from slipstream.types import Draft, Draw, Rngs, Verdict
from slipstream.verify.rule import Rule, drawn, need_q, refuse_undrawable


class TreeRule(Rule):
    """Verify trees (and chains) from the root down."""

    name = "tree"
    tree = True

    def judge(self, draft: Draft, p: Tensor, rngs: Rngs) -> Verdict:
        """Verify against dense rows p [B, N, V]."""
        walk = _Walk(draft, p, need_q(draft, drawn(draft)))
        # parents come before children and siblings in drawn order: one pass over the nodes is the whole walk
        for i in range(1, draft.nodes):
            tried = (draft.parents[:, i] == walk.node) & (draft.length > i)
            if bool(tried.any()):
                walk.try_child(i, tried, rngs)
        return Verdict(walk.path, walk.accepted, rngs.correct(walk.left))


@dataclass
class _Law:
    """The law a child was drawn from at its token, and the mass of the row it comes from (1 for a point mass)."""

    at_x: Tensor  # [B]
    row: Tensor | None  # [B, V], None: every tried child is a point mass
    from_row: Tensor  # [B] bool


class _Walk:
    """Where each row stands: its node, what is left of p there, and the row of q without the siblings already tried."""

    def __init__(self, draft: Draft, p: Tensor, q: Tensor | None) -> None:
        B, N = draft.tokens.shape
        self.draft, self.p, self.q = draft, p, q
        self.node = torch.zeros(B, dtype=torch.int64, device=p.device)
        self.accepted = torch.zeros_like(self.node)
        self.path = torch.full((B, max(1, N - 1)), -1, dtype=torch.int64, device=p.device)
        self.left = p[:, 0]  # [B, V], not normalised
        self.untried = None if q is None else q[:, 0]  # [B, V]

    def try_child(self, i: int, tried: Tensor, rngs: Rngs) -> None:
        """Flip the coin of node i in the rows of `tried`; descend where it stands, subtract its law where not."""
        x = self.draft.tokens[:, i : i + 1].clamp(min=0)  # [B, 1]
        law = self._law(i, x, tried)
        mass = self.left.sum(1)
        a = self.left.gather(1, x)[:, 0] / (mass * law.at_x)
        stands = rngs.accept(torch.where(tried, a, 0.0).clamp(max=1.0), active=tried) & tried
        self._refuse(x, tried & ~stands, mass, law)
        self._descend(i, stands)

    def _law(self, i: int, x: Tensor, tried: Tensor) -> _Law:
        kind = self.draft.draw[:, i]
        from_row = tried & (kind != int(Draw.FIXED))
        if self.q is None or not bool(from_row.any()):
            return _Law(torch.ones_like(self.left[:, 0]), None, from_row)
        assert self.untried is not None
        # masked and summed, never 1 - cumsum: that cancels when the first token has nearly all the mass
        distinct = self.untried / self.untried.sum(1, keepdim=True)
        row = torch.where((kind == int(Draw.DISTINCT))[:, None], distinct, self._row(self.q))
        at_x = row.gather(1, x)[:, 0]
        refuse_undrawable(at_x, from_row)
        return _Law(torch.where(from_row, at_x, 1.0), row, from_row)

    def _refuse(self, x: Tensor, refused: Tensor, mass: Tensor, law: _Law) -> None:
        left = self.left
        if law.row is not None:
            residual = (left - mass[:, None] * law.row).clamp(min=0)
            left = torch.where((refused & law.from_row)[:, None], residual, left)
        left = self._without(left, x, refused)
        # only rounding can leave nothing after a refusal (its probability is then 0): keep what was there
        self.left = torch.where(left.sum(1, keepdim=True) > 0, left, self.left)
        if self.untried is not None:
            self.untried = self._without(self.untried, x, refused)

    def _descend(self, i: int, stands: Tensor) -> None:
        self.node = torch.where(stands, i, self.node)
        at = self.accepted[:, None]
        self.path = self.path.scatter(1, at, torch.where(stands[:, None], i, self.path.gather(1, at)))
        self.accepted = self.accepted + stands
        self.left = torch.where(stands[:, None], self.p[:, i], self.left)
        if self.q is not None and self.untried is not None:
            self.untried = torch.where(stands[:, None], self.q[:, i], self.untried)

    def _row(self, rows: Tensor) -> Tensor:
        return rows[torch.arange(len(self.node), device=rows.device), self.node]

    @staticmethod
    def _without(row: Tensor, x: Tensor, where: Tensor) -> Tensor:
        return row.scatter(1, x, torch.where(where[:, None], 0.0, row.gather(1, x)))
