"""Draw from weights by a uniform each: the id that the cumulated weights reach.

In: weights [A, V] and uniforms [A]. Out: ids [A]. No randomness here.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from slipstream.devices import refuse
from slipstream.kernels import laws
from slipstream.types import WorkError

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

_CHUNK = 128  # ids summed before they are searched


def pick(w: Tensor, u: Tensor, owners: Seq[int] | None = None) -> Tensor:
    """Invert the cumulated weights w [A, V] at uniforms u [A] in [0, 1): the id reached, never one of zero weight.

    Works in float64 and in two levels, sums of `_CHUNK` ids and then the ids of one chunk: cumulating a whole
    vocabulary costs more than everything else in a draw. An error names the row's owner.
    """
    owners = range(len(w)) if owners is None else owners
    if w.is_cpu:
        return torch.tensor(pick_here(w, u.tolist(), owners))
    chunks, sums = _chunked(w)
    return _pick_there(chunks, sums, u, owners)


def pick_here(w: Tensor, uniforms: Seq[float], owners: Seq[int]) -> list[int]:
    """Do what `pick` does for weights in the host's memory [A, V], whose uniforms are at hand."""
    rows = list(w)
    if laws.fits(*rows):
        found = laws.draw(rows, uniforms)
        for row, owner, one in zip(rows, owners, found, strict=True):
            if one < 0:
                raise _no_mass(owner, float(row.sum(dtype=torch.float64)))
        return found
    chunks, sums = (part.numpy() for part in _chunked(w))
    return [_pick_row(*row) for row in zip(chunks, sums, uniforms, owners, strict=True)]


def _chunked(w: Tensor) -> tuple[Tensor, Tensor]:
    """Return weights in chunks [A, C, _CHUNK] and their sums [A, C]."""
    padded = torch.nn.functional.pad(w, (0, -w.shape[1] % _CHUNK)) if w.shape[1] % _CHUNK else w
    chunks = padded.reshape(len(w), -1, _CHUNK)
    return chunks, chunks.sum(-1, dtype=torch.float64)


def _pick_row(chunks: Array, sums: Array, uniform: float, owner: int) -> int:
    upto = sums.cumsum()
    total = float(upto[-1])
    if not 0.0 < total < np.inf:
        raise _no_mass(owner, total)
    goal = uniform * total
    chunk = _reach_here(upto, goal)
    inside = chunks[chunk].cumsum(dtype=np.float64)
    before = float(upto[chunk - 1]) if chunk else 0.0
    return chunk * _CHUNK + _reach_here(inside, goal - before)


def _reach_here(upto: Array, goal: float) -> int:
    # rounding may carry the goal past the end: then the last place that adds weight is meant
    return int(min(upto.searchsorted(goal, "right"), upto.searchsorted(upto[-1])))


def _pick_there(chunks: Tensor, sums: Tensor, u: Tensor, owners: Seq[int]) -> Tensor:
    """On an accelerator: the same for all rows at once, without asking it anything."""
    upto = sums.cumsum(-1)  # [A, C]
    total = upto[:, -1]
    need_mass(total, owners)
    goal = u.double() * total
    chunk = _reach_there(upto, goal)
    before = torch.where(chunk > 0, upto.gather(1, (chunk - 1).clamp(min=0)[:, None])[:, 0], 0.0)
    row = torch.arange(len(goal), device=goal.device)
    inside = chunks[row, chunk].cumsum(-1, dtype=torch.float64)  # [A, _CHUNK]
    return chunk * _CHUNK + _reach_there(inside, goal - before)


def _reach_there(upto: Tensor, goal: Tensor) -> Tensor:
    found = torch.searchsorted(upto, goal[:, None].contiguous(), right=True)[:, 0]
    last = torch.searchsorted(upto, upto[:, -1:].contiguous(), right=False)[:, 0]
    return torch.minimum(found, last)


def need_mass(total: Tensor, owners: Seq[int]) -> None:
    """Refuse weights whose sums [A] are not finite and above 0."""
    fine = (total > 0) & total.isfinite()

    def error() -> WorkError:
        r = int((~fine).nonzero()[0, 0])
        return _no_mass(owners[r], float(total[r]))

    refuse(~fine, error)


def _no_mass(row: int, total: float) -> WorkError:
    return WorkError(f"row {row} has weights of sum {total}: a draw needs a finite sum above 0")
