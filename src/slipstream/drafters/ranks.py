"""The likeliest tokens of logits and their log-probabilities: what trees are built from.

In: logits, and the rows they belong to. Out: the k best of each, highest first, the lower id first on a tie, so that
what is chosen never depends on batch mates. Only orders tokens: penalties, which depend on the path, and the cuts
top-k, top-p and min-p are left out, so these are never a row of q.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import torch
from torch import Tensor

from slipstream.types import Sequence

_PIECE, _FEW = 128, 16


@dataclass(frozen=True)
class Ranked:
    """The k likeliest tokens of R rows of logits. `ended` marks tokens after which nothing can come.

    `scores` are log-probabilities in float64, -inf for what must not be drafted: all of a row in `broken`, whose
    logits were not finite.
    """

    scores: Tensor  # [R, k]
    ids: Tensor  # [R, k]
    ended: Tensor  # [R, k] bool
    broken: Tensor  # [R] bool


def rank(rows: Seq[Sequence], logits: Tensor, k: int) -> Ranked:
    """Rank the tokens of logits [R, V], row i under the temperature (greedy: 1) and bias of `rows[i]`."""
    x = _shaped(rows, logits)
    values, ids = highest(x, k)
    total = x.logsumexp(-1, keepdim=True)
    broken = ~(values[:, 0].isfinite() & total[:, 0].isfinite())
    # rounding must not lift a child above its parent: an ancestor is never less likely than what follows it
    scores = (values.double() - total.double()).clamp(max=0.0)
    ends = end_ids(rows).to(ids.device)
    ended = (ids[:, :, None] == ends[:, None, :]).any(-1) if ends.shape[1] else torch.zeros_like(ids, dtype=torch.bool)
    return Ranked(scores.masked_fill(broken[:, None], -torch.inf), ids, ended, broken)


def highest(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k highest values of x [R, V] and their ids, highest first, the lower id first on a tie.

    A wide row is looked at in pieces: the k highest are all in the k pieces of highest maximum.
    """
    vocab = x.shape[-1]
    if k >= vocab:
        values, ids = x.sort(dim=-1, descending=True, stable=True)
        return values, ids
    piece = _PIECE if k <= _FEW else _PIECE // 4
    values, ids, next_ = _in_pieces(x, k, piece) if vocab >= 4 * k * piece else _above(x, k)
    crowded = next_ >= values[:, -1]  # which of equal values topk takes is not defined
    if bool(crowded.any()):
        v, i = x[crowded].sort(dim=-1, descending=True, stable=True)
        values[crowded], ids[crowded] = v[:, :k], i[:, :k]
    ids, order = ids.sort(dim=-1)
    values, order = values.gather(1, order).sort(dim=-1, descending=True, stable=True)
    return values, ids.gather(1, order)


def _above(x: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the k highest of x [R, V], their places, and the next value [R]."""
    values, ids = x.topk(k + 1, dim=-1)
    return values[:, :k].contiguous(), ids[:, :k].contiguous(), values[:, k]


def _in_pieces(x: Tensor, k: int, piece: int) -> tuple[Tensor, Tensor, Tensor]:
    """Do what `_above` does; the next value may be said to be higher than it is."""
    rows, vocab = x.shape
    if vocab % piece:
        x = torch.nn.functional.pad(x, (0, -vocab % piece), value=-torch.inf)
    pieces = x.view(rows, -1, piece)
    _, best, left_out = _above(pieces.amax(-1), k)
    inside = pieces.gather(1, best[:, :, None].expand(-1, -1, piece)).flatten(1)  # [R, k * piece]
    values, at, next_ = _above(inside, k)
    ids = best.gather(1, at // piece) * piece + at % piece
    return values, ids, torch.maximum(next_, left_out)


def end_ids(rows: Seq[Sequence]) -> Tensor:
    """Return the ids that end each row -> [R, E], padded with -1."""
    ends = [[*row.params.stop_token_ids, *(() if row.params.ignore_eos else row.eos_ids)] for row in rows]
    width = max(map(len, ends), default=0)
    return torch.tensor([e + [-1] * (width - len(e)) for e in ends], dtype=torch.int64).view(len(ends), width)


def _shaped(rows: Seq[Sequence], logits: Tensor) -> Tensor:
    x = logits.detach()
    x = x if x.dtype == torch.float64 else x.float()
    biased = [i for i, row in enumerate(rows) if row.params.logit_bias]
    if biased:
        x = x.clone()
    for i in biased:
        bias = rows[i].params.logit_bias or {}
        x[i, torch.tensor(list(bias), device=x.device)] += torch.tensor(
            list(bias.values()), dtype=x.dtype, device=x.device
        )
    heat = [1.0 if row.params.greedy else row.params.temperature for row in rows]
    if all(t == 1.0 for t in heat):
        return x
    return x / torch.tensor(heat, dtype=x.dtype, device=x.device)[:, None]
