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
from slipstream.verify.rule import Rule, drawn, drop, need_q, refuse_undrawable


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
    """The law a child was drawn from: `at_x` [B] at its token, 1 for a point mass; `row` [B, V] over `total` [B]."""

    at_x: Tensor
    row: Tensor | None = None  # None: every tried child is a point mass
    total: Tensor | None = None
    from_row: Tensor | None = None


class _Walk:
    """Where each row stands: its node, what is left of p there, and its row of q, whole and without tried siblings."""

    def __init__(self, draft: Draft, p: Tensor, q: Tensor | None) -> None:
        B, N = draft.tokens.shape
        self.draft, self.p, self.q = draft, p, q
        self.node = torch.zeros(B, dtype=torch.int64, device=p.device)
        self.accepted = torch.zeros_like(self.node)
        self.path = torch.full((B, max(1, N - 1)), -1, dtype=torch.int64, device=p.device)
        self.left = p[:, 0]  # [B, V], not normalised: its mass is beside it
        self.mass = self.left.sum(1)
        self.whole = self.untried = None if q is None else q[:, 0]  # [B, V]

    def try_child(self, i: int, tried: Tensor, rngs: Rngs) -> None:
        """Flip the coin of node i in the rows of `tried`; descend where it stands, subtract its law where not."""
        x = self.draft.tokens[:, i]
        law = self._law(i, x, tried)
        a = _at(self.left, x) / (self.mass * law.at_x)
        stands = rngs.accept(torch.where(tried, a, 0.0).clamp(max=1.0), active=tried) & tried
        refused = tried & ~stands
        if bool(refused.any()):
            self._refuse(x, refused, law)
        if bool(stands.any()):
            self._descend(i, stands)

    def _law(self, i: int, x: Tensor, tried: Tensor) -> _Law:
        kind = self.draft.draw[:, i]
        from_row = tried & (kind != int(Draw.FIXED))
        if self.whole is None or self.untried is None or not bool(from_row.any()):
            return _Law(torch.ones_like(self.mass))
        distinct = tried & (kind == int(Draw.DISTINCT))
        # masked and summed, never 1 - cumsum: that cancels when the first token has nearly all the mass
        row = _choose(distinct, self.untried, self.whole)
        total = torch.where(distinct, row.sum(1), 1.0)
        at_x = _at(row, x) / total
        refuse_undrawable(at_x, from_row)
        return _Law(torch.where(from_row, at_x, 1.0), row, total, from_row)

    def _refuse(self, x: Tensor, refused: Tensor, law: _Law) -> None:
        left = self.left.clone()
        if law.row is not None and law.total is not None and law.from_row is not None:
            taken = law.row * (self.mass / law.total)[:, None].to(law.row.dtype)
            # chosen, not multiplied by 0: a row of q that nothing was drawn from may hold anything
            left = _choose(refused & law.from_row, (left - taken).clamp_(min=0), left)
        left = drop(left, x, refused)
        mass = left.sum(1)
        # only rounding can leave nothing after a refusal (its probability is then 0): keep what was there
        some = mass > 0
        self.left, self.mass = _choose(some, left, self.left), torch.where(some, mass, self.mass)
        if self.untried is not None:
            self.untried = drop(self.untried.clone(), x, refused)

    def _descend(self, i: int, stands: Tensor) -> None:
        self.node = torch.where(stands, i, self.node)
        at = self.accepted[:, None]
        self.path = self.path.scatter(1, at, torch.where(stands[:, None], i, self.path.gather(1, at)))
        self.accepted = self.accepted + stands
        self.left = _choose(stands, self.p[:, i], self.left)
        self.mass = self.left.sum(1)
        if self.q is not None and self.whole is not None and self.untried is not None:
            self.whole = _choose(stands, self.q[:, i], self.whole)
            self.untried = _choose(stands, self.q[:, i], self.untried)


def _at(rows: Tensor, x: Tensor) -> Tensor:
    return rows.gather(1, x.clamp(min=0)[:, None])[:, 0]


def _choose(where: Tensor, yes: Tensor, no: Tensor) -> Tensor:
    """Choose rows [B, V] by `where` [B]; a choice that is the same for all rows copies nothing."""
    if bool(where.all()):
        return yes
    return torch.where(where[:, None], yes, no) if bool(where.any()) else no
