"""Temperature, min-p, top-k and top-p: finite logit rows become laws.

Tokens are ordered by logit, highest first, the lower id first on a tie. All three cuts keep a head of that order: min-p
the tokens of at least `min_p` times the largest probability, top-k the first k, and top-p the shortest head of what the
other two left that holds at least `top_p` of its mass (the token that crosses is kept). So a cut is one count, found on
a sorted head in float64, row by row: what is kept never depends on the other rows of a batch. A boundary met to within
1e-6 is met, or the last bit of a float32 logit would decide whether .5 and .3 hold .8 of a mass of 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from slipstream.devices import moved
from slipstream.kernels import laws
from slipstream.types import SamplingParams

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

HEADS = (64, 1024)  # sorted tokens looked at before the whole row is
_MET = 1e-6
_COLDEST = 1e-30  # below, every logit gap that float32 can hold is infinite anyway; keeps 0/0 away


@dataclass(frozen=True)
class Cut:
    """How one row is sampled: temperature (0: greedy) and the three cuts; k = 0 means no top-k."""

    temperature: float
    k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0

    @classmethod
    def of(cls, params: SamplingParams) -> Cut:
        """Read the cut of a request."""
        cold = params.temperature if params.greedy else max(params.temperature, _COLDEST)
        return cls(cold, max(params.top_k, 0), params.top_p, params.min_p)

    @property
    def whole(self) -> bool:
        """True when no token is cut."""
        return not self.k and self.top_p >= 1.0 and self.min_p <= 0.0


def law_rows(x: Tensor, points: Tensor, cuts: list[Cut]) -> Tensor:
    """Turn finite-peaked logits x [R, V], their argmax `points` [R] and one cut per row into laws [R, V]."""
    if x.is_cpu:
        x = x.contiguous()  # a law's bits may not depend on how its logits lie
    greedy = [r for r, cut in enumerate(cuts) if cut.temperature == 0.0]
    whole = [r for r, cut in enumerate(cuts) if cut.temperature > 0.0 and cut.whole]
    cut_rows = [r for r, cut in enumerate(cuts) if cut.temperature > 0.0 and not cut.whole]
    if len(whole) == len(cuts):
        return _softmax(x, points, cuts)
    probs = torch.zeros_like(x)
    if greedy:
        at = moved(torch.tensor(greedy), x.device)
        probs.index_put_((at, points[at]), x.new_ones(len(greedy)))
    if whole:
        at = moved(torch.tensor(whole), x.device)
        probs[at] = _softmax(x[at], points[at], [cuts[r] for r in whole])
    if cut_rows and x.is_cpu:
        _cut_here(x, points, cuts, cut_rows, probs)
    elif cut_rows:
        at = moved(torch.tensor(cut_rows), x.device)
        probs[at] = cut_on_device(x[at], points[at], [cuts[r] for r in cut_rows])
    return probs


def cut_on_device(x: Tensor, points: Tensor, cuts: list[Cut]) -> Tensor:
    """Do what the row-by-row path does, with whole-batch operations, for an accelerator: [R, V] -> [R, V].

    Nothing is asked of the device, so the sorted head is as long as any of these cuts may need.
    """
    vocab = x.shape[1]
    ks = [cut.k if 0 < cut.k < vocab else vocab for cut in cuts]
    head = x.topk(max(ks), dim=-1).values  # [R, M]
    kept = _counts(head, cuts, ks)
    last = head.gather(1, kept - 1)  # [R, 1]
    above, ties = x > last, x == last
    stays = above | (ties & (ties.cumsum(-1) <= kept - above.sum(-1, keepdim=True)))  # lower ids first
    return _softmax(torch.where(stays, x, -torch.inf), points, cuts)


def _counts(head: Tensor, cuts: list[Cut], ks: list[int]) -> Tensor:
    """Count what each cut keeps of logits in order [R, M] -> [R, 1], as `count` does; `ks` are in 1..M."""
    columns = [[c.temperature, math.log(c.min_p) if c.min_p > 0.0 else -math.inf, c.top_p] for c in cuts]
    facts = moved(torch.tensor(columns, dtype=torch.float64), head.device)
    temperature, least, top_p = (part[:, None] for part in facts.unbind(1))
    most = moved(torch.tensor(ks)[:, None], head.device)
    wide = head.double()
    scaled = (wide - wide[:, :1]) / temperature
    limit = (scaled >= least - _MET).sum(-1, keepdim=True).minimum(most)  # [R, 1]
    at = torch.arange(head.shape[1], device=head.device)
    total = torch.where(at < limit, scaled.exp(), 0.0).cumsum(-1)
    short = (total < top_p * total[:, -1:] * (1.0 - _MET)) & (at < limit - 1)
    return torch.where(top_p < 1.0, 1 + short.sum(-1, keepdim=True), limit)


def count(head: Array, cut: Cut, vocab: int, mass: float) -> int | None:
    """Count the tokens a cut keeps, from the highest logits of a row in order [M]; None when M is too few to tell.

    `mass` is the sum of exp((logit - highest) / temperature) over the whole row.
    """
    with np.errstate(over="ignore"):
        scaled = (head - head[0]) / cut.temperature
    limit = len(head)
    if cut.min_p > 0.0:
        limit = int(np.count_nonzero(scaled >= math.log(cut.min_p) - _MET))
    if cut.k:
        limit = min(limit, cut.k)
    settled = limit < len(head) or len(head) == vocab or 0 < cut.k <= len(head)
    if cut.top_p >= 1.0:
        return limit if settled else None
    total = np.exp(scaled[:limit]).cumsum()
    if settled and (cut.min_p > 0.0 or 0 < cut.k < vocab):
        mass = float(total[-1])
    elif not settled and cut.min_p > 0.0:
        return None  # the mass min-p leaves is not known yet
    kept = 1 + int(np.count_nonzero(total[:-1] < cut.top_p * mass * (1.0 - _MET)))
    return kept if kept < limit or settled else None


def _cut_here(x: Tensor, points: Tensor, cuts: list[Cut], which: list[int], out: Tensor) -> None:
    """Write the laws of some rows in the host's memory: row by row, of as few numbers as will do."""
    some = x if len(which) == len(cuts) else x[which]
    asked, vocab = [cuts[r] for r in which], x.shape[1]
    peaks = some.gather(1, points[which, None])[:, 0].tolist()
    heads = _highest(some, [min(vocab, cut.k or HEADS[0]) for cut in asked])
    masses = _masses(some, peaks, asked)
    rows, laws_of = some.numpy(), out.numpy()
    for i, (r, cut, mass) in enumerate(zip(which, asked, masses, strict=True)):
        ids, head = heads[i], _sorted(rows[i], heads[i])
        kept = count(head, cut, vocab, mass)
        for width in (*HEADS[1:], vocab):
            if kept is None:
                ids = _highest(some[i : i + 1], [min(width, vocab)])[0]
                head = _sorted(rows[i], ids)
                kept = count(head, cut, vocab, mass)
        _write_cut(rows[i], ids, head, kept or vocab, cut, laws_of[r])


def _sorted(row: Array, ids: Array) -> Array:
    return np.sort(row[ids])[::-1].astype(np.float64)


def _write_cut(row: Array, ids: Array, head: Array, kept: int, cut: Cut, out: Array) -> None:
    """Write the law of the `kept` first tokens: `ids` in order are those of the sorted `head`."""
    last = head[kept - 1].astype(row.dtype)
    ids = ids[row[ids] >= last]
    if len(ids) > kept:
        ties = ids[row[ids] == last]
        ids = np.setdiff1d(ids, ties[kept - len(ids) :], assume_unique=True)
    with np.errstate(over="ignore"):
        weights = np.exp((row[ids].astype(np.float64) - head[0]) / cut.temperature)
    out[ids] = weights / weights.sum()


def _highest(x: Tensor, widths: list[int]) -> list[Array]:
    """Return the ids of at least the widths[r] highest logits of each row, and all as high as those, in order."""
    if laws.fits(x):
        return laws.highest(x, widths)
    found, vocab = [], x.shape[1]
    for row, width in zip(x.numpy(), widths, strict=True):
        least = np.partition(row, vocab - width)[vocab - width]
        found.append(np.flatnonzero(row >= least))
    return found


def _masses(x: Tensor, peaks: list[float], cuts: list[Cut]) -> list[float]:
    """Return the masses of whole rows, where a cut asks for any."""
    if all(cut.top_p >= 1.0 or 0 < cut.k < x.shape[1] for cut in cuts):
        return [0.0] * len(cuts)
    if laws.fits(x):
        return laws.masses(x, peaks, [cut.temperature for cut in cuts])
    found: list[float] = np.exp(_scaled(x.numpy(), peaks, cuts)).sum(-1, dtype=np.float64).tolist()
    return found


def _softmax(x: Tensor, points: Tensor, cuts: list[Cut]) -> Tensor:
    # the peak goes first, so that a small temperature cannot overflow
    if x.is_cpu:
        peaks = x.gather(1, points[:, None])[:, 0].tolist()
        if laws.fits(x):
            return laws.softmax(x, peaks, [cut.temperature for cut in cuts])
        return torch.softmax(torch.from_numpy(_scaled(x.numpy(), peaks, cuts)), dim=-1)
    scale = moved(torch.tensor([cut.temperature for cut in cuts], dtype=x.dtype)[:, None], x.device)
    return torch.softmax((x - x.gather(1, points[:, None])) / scale, dim=-1)


def _scaled(rows: Array, peaks: list[float], cuts: list[Cut]) -> Array:
    """Return what a softmax is taken of: row by row, each while it is in the nearest memory."""
    out = np.empty_like(rows)
    with np.errstate(over="ignore"):
        for row, peak, cut, to in zip(rows, peaks, cuts, out, strict=True):
            np.subtract(row, peak, out=to)
            if cut.temperature != 1.0:
                np.divide(to, cut.temperature, out=to)
    return out
