"""Rows times 8-bit weights on an accelerator, by a Triton kernel that widens the weights on their way.

In: x [R, K] in bfloat16, codes int8 [N, K], a scale [N] in float32 for each output. Out: [R, N]. In torch's own 8-bit
product every row reads all weights, so that a pass over 16 nodes would cost 16 times one over a single node; here 16
rows share them. A row's sums have the same order in every call of up to `_FEW` rows. Importing this imports triton.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_FEW = 128  # rows of a call of nodes; prompts have more, and want larger tiles


@triton.jit
def _tile(x, codes, scales, out, rows, outputs, inputs, R: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    n = tl.program_id(0) * N + tl.arange(0, N)
    r = tl.program_id(1) * R + tl.arange(0, R)
    k = tl.arange(0, K)
    x_at = x + r[:, None].to(tl.int64) * inputs + k[None, :]
    codes_at = codes + n[:, None].to(tl.int64) * inputs + k[None, :]
    total = tl.zeros((R, N), tl.float32)
    for start in range(0, inputs, K):
        inside = k[None, :] < inputs - start
        part = tl.load(x_at + start, mask=(r[:, None] < rows) & inside, other=0.0)
        weights = tl.load(codes_at + start, mask=(n[:, None] < outputs) & inside, other=0)
        total = tl.dot(part, tl.trans(weights.to(part.dtype)), total)  # codes are exact in bfloat16
    scaled = total * tl.load(scales + n, mask=n < outputs, other=0.0)[None, :]
    out_at = out + r[:, None].to(tl.int64) * outputs + n[None, :]
    tl.store(out_at, scaled.to(out.dtype.element_ty), mask=(r[:, None] < rows) & (n[None, :] < outputs))


def int8_rows(x: Tensor, codes: Tensor, scales: Tensor) -> Tensor:
    """Return x [R, K] times codes [N, K] transposed, times scales [N] -> [R, N] in the dtype of x."""
    (rows, inputs), outputs = x.shape, codes.shape[0]
    out = torch.empty(rows, outputs, dtype=x.dtype, device=x.device)
    if rows > _FEW:
        high, wide, deep = 64, 64, 64
    else:  # tiles enough for all processors, though there be few outputs
        high, wide, deep = (16, 16, 256) if outputs <= 4096 else (16, 64, 128)
    grid = triton.cdiv(outputs, wide), triton.cdiv(rows, high)
    _tile[grid](x, codes, scales, out, rows, outputs, inputs, R=high, N=wide, K=deep, num_warps=4, num_stages=4)
    return out
