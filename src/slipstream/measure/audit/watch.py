"""Watch rounds go by and keep what the statistics need: a few numbers per emitted and per drafted token.

In: whole rounds of the engine, before they are committed (`Engine.watch`), or drafts, laws and verdicts from anywhere.
Out: `Emitted` and `Drafted` arrays. The laws are those of the verify pass, so rounding in the model cannot be mistaken
for bias. Nothing is decided here, and rows of probabilities are not kept.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from slipstream.engine import Round
from slipstream.measure.audit.pit import Array, lean, pit
from slipstream.types import Draft, Draw, Laws, Verdict


@dataclass(frozen=True)
class Emitted:
    """One entry per emitted token: U, the target's mass on tokens that the draft over- and underrates, and on fixed
    guesses (`guessed`: there were some; `hit`: the token was one), and whose it is."""

    u: Array
    over: Array
    under: Array
    guessed: Array
    hit: Array
    mass: Array
    row: Array

    def __len__(self) -> int:
        return len(self.u)


@dataclass
class Watch:
    """Collects rounds. `seed` is of the audit's own noise, which randomises U."""

    seed: int = 0
    drafted_too: bool = True  # False under shared noise: a refused guess and its position's next share their noise
    _emitted: list[Tensor] = field(default_factory=list)
    _drafted: list[Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._noise = torch.Generator().manual_seed(self.seed)

    def __call__(self, work: Round) -> None:
        """Take in a round of the engine."""
        assert work.verdict is not None
        self.take([row.id for row in work.rows], work.draft, work.laws, work.verdict)

    def take(self, ids: list[int], draft: Draft, laws: Laws, verdict: Verdict) -> None:
        """Take in one round of rows with these ids; greedy rounds say nothing about laws."""
        if laws.probs is None:
            return
        b, node, token = visited(draft, verdict)
        if laws.bad is not None:
            fine = ~laws.bad[b, node]
            b, node, token = b[fine], node[fine], token[fine]
        p = laws.probs[b, node].double()  # [R, V]
        order, guesses = _order(draft, b, node, p)
        u = pit(p, order, token, self._random(len(b), p))
        guessed = guesses.any(1)
        mass = torch.where(guesses, p, 0.0).sum(1).clamp(max=1.0)
        hit = guesses.gather(1, token[:, None])[:, 0]
        over = torch.where(order > 1.0, p, 0.0).sum(1)
        under = torch.where(order < 1.0, p, 0.0).sum(1) * order.any(1)
        row = torch.tensor(ids, device=b.device)[b]
        columns = (u, over, under, guessed, hit, mass, row)
        self._emitted.append(torch.stack([c.double().cpu() for c in columns]))
        if self.drafted_too and draft.q is not None:
            self._take_drafted(draft)

    def _take_drafted(self, draft: Draft) -> None:
        """U of each drawn node under the law recorded for it: law 3."""
        assert draft.q is not None
        real = torch.arange(draft.nodes, device=draft.tokens.device) < draft.length[:, None]
        b, node = (real & (draft.draw != int(Draw.FIXED))).nonzero(as_tuple=True)
        if not len(b):
            return
        parent, token = draft.parents[b, node], draft.tokens[b, node]
        q = draft.q[b, parent].double()
        earlier = (draft.parents[b] == parent[:, None]) & (torch.arange(draft.nodes, device=b.device) < node[:, None])
        earlier &= (draft.draw[b, node] == int(Draw.DISTINCT))[:, None]
        gone = torch.zeros_like(q).scatter_reduce(1, draft.tokens[b], earlier.double(), "amax")
        q = torch.where(gone > 0, 0.0, q)
        self._drafted.append(pit(q, torch.zeros_like(q), token, self._random(len(b), q)).cpu())

    def _random(self, n: int, like: Tensor) -> Tensor:
        return torch.rand(n, generator=self._noise, dtype=torch.float64).to(like.device)

    def emitted(self) -> Emitted:
        """Return what is known of all emitted tokens, row after row, each row's in order."""
        if not self._emitted:
            none = np.zeros(0)
            return Emitted(none, none, none, none > 0, none > 0, none, none)
        found = torch.cat(self._emitted, 1)
        u, over, under, guessed, hit, mass, row = found[:, found[6].argsort(stable=True)].numpy()
        return Emitted(u, over, under, guessed > 0, hit > 0, mass, row)

    def drafted(self) -> Array:
        """Return U of all drawn nodes under the laws recorded for them."""
        return torch.cat(self._drafted).numpy() if self._drafted else np.zeros(0)


def visited(draft: Draft, verdict: Verdict) -> tuple[Tensor, Tensor, Tensor]:
    """Return row, node and emitted token of every step of the accepted paths, the last included -> three of [R]."""
    B, D = verdict.path.shape
    step = torch.arange(D + 1, device=verdict.path.device)
    root = torch.zeros(B, 1, dtype=torch.int64, device=step.device)
    nodes = torch.cat([root, verdict.path.clamp(min=0)], 1)  # [B, D + 1]: the node each token follows
    tokens = torch.cat([draft.tokens.gather(1, nodes[:, 1:]), root], 1)
    tokens = torch.where(step == verdict.accepted[:, None], verdict.next_token[:, None], tokens)
    b, at = (step <= verdict.accepted[:, None]).nonzero(as_tuple=True)
    return b, nodes[b, at], tokens[b, at]


def _order(draft: Draft, b: Tensor, node: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
    """Return q/p after each node [R, V] and which tokens were fixed guesses there [R, V] bool."""
    place = torch.arange(draft.nodes, device=b.device)
    children = (draft.parents[b] == node[:, None]) & (place < draft.length[b][:, None])  # [R, N]
    fixed = children & (draft.draw[b] == int(Draw.FIXED))
    ones = torch.zeros_like(p).scatter_reduce(1, draft.tokens[b].clamp(min=0), fixed.to(p.dtype), "amax")
    q = ones
    if draft.q is not None:
        drawn = (children & ~fixed).any(1)
        q = torch.where(drawn[:, None], draft.q[b, node.clamp(max=draft.q.shape[1] - 1)].to(p.dtype), ones)
    return lean(p, q), ones > 0
