"""Top-down verification of trees, one node's children after another (2305.09781, 2402.14160, 2502.18779).

At a reached node with row P, child k stands with probability min(1, P(x_k) / Q_k(x_k)), else P becomes max(P - Q_k, 0)
normalised and the next child is tried. Q_k is the law child k was drawn from given its earlier siblings: a point mass
(FIXED), the row of q (SAMPLED), or that row without the earlier siblings' tokens (DISTINCT). Once only point masses are
left, trying them one by one is the same as drawing from P and following the child that carries the token, so that is
done: one draw a level for a tree of FIXED nodes. When no child stands that draw is the next token.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from slipstream.devices import certainly, maybe, moved, on_host
from slipstream.types import Draft, Draw, Rngs, Verdict
from slipstream.verify.points import levels
from slipstream.verify.rule import Rule, drafted, drawn, drop, need_q, refuse_undrawable


class TreeRule(Rule):
    """Verify trees (and chains) from the root down."""

    name = "tree"
    tree = True

    def judge(self, draft: Draft, p: Tensor, rngs: Rngs) -> Verdict:
        """Verify against dense rows p [B, N, V]."""
        walk = _Walk(draft, p, need_q(draft, drawn(draft)))
        for _ in range(levels(draft)):
            for turn in range(walk.turns):
                tried, child = walk.next_child(turn)
                if maybe(tried):
                    walk.try_child(child, tried, rngs)
            walk.follow(rngs)
            if not maybe(walk.alive):
                break
        return Verdict(walk.path, walk.accepted, walk.out)


@dataclass
class _Law:
    """The law a child was drawn from: `at_x` [B] at its token, 1 for a point mass; `row` [B, V] over `total` [B]."""

    at_x: Tensor
    row: Tensor | None = None  # None: every tried child is a point mass
    total: Tensor | None = None
    from_row: Tensor | None = None


class _Walk:
    """Where each row stands: its node, what is left of p there, and its row of q, whole and without tried siblings.

    A node has a turn, the first among its siblings being 0, when a coin is flipped for it: when it or a later sibling
    was drawn. `moved` marks the rows that descended in the present level.
    """

    def __init__(self, draft: Draft, p: Tensor, q: Tensor | None) -> None:
        B, N = draft.tokens.shape
        self.draft, self.p, self.q = draft, p, q
        self.node = torch.zeros(B, dtype=torch.int64, device=p.device)
        self.accepted, self.out = torch.zeros_like(self.node), torch.zeros_like(self.node)
        self.path = torch.full((B, max(1, N - 1)), -1, dtype=torch.int64, device=p.device)
        self.alive = torch.ones(B, dtype=torch.bool, device=p.device)
        self.moved = torch.zeros_like(self.alive)
        self.real = drafted(draft)  # [B, N - 1]: node i is in column i - 1
        self.distinct = bool((on_host(draft.draw) == int(Draw.DISTINCT)).any())
        turn = _turns(draft)
        self.turn = moved(turn, p.device)
        self.turns = 0 if q is None or N == 1 else 1 + int(turn.max())
        self._arrive()

    def next_child(self, turn: int) -> tuple[Tensor, Tensor]:
        """Return which rows [B] have a child with this turn at their node, and which node it is [B]."""
        hits = self._children() & (self.turn == turn)
        return hits.any(1) & self.alive & ~self.moved, hits.int().argmax(1) + 1

    def try_child(self, child: Tensor, tried: Tensor, rngs: Rngs) -> None:
        """Flip the coin of node `child` [B] in the rows of `tried`; descend where it stands, subtract it where not."""
        x = self.draft.tokens.gather(1, child[:, None])[:, 0]
        law = self._law(child, x, tried)
        a = _at(self.left, x) / (self.mass * law.at_x)
        stands = rngs.accept(torch.where(tried, a, 0.0).clamp(max=1.0), active=tried) & tried
        refused = tried & ~stands
        if maybe(refused):
            self._refuse(x, refused, law)
        self._descend(child, stands)

    def follow(self, rngs: Rngs) -> None:
        """Draw from what is left; go to the child that carries the token, or end with it. Then start a new level."""
        waiting = self.alive & ~self.moved
        if maybe(waiting):
            token = rngs.correct(self.left, active=waiting)
            self.out = torch.where(waiting, token, self.out)
            hits = self._children() & (self.turn < 0) & (self.draft.tokens[:, 1:] == token[:, None])
            found = hits.any(1) & waiting
            self.alive = self.alive & (found | ~waiting)
            if self.draft.nodes > 1 and maybe(found):
                self._descend(hits.int().argmax(1) + 1, found)
        if maybe(self.moved):
            self._arrive()
            self.moved = torch.zeros_like(self.moved)

    def _children(self) -> Tensor:
        return self.real & (self.draft.parents[:, 1:] == self.node[:, None])  # [B, N - 1]

    def _arrive(self) -> None:
        """Start at the present node of every row; what this sets in rows that have ended is not read."""
        row = torch.arange(len(self.node), device=self.node.device)
        self.left = self.p[row, self.node]  # [B, V], not normalised: its mass is beside it
        self.mass = self.left.sum(1)
        self.whole = self.untried = None
        if self.q is not None and self.turns and maybe(self._children() & (self.turn >= 0)):
            self.whole = self.untried = self.q[row, self.node]  # [B, V]

    def _law(self, child: Tensor, x: Tensor, tried: Tensor) -> _Law:
        kind = self.draft.draw.gather(1, child[:, None])[:, 0]
        from_row = tried & (kind != int(Draw.FIXED))
        if self.whole is None or self.untried is None or not maybe(from_row):
            return _Law(torch.ones_like(self.mass))
        distinct = tried & (kind == int(Draw.DISTINCT))
        # masked and summed, never 1 - cumsum: that cancels when the first token has nearly all the mass
        row = _choose(distinct, self.untried, self.whole)
        total = (
            torch.where(distinct, row.sum(1), 1.0) if self.distinct and maybe(distinct) else torch.ones_like(row[:, 0])
        )
        at_x = _at(row, x) / total
        refuse_undrawable(at_x, from_row)
        return _Law(torch.where(from_row, at_x, 1.0), row, total, from_row)

    def _refuse(self, x: Tensor, refused: Tensor, law: _Law) -> None:
        left = self.left
        if law.row is not None and law.total is not None and law.from_row is not None:
            taken = law.row * (self.mass / law.total)[:, None].to(law.row.dtype)
            # chosen, not multiplied by 0: a row of q that nothing was drawn from may hold anything
            left = _choose(refused & law.from_row, (left - taken).clamp_(min=0), left)
        left = drop(left.clone() if left is self.left else left, x, refused)
        mass = left.sum(1)
        # only rounding can leave nothing after a refusal (its probability is then 0): keep what was there
        some = mass > 0
        self.left, self.mass = _choose(some, left, self.left), torch.where(some, mass, self.mass)
        if self.untried is not None and self.distinct:
            self.untried = drop(self.untried.clone(), x, refused)

    def _descend(self, child: Tensor, stands: Tensor) -> None:
        self.node = torch.where(stands, child, self.node)
        at = self.accepted.clamp(max=self.path.shape[1] - 1)[:, None]  # a row that stays writes what is there
        self.path = self.path.scatter(1, at, torch.where(stands[:, None], child[:, None], self.path.gather(1, at)))
        self.accepted = self.accepted + stands
        self.moved = self.moved | stands


def _turns(draft: Draft) -> Tensor:
    """Return, on the host, each node's place among the siblings that need a coin, -1: it needs none -> [B, N - 1]."""
    marks, real, above = on_host(drawn(draft)), on_host(drafted(draft)), on_host(draft.parents)[:, 1:]
    if draft.q is None or draft.nodes == 1:
        return torch.full_like(above, -1)
    siblings = (above[:, :, None] == above[:, None, :]) & real[:, None, :]  # [B, node, sibling]
    order = torch.arange(draft.nodes - 1)
    needs = (siblings & marks[:, None, :] & (order >= order[:, None])).any(2) & real
    before = (siblings & (order < order[:, None])).sum(2)  # who needs a coin comes before who needs none
    return torch.where(needs, before, -1)


def _at(rows: Tensor, x: Tensor) -> Tensor:
    return rows.gather(1, x.clamp(min=0)[:, None])[:, 0]


def _choose(where: Tensor, yes: Tensor, no: Tensor) -> Tensor:
    """Choose rows [B, V] by `where` [B]; a choice that is the same for all rows copies nothing."""
    if certainly(where):
        return yes
    return torch.where(where[:, None], yes, no) if maybe(where) else no
