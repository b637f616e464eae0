"""Choose a rule for each row by the shape and kind of its draft, never by its tokens; split, verify, merge.

Trees go to `tree`. A chain of two or more nodes with drawn ones goes to `block`; any other chain to `chain`, which for
point masses and for a single node accepts exactly as much.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

import torch
from torch import Tensor

from slipstream.devices import known, listed, moved, on_host
from slipstream.types import Draft, Draw, Rngs, Verdict
from slipstream.verify.block import BlockRule
from slipstream.verify.chain import ChainRule
from slipstream.verify.rule import Rule, drawn
from slipstream.verify.tree import TreeRule

_RULES: tuple[Rule, ...] = (ChainRule(), BlockRule(), TreeRule())
_CHAIN, _BLOCK, _TREE = range(3)


class AutoRule(Rule):
    """Verify each row with the rule that accepts most for its draft."""

    name = "auto"
    tree = True

    def judge(self, draft: Draft, p: Tensor, rngs: Rngs) -> Verdict:
        """Verify against dense rows p [B, N, V]."""
        kinds = _kinds(draft)
        present = sorted(set(kinds))
        if len(present) == 1:
            return _RULES[present[0]].judge(draft, p, rngs)
        merged = _blank(draft)
        for k in present:
            chosen = torch.tensor([b for b, kind in enumerate(kinds) if kind == k])
            rows = moved(chosen, p.device)
            part = _RULES[k].judge(_pick(draft, chosen, k), p[rows], _RowsOf(rngs, chosen, rows, len(kinds)))
            merged.path[rows], merged.accepted[rows] = part.path, part.accepted
            merged.next_token[rows] = part.next_token
        return merged


def _kinds(draft: Draft) -> list[int]:
    """Return the rule of each row, on the host. It looks at shape and kinds only: it cannot lean on a token."""
    parents = [[]] * len(draft.length) if draft.chain else listed(draft.parents)
    return [_kind(*row) for row in zip(listed(draft.draw), listed(draft.length), parents, strict=True)]


def _kind(draws: list[int], length: int, parents: list[int]) -> int:
    if any(parents[node] != node - 1 for node in range(1, length if parents else 0)):
        return _TREE
    return _BLOCK if length > 2 and any(draw != Draw.FIXED for draw in draws[1:length]) else _CHAIN


def _pick(draft: Draft, chosen: Tensor, kind: int) -> Draft:
    device = draft.tokens.device
    rows = moved(chosen, device)
    q = draft.q if kind != _CHAIN or bool(on_host(drawn(draft))[chosen].any()) else None
    parents, length, draw = (moved(on_host(t)[chosen], device) for t in (draft.parents, draft.length, draft.draw))
    return Draft(
        tokens=draft.tokens[rows],
        parents=parents,
        length=length,
        draw=draw,
        q=None if q is None else q[rows],
        chain=kind != _TREE,
    )


def _blank(draft: Draft) -> Verdict:
    zero = torch.zeros_like(draft.length)
    return Verdict(draft.tokens.new_full((len(zero), max(1, draft.nodes - 1)), -1), zero, zero.clone())


class _RowsOf:
    """The randomness of some rows of the batch, in the shape a rule over just these rows expects."""

    def __init__(self, rngs: Rngs, chosen: Tensor, rows: Tensor, size: int) -> None:
        self._rngs, self._chosen, self._rows, self._size = rngs, chosen, rows, size

    def draft(self, w: Tensor, depth: int, active: Tensor | None = None) -> Tensor:
        return self._rngs.draft(self._spread(w), depth, self._mask(active))[self._rows]

    def draft_nodes(self, w: Tensor, depth: int, owners: Seq[int]) -> Tensor:
        rows = self._chosen.tolist()
        return self._rngs.draft_nodes(w, depth, [rows[b] for b in owners])

    def accept(self, a: Tensor, active: Tensor | None = None) -> Tensor:
        return self._rngs.accept(self._spread(a), self._mask(active))[self._rows]

    def correct(self, w: Tensor, active: Tensor | None = None) -> Tensor:
        return self._rngs.correct(self._spread(w), self._mask(active))[self._rows]

    def shared(self, w: Tensor, depth: int, active: Tensor | None = None) -> Tensor:
        return self._rngs.shared(self._spread(w), depth, self._mask(active))[self._rows]

    def _spread(self, values: Tensor) -> Tensor:
        whole = values.new_zeros((self._size, *values.shape[1:]))
        whole[self._rows] = values
        return whole

    def _mask(self, active: Tensor | None) -> Tensor:
        if active is None or known(active):
            mask = torch.zeros(self._size, dtype=torch.bool)
            mask[self._chosen] = True if active is None else on_host(active)
            return moved(mask, self._rows.device)
        whole = torch.zeros(self._size, dtype=torch.bool, device=self._rows.device)
        whole[self._rows] = active
        return whole
