"""Many rounds at once on small random laws: production rule and production random streams, no model, no engine.

In: a rule, how nodes are drawn, the streams. Out: a `Watch` of what was emitted. Enumeration proves the law of a rule
but cannot see reused or coarse random numbers; these rounds can. One batch holds thousands of independent rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from slipstream.measure.audit.watch import Watch, visited
from slipstream.sampling import RequestRngs
from slipstream.types import Draft, Draw, Laws, Rngs, SamplingParams, Sequence, Verdict, VerifyRule

MakeRngs = Callable[[list[Sequence]], Rngs]
Tamper = Callable[[Draft], Draft]

VOCAB = 24
DEPTH = 3
THREE = ((0.1, 0.6, 0.3), (0.6, 0.25, 0.15))  # p and q
_WARM = SamplingParams(temperature=1.0)


@dataclass(frozen=True)
class Play:
    """What to play: `tamper` changes the draft after it was drawn (negative controls)."""

    rule: VerifyRule
    kind: Draw = Draw.SAMPLED
    make_rngs: MakeRngs | None = None
    tamper: Tamper = lambda draft: draft
    rounds: int = 2


class Taker(Protocol):
    """Whoever is shown rounds."""

    def take(self, ids: list[int], draft: Draft, laws: Laws, verdict: Verdict) -> None:
        """Take in one round of rows with these ids."""


class Tally:
    """Counts emitted tokens, for rounds that all have the law `THREE`."""

    def __init__(self) -> None:
        self.counts = torch.zeros(len(THREE[0]), dtype=torch.float64)

    def take(self, ids: list[int], draft: Draft, laws: Laws, verdict: Verdict) -> None:
        """Count the tokens of one round."""
        self.counts += torch.bincount(visited(draft, verdict)[2], minlength=len(self.counts))

    def p_value(self) -> float:
        """Return the p-value of chi-square against `THREE` (2 degrees of freedom)."""
        want = torch.tensor(THREE[0], dtype=torch.float64) * self.counts.sum()
        return math.exp(-0.5 * float(((self.counts - want) ** 2 / want).sum()))


def play(what: Play, rows: int, seed: int = 0) -> Watch:
    """Play rounds of `rows` rows on random laws and watch them."""
    watch = Watch(seed, drafted_too=not what.rule.shared_noise)
    _play(what, rows, seed, watch, _random_rows)
    return watch


def play_three(what: Play, rows: int, seed: int = 0) -> Tally:
    """Play rounds on one law of three tokens and count: errors that cancel over random laws add up here."""
    tally = Tally()
    _play(what, rows, seed, tally, _three_rows)
    return tally


def _play(what: Play, rows: int, seed: int, taker: Taker, rows_of: Callable[..., tuple[Tensor, Tensor]]) -> None:
    shared = what.rule.shared_noise
    make = what.make_rngs or (lambda batch: RequestRngs(batch, shared_noise=shared))
    noise = torch.Generator().manual_seed(seed + 1)
    batch = [Sequence(b, [0], 1, _WARM, seed=(seed << 20) + b + 1) for b in range(rows)]
    for turn in range(what.rounds):
        for row in batch:
            row.rounds = turn
            row.tokens = [0] * (1 + turn * (DEPTH + 1))
        p, q = rows_of(rows, noise)
        rngs = make(batch)
        draft = what.tamper(_draft(q, what.kind, rngs))
        laws = Laws(p[:, : draft.nodes])
        taker.take([row.id for row in batch], draft, laws, what.rule(draft, laws, rngs))


def _random_rows(count: int, noise: torch.Generator) -> tuple[Tensor, Tensor]:
    """Random laws p and q [B, DEPTH + 1, V], peaked and alike as in life; a fifth of the tokens has nothing."""
    z = 2.0 * torch.randn(count, DEPTH + 1, VOCAB, generator=noise, dtype=torch.float64)
    other = 0.7 * z + 1.4 * torch.randn(z.shape, generator=noise, dtype=torch.float64)
    found = []
    for logits in (z, other):
        logits = torch.where(torch.rand(z.shape, generator=noise) < 0.2, -torch.inf, logits)
        logits[..., :DEPTH] = logits[..., :DEPTH].clamp(min=-4.0)  # enough tokens for distinct siblings
        found.append(torch.softmax(logits, -1))
    return found[0], found[1]


def _three_rows(count: int, noise: torch.Generator) -> tuple[Tensor, Tensor]:
    p, q = (torch.tensor(row, dtype=torch.float64).expand(count, DEPTH + 1, -1).clone() for row in THREE)
    return p, q


def _draft(q: Tensor, kind: Draw, rngs: Rngs) -> Draft:
    """A chain of drawn or fixed tokens, or (DISTINCT) siblings under the root."""
    B, star = len(q), kind == Draw.DISTINCT
    tokens = [torch.zeros(B, dtype=torch.int64)]
    weights = q[:, 0].clone()
    for depth in range(1, DEPTH + 1):
        row = weights if star else q[:, depth - 1]
        tokens.append(row.argmax(1) if kind == Draw.FIXED else rngs.draft(row, 1 if star else depth))
        if star:
            weights = weights.scatter(1, tokens[-1][:, None], 0.0)
    above = [-1] + [0 if star else i for i in range(DEPTH)]
    draw = torch.tensor([0] + [int(kind)] * DEPTH).repeat(B, 1)
    length = torch.full((B,), DEPTH + 1)
    return Draft(
        torch.stack(tokens, 1),
        torch.tensor(above).repeat(B, 1),
        length,
        draw,
        None if kind == Draw.FIXED else q,
        not star,
    )
