"""Whole rows of a vocabulary by the extension: laws of logits, the sums that draws are looked up in, residuals.

In: contiguous float32 rows in the host's memory, for which `fits` holds. Out: the same numbers as torch's, to float32's
precision, in a fraction of its time: a sampled round does little else. A row's bits do not depend on other rows.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

import numpy as np
import torch
from torch import Tensor

from slipstream import kernels

# p [V], q [V] or None, r, drop: a residual row max(r p - q, 0) without the id `drop` (-1: with all)
Parts = tuple[Tensor, Tensor | None, float, int]


def fits(*rows: Tensor) -> bool:
    """Say whether the extension is there and reads these tensors as they lie."""
    return kernels.available() and all(
        x.dtype is torch.float32 and x.is_cpu and x.is_contiguous() and not x.requires_grad for x in rows
    )


def softmax(x: Tensor, peaks: Seq[float], temperatures: Seq[float]) -> Tensor:
    """Return the laws of logits x [R, V] -> [R, V]; each row's highest logit is finite and in `peaks`."""
    out = torch.empty_like(x)
    _weighed(x, peaks, temperatures, out.data_ptr())
    return out


def masses(x: Tensor, peaks: Seq[float], temperatures: Seq[float]) -> list[float]:
    """Return the sum of exp((x - peak) / temperature) over each row of logits [R, V]."""
    return _weighed(x, peaks, temperatures, 0)


def _weighed(x: Tensor, peaks: Seq[float], temperatures: Seq[float], out: int) -> list[float]:
    inverses = [1.0 / t for t in temperatures]
    sums: list[float] = kernels.native().weigh_rows(x.data_ptr(), x.shape[1], peaks, inverses, out)
    return sums


def highest(x: Tensor, widths: Seq[int]) -> list[np.ndarray]:
    """Return for row r of logits [R, V] the ids of at least its widths[r] highest, in order, and of all as high as
    those."""
    found = kernels.native().highest(x.data_ptr(), x.shape[1], widths)
    return [np.frombuffer(ids, dtype=np.int32) for ids in found]


def draw(w: Seq[Tensor], uniforms: Seq[float]) -> list[int]:
    """Return for each row of weights [V] the id that they reach at its uniform, -1 where their sum is no finite one
    above 0."""
    found: list[int] = kernels.native().draw([row.data_ptr() for row in w], len(w[0]), uniforms)
    return found


def residual_masses(rows: Seq[Parts]) -> list[float]:
    """Return the sum of each residual row."""
    return _residuals(rows, 0)


def residual(p: Tensor, q: Tensor | None, r: float, drop: int) -> tuple[Tensor, float]:
    """Return a residual row [V], and its sum."""
    out = torch.empty_like(p)
    return out, _residuals([(p, q, r, drop)], out.data_ptr())[0]


def _residuals(rows: Seq[Parts], out: int) -> list[float]:
    p, q, r, drop = zip(*rows, strict=True)
    ps, qs = [row.data_ptr() for row in p], [0 if row is None else row.data_ptr() for row in q]
    found: list[float] = kernels.native().residuals(ps, qs, r, drop, len(p[0]), out)
    return found
