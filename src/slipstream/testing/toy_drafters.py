"""Toy drafters: one for every way a node can be drawn, and scripted ones that force every accept length.

Each drafts from a known law and records exactly what it drew from (law 3). They check that they hear the committed
tokens, all but the last, in order and once (laws 1 and 7).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

import torch
from torch import Tensor

from slipstream.testing.toys import Law
from slipstream.types import Draft, Draw, Needs, Rngs, Sequence, WorkError

ROOT = 0


@dataclass
class Sprout:
    """One row's draft while it grows: node 0 is the root; `q[i]` is the row the children of node i are drawn from."""

    tokens: list[int]
    parents: list[int] = field(default_factory=lambda: [-1])
    draw: list[Draw] = field(default_factory=lambda: [Draw.FIXED])
    q: dict[int, Seq[float]] = field(default_factory=dict)

    def add(self, token: int, parent: int, draw: Draw = Draw.FIXED) -> int:
        """Add a node and return its index."""
        self.tokens.append(token)
        self.parents.append(parent)
        self.draw.append(draw)
        return len(self.tokens) - 1

    def path(self, node: int) -> tuple[int, ...]:
        """Return the tokens from below the root to `node`."""
        return () if node == ROOT else (*self.path(self.parents[node]), self.tokens[node])

    def siblings(self, parent: int) -> list[int]:
        """Return the tokens of the children `parent` has so far."""
        return [t for t, above in zip(self.tokens, self.parents, strict=True) if above == parent]


def pack(sprouts: Seq[Sprout], vocab: int, nodes: int | None = None) -> Draft:
    """Pad rows to one `Draft`; q is None when no node was drawn."""
    N = max(nodes or 1, *(len(s.tokens) for s in sprouts))
    pads = [N - len(s.tokens) for s in sprouts]
    tokens = torch.tensor([s.tokens + [0] * pad for s, pad in zip(sprouts, pads, strict=True)])
    parents = torch.tensor([s.parents + [*range(N - pad - 1, N - 1)] for s, pad in zip(sprouts, pads, strict=True)])
    draw = torch.tensor([[int(k) for k in s.draw] + [0] * pad for s, pad in zip(sprouts, pads, strict=True)])
    q = None
    if bool((draw != int(Draw.FIXED)).any()):
        nothing = [0.0] * vocab
        q = torch.tensor([[s.q.get(i, nothing) for i in range(N)] for s in sprouts], dtype=torch.float64)
    length = torch.tensor([len(s.tokens) for s in sprouts])
    chain = bool((parents == torch.arange(-1, N - 1)).all())
    return Draft(tokens, parents, length, draw, q, chain)


class ToyDrafter:
    """The `Drafter` role with the hearing done: subclasses say how a batch of sprouts grows."""

    name = "toy"
    needs = Needs()

    def __init__(self, vocab: int) -> None:
        self.vocab = vocab
        self.heard: dict[int, list[int]] = {}

    def propose(self, rows: list[Sequence], budget: list[int], rngs: Rngs) -> Draft:
        """Draft for each row within its budget."""
        for row in rows:
            if self.heard.get(row.id, []) != row.tokens[:-1]:
                raise WorkError(f"sequence {row.id} holds {row.tokens}, its drafter heard {self.heard.get(row.id)}")
        sprouts = [Sprout([row.tokens[-1]]) for row in rows]
        self.grow(rows, sprouts, budget, rngs)
        return pack(sprouts, self.vocab)

    def observe(self, rows: list[Sequence], tokens: list[list[int]], taps: list[Mapping[int, Tensor]]) -> None:
        """Remember what is committed."""
        for row, new in zip(rows, tokens, strict=True):
            self.heard.setdefault(row.id, []).extend(new)

    def forget(self, row: Sequence) -> None:
        """Drop what is known of a row."""
        self.heard.pop(row.id, None)

    def grow(self, rows: list[Sequence], sprouts: list[Sprout], budget: list[int], rngs: Rngs) -> None:
        """Add nodes to the sprouts, at most `budget[b]` to the b-th."""
        raise NotImplementedError


class NoneToy(ToyDrafter):
    """Draft nothing: plain decoding."""

    name = "toy-none"

    def grow(self, rows: list[Sequence], sprouts: list[Sprout], budget: list[int], rngs: Rngs) -> None:
        """Leave every row at its root."""


class ScriptedToy(ToyDrafter):
    """Draft a chain of FIXED tokens: `guess(prefix, n)` returns at most n of them."""

    name = "toy-scripted"

    def __init__(self, guess: Callable[[tuple[int, ...], int], Seq[int]], vocab: int) -> None:
        super().__init__(vocab)
        self._guess = guess

    def grow(self, rows: list[Sequence], sprouts: list[Sprout], budget: list[int], rngs: Rngs) -> None:
        """Append the guess."""
        for row, sprout, n in zip(rows, sprouts, budget, strict=True):
            for token in list(self._guess(tuple(row.tokens), n))[:n]:
                sprout.add(token, len(sprout.tokens) - 1)


def greedy_toy(law: Law, vocab: int) -> ScriptedToy:
    """Return the drafter that guesses the likeliest tokens of `law`; with the target's own law it is an oracle."""
    return every_toy(law, vocab, 0)


def never_toy(law: Law, vocab: int) -> ScriptedToy:
    """Return the drafter that is wrong at every token when `law` is the target's own and greedy."""
    return every_toy(law, vocab, 1)


def every_toy(law: Law, vocab: int, n: int) -> ScriptedToy:
    """Return the drafter that guesses the likeliest tokens of `law` but misses at each n-th depth (0: never)."""

    def guess(prefix: tuple[int, ...], budget: int) -> list[int]:
        found: list[int] = []
        for depth in range(1, budget + 1):
            row = law((*prefix, *found))
            best = max(range(vocab), key=lambda t: (row[t], -t))
            found.append((best + 1) % vocab if n and depth % n == 0 else best)
        return found

    return ScriptedToy(guess, vocab)


class SampledToy(ToyDrafter):
    """Draft a chain drawn from `law`. `stop(prefix, drafted)` may end it, and sees kept tokens only (law 4)."""

    name = "toy-sampled"

    def __init__(
        self,
        law: Law,
        vocab: int,
        *,
        stop: Callable[[tuple[int, ...], tuple[int, ...]], bool] | None = None,
        draw: Draw = Draw.SAMPLED,
    ) -> None:
        super().__init__(vocab)
        self.law, self._stop, self._draw = law, stop, draw

    def grow(self, rows: list[Sequence], sprouts: list[Sprout], budget: list[int], rngs: Rngs) -> None:
        """Draw token after token."""
        growing = [n > 0 for n in budget]
        for depth in range(1, max(budget, default=0) + 1):
            weights: list[Seq[float]] = [[0.0] * self.vocab for _ in rows]
            for b, (row, sprout) in enumerate(zip(rows, sprouts, strict=True)):
                drafted = sprout.path(len(sprout.tokens) - 1)
                stopped = self._stop is not None and self._stop(tuple(row.tokens), drafted)
                growing[b] = growing[b] and depth <= budget[b] and not stopped
                if growing[b]:
                    sprout.q[depth - 1] = self.law((*row.tokens, *drafted))
                    weights[b] = sprout.q[depth - 1]
            w = torch.tensor(weights, dtype=torch.float64)
            tokens = rngs.draft(w, depth, torch.tensor(growing)).tolist()
            for b, sprout in enumerate(sprouts):
                if growing[b]:
                    sprout.add(tokens[b], depth - 1, self._draw)


class TreeToy(ToyDrafter):
    """Draft a tree whose inner nodes all have children of the given kinds, in that order, `depth` levels deep.

    FIXED children are the likeliest tokens of `law`; drawn children come from `law` without the FIXED ones, so
    (SAMPLED, FIXED) is the hybrid node of 2502.18779. The shape depends on the budget and on the rows of `law` above a
    node, never on a drawn token's own luck (law 4).
    """

    name = "toy-tree"
    needs = Needs(tree=True)

    def __init__(self, law: Law, vocab: int, kinds: Seq[Draw], depth: int) -> None:
        super().__init__(vocab)
        self.law, self.kinds, self.depth = law, tuple(kinds), depth

    def grow(self, rows: list[Sequence], sprouts: list[Sprout], budget: list[int], rngs: Rngs) -> None:
        """Grow level by level; all rows draw their next child together."""
        levels: list[list[int]] = [[ROOT] for _ in rows]
        for depth in range(1, self.depth + 1):
            plans = [self._plan(row, s, level) for row, s, level in zip(rows, sprouts, levels, strict=True)]
            levels = [[] for _ in rows]
            for step in range(max(len(plan) for plan in plans)):
                jobs = [plan[step] if step < len(plan) else None for plan in plans]
                jobs = [j if len(s.tokens) <= n else None for j, s, n in zip(jobs, sprouts, budget, strict=True)]
                self._add(sprouts, jobs, levels, depth, rngs)

    def _plan(self, row: Sequence, sprout: Sprout, level: list[int]) -> list[tuple[int, Draw, int]]:
        """List the children to come as (parent, kind, token of a FIXED one)."""
        plan = []
        for parent in level:
            q = list(self.law((*row.tokens, *sprout.path(parent))))
            best = sorted(range(self.vocab), key=lambda t: (-q[t], t))[: self.kinds.count(Draw.FIXED)]
            rest = [0.0 if t in best else w for t, w in enumerate(q)]
            kinds = [k for k in self.kinds if k == Draw.FIXED or sum(rest) > 0]
            if sum(rest) > 0:
                sprout.q[parent] = [w / sum(rest) for w in rest]
            fixed = iter(best)
            plan += [(parent, k, next(fixed) if k == Draw.FIXED else -1) for k in kinds]
        return plan

    def _add(
        self,
        sprouts: list[Sprout],
        jobs: Seq[tuple[int, Draw, int] | None],
        levels: list[list[int]],
        depth: int,
        rngs: Rngs,
    ) -> None:
        weights = torch.zeros(len(sprouts), self.vocab, dtype=torch.float64)
        for b, job in enumerate(jobs):
            if job is not None and job[1] != Draw.FIXED:
                weights[b] = torch.tensor(self.weights(sprouts[b], job[0], job[1]), dtype=torch.float64)
        active = weights.sum(1) > 0
        tokens = rngs.draft(weights, depth, active).tolist() if bool(active.any()) else [0] * len(sprouts)
        for b, job in enumerate(jobs):
            if job is not None and (job[1] == Draw.FIXED or bool(active[b])):
                token = job[2] if job[1] == Draw.FIXED else tokens[b]
                levels[b].append(sprouts[b].add(token, job[0], job[1]))

    def weights(self, sprout: Sprout, parent: int, kind: Draw) -> Seq[float]:
        """Return what the next child of `parent` is drawn from, given its earlier siblings."""
        gone = sprout.siblings(parent) if kind == Draw.DISTINCT else ()
        return [0.0 if t in gone else w for t, w in enumerate(sprout.q[parent])]


class PeekingToy(SampledToy):
    """Break law 4 on purpose, for negative controls: draw, look, and take back.

    `withdraw(prefix, drafted)` says whether the draft ends before the last token of `drafted`.
    """

    name = "toy-peeking"

    def __init__(self, law: Law, vocab: int, withdraw: Callable[[tuple[int, ...], tuple[int, ...]], bool]) -> None:
        super().__init__(law, vocab)
        self._withdraw = withdraw

    def grow(self, rows: list[Sequence], sprouts: list[Sprout], budget: list[int], rngs: Rngs) -> None:
        """Draw the whole chain, then cut it at the first token to be withdrawn."""
        super().grow(rows, sprouts, budget, rngs)
        for row, sprout in zip(rows, sprouts, strict=True):
            for node in range(1, len(sprout.tokens)):
                if self._withdraw(tuple(row.tokens), sprout.path(node)):
                    del sprout.tokens[node:], sprout.parents[node:], sprout.draw[node:]
                    break
