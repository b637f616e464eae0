"""Chains in the host's memory: what `chain` and `block` decide, in plain numbers.

A tensor operation on a handful of numbers takes longer than the numbers do, and one on rows of a vocabulary longer than
reading them. So only what a row is drawn from is written, and of other rows no more than sums is taken. The modules of
the rules hold the tensor operations that accelerators need; they decide the same, and name the sources.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import torch
from torch import Tensor

from slipstream.devices import listed
from slipstream.kernels import laws
from slipstream.kernels.laws import Parts
from slipstream.types import Draft, Draw, Rngs, Verdict
from slipstream.verify.points import runs
from slipstream.verify.rule import drawn, need_q, refuse_undrawable


def applies(p: Tensor) -> bool:
    """Say whether laws lie where this module reads them."""
    return p.is_cpu


@dataclass(frozen=True)
class _Chain:
    """One row: its laws [N, V], the laws drawn from [.., V], drafted ids, which were drawn, and p(x) / q(x) of each."""

    p: Tensor
    q: Tensor | None
    ids: list[int]
    drawn: list[bool]
    ratios: list[float]

    def residual(self, node: int, r: float = 1.0) -> Parts:
        """What is left of the law after a node when its child falls: q is 1 at the one id of a FIXED child."""
        if self.q is not None and self.drawn[node]:
            return self.p[node], self.q[node], r, -1
        return self.p[node], None, r, self.ids[node]

    def after(self, node: int, r: float = 1.0) -> Tensor:
        """Return the weights [V] of the token that follows when this node is the last to stand."""
        if node == len(self.ids):
            return self.p[node]
        weights, mass = _residual(*self.residual(node, r))
        return weights if mass > 0.0 else self.p[node]  # p and q equal there, to the last bit


def judge_chains(draft: Draft, p: Tensor, rngs: Rngs) -> Verdict:
    """Token by token: a row ends at the first coin that fails."""
    rows = _rows(draft, p)
    coins = _coins(draft, [[min(1.0, ratio) for ratio in row.ratios] for row in rows], rngs)
    accepted = [next((k for k, fine in enumerate(row) if not fine), len(row)) for row in coins]
    return _verdict(draft, accepted, [row.after(node) for row, node in zip(rows, accepted, strict=True)], rngs)


def judge_blocks(draft: Draft, p: Tensor, rngs: Rngs) -> Verdict:
    """As a whole: a row ends at the last level that passes, whatever failed before it."""
    rows = _rows(draft, p)
    running = [_running(row.ratios) for row in rows]
    levels = _levels(rows, running)
    coins = _coins(draft, levels, rngs)
    accepted = [max((k for k, fine in enumerate(row, 1) if fine), default=0) for row in coins]
    weights = [row.after(node, r[node]) for row, r, node in zip(rows, running, accepted, strict=True)]
    return _verdict(draft, accepted, weights, rngs)


def _rows(draft: Draft, p: Tensor) -> list[_Chain]:
    lengths, ids, draws = listed(draft.length), listed(draft.tokens), listed(draft.draw)
    marks = [[kind != Draw.FIXED for kind in row[1:n]] for row, n in zip(draws, lengths, strict=True)]
    from_q = any(map(any, marks))
    if from_q and draft.q is None:
        need_q(draft, drawn(draft))
    x = draft.tokens[:, 1:, None].clamp(min=0)
    p_x = p[:, :-1].gather(2, x)[..., 0].tolist()
    q_x: list[list[float]] = []
    if from_q and draft.q is not None:
        recorded = draft.q[:, : draft.nodes - 1].gather(2, x)[..., 0]
        refuse_undrawable(recorded, drawn(draft))
        q_x = recorded.tolist()
    found = []
    for b, (n, own) in enumerate(zip(lengths, marks, strict=True)):
        ratios = [p_x[b][k] / q_x[b][k] if q_x and mark else p_x[b][k] for k, mark in enumerate(own)]
        found.append(_Chain(p[b], None if draft.q is None else draft.q[b], ids[b][1:n], own, ratios))
    return found


def _running(ratios: Seq[float]) -> list[float]:
    """Return r_0..r_L: the product of ratios, capped at 1 after every factor."""
    found = [1.0]
    for ratio in ratios:
        found.append(min(1.0, found[-1] * ratio))
    return found


def _levels(rows: Seq[_Chain], running: Seq[Seq[float]]) -> list[list[float]]:
    """Return the pass probability of levels 1..L of each row."""
    inner = [row.residual(node, r[node]) for row, r in zip(rows, running, strict=True) for node in range(1, len(r) - 1)]
    masses = iter(_masses(inner))
    found = []
    for r in running:
        levels = [_level(next(masses), each) for each in r[1:-1]]
        found.append([*levels, *(r[-1:] if len(r) > 1 else [])])
    return found


def _level(mass: float, r: float) -> float:
    whole = mass + 1.0 - r
    return min(1.0, max(0.0, mass / whole)) if whole > 0.0 else 1.0


def _coins(draft: Draft, chances: Seq[Seq[float]], rngs: Rngs) -> list[list[bool]]:
    """Flip a coin for each drafted node; padding gets none."""
    padded = [[*row, *[0.0] * (draft.nodes - 1 - len(row))] for row in chances]
    active = None if all(chances) else torch.tensor([bool(row) for row in chances])
    coins = rngs.accept(torch.tensor(padded, dtype=torch.float64), active=active).tolist()
    return [own[: len(row)] for own, row in zip(coins, chances, strict=True)]


def _verdict(draft: Draft, accepted: list[int], weights: list[Tensor], rngs: Rngs) -> Verdict:
    w = weights[0][None] if len(weights) == 1 else torch.stack(weights)
    return Verdict(*runs(draft.nodes, tuple(accepted)), rngs.correct(w))


def _masses(parts: Seq[Parts]) -> list[float]:
    if parts and all(_fits(*each) for each in parts):
        return laws.residual_masses(parts)
    return [_residual(*each)[1] for each in parts]


def _residual(p: Tensor, q: Tensor | None, r: float, drop: int) -> tuple[Tensor, float]:
    """Return the row and its sum."""
    if _fits(p, q, r, drop):
        return laws.residual(p, q, r, drop)
    weights = p * r if q is None else (p * r - q).clamp_(min=0)
    if drop >= 0:
        weights[drop] = 0
    return weights, float(weights.sum(dtype=torch.float64))


def _fits(p: Tensor, q: Tensor | None, _r: float, _drop: int) -> bool:
    return laws.fits(p) if q is None else laws.fits(p, q)
