"""Norms, linear maps, the gated MLP and rotary tables, shared by every network here.

Everything works on rows: x is [R, H], whatever the batch was. Rotary scalings: linear; Llama 3 (by wavelength); YaRN
(Peng et al. 2309.00071, sections 3.2 to 3.4). No cache and no attention here.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from slipstream.nets.families import Rope


class Map(Protocol):
    """A linear map x [R, in] -> [R, out]; kernels with their own weight formats stand in for `Linear`."""

    def __call__(self, x: Tensor) -> Tensor:
        """Map rows [R, in] -> [R, out]."""

    @property
    def nbytes(self) -> int:
        """Bytes of memory held."""


class MapMaker(Protocol):
    """Makes a `Map` of weight [out, in] and bias [out]; `last` says that its outputs are logits."""

    def __call__(self, weight: Tensor, bias: Tensor | None = None, *, last: bool = False) -> Map:
        """Return the map."""


class Linear:
    """Multiply by weight [out, in] and add bias [out]."""

    __slots__ = ("bias", "weight")

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.weight = weight
        self.bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        """Map rows [R, in] -> [R, out]."""
        return F.linear(x, self.weight, self.bias)

    @property
    def nbytes(self) -> int:
        """Bytes of memory held."""
        return self.weight.nbytes + (0 if self.bias is None else self.bias.nbytes)


class PackedLinear:
    """A linear map whose weight is laid out once for the CPU's matrix units: the cost stays flat from 1 to 16 rows.

    Its bits are not those of the plain product, and neither product is the more exact.
    """

    __slots__ = ("bias", "nbytes", "packed")

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight, None)
        self.bias = bias
        self.nbytes = weight.nbytes + (0 if bias is None else bias.nbytes)

    def __call__(self, x: Tensor) -> Tensor:
        """Map rows [R, in] -> [R, out]."""
        return torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")


def linear(weight: Tensor, bias: Tensor | None = None, *, last: bool = False) -> Map:
    """Return the map to use for this weight's dtype and device; `last` says that its outputs are the logits.

    In float32 only the last map is packed: inside the layers the plain product stays closer to what the reference
    computes, to 1e-4 in the logits.
    """
    worth = weight.dtype is torch.bfloat16 or last
    if worth and weight.device.type == "cpu" and packable(weight.dtype):
        return PackedLinear(weight, bias)
    return Linear(weight, bias)


@cache
def packable(dtype: torch.dtype) -> bool:
    """Say whether this torch and this CPU have the packed product; it is not part of torch's public interface."""
    if dtype not in (torch.float32, torch.bfloat16):
        return False
    one = torch.ones(16, 16, dtype=dtype)
    try:
        return bool((PackedLinear(one, one[0])(one) == 17).all())
    except (RuntimeError, AttributeError, TypeError):
        return False


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Divide x [..., H] by its root mean square, times weight [H]; with a wider weight, round once at the end."""
    if weight.dtype is x.dtype:
        return F.rms_norm(x, weight.shape, weight, eps)
    return F.rms_norm(x.to(weight.dtype), weight.shape, weight, eps).to(x.dtype)


def gated(x: Tensor, activation: str) -> Tensor:
    """[R, 2M], gate and up side by side -> act(gate) * up [R, M]."""
    gate, up = x.chunk(2, dim=-1)
    if activation == "silu":
        return F.silu(gate).mul_(up)
    return F.gelu(gate, approximate="tanh").mul_(up)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate heads x [R, heads, D] by cos, sin [R, 1, D]; `sin` carries the sign of the half that is subtracted."""
    return torch.addcmul(x * cos, torch.roll(x, x.shape[-1] // 2, -1), sin)


class RopeTable:
    """cos and sin for every position, computed in float32, kept in the network's dtype and grown when needed."""

    def __init__(self, rope: Rope, head_dim: int, dtype: torch.dtype, device: torch.device) -> None:
        self.inv, self.factor = inverse_frequencies(rope, head_dim)
        self.dtype, self.device = dtype, device
        self.cos = self.sin = torch.empty(0, 1, head_dim)
        self._grow(1024)

    def rows(self, positions: Tensor, last: int) -> tuple[Tensor, Tensor]:
        """Return cos and sin, each [R, 1, D], for positions [R] of which none is above `last`."""
        if last >= self.cos.shape[0]:
            self._grow(2 * last)
        return self.cos[positions], self.sin[positions]

    def reserve(self, size: int) -> None:
        """Make room for `size` positions: up to there the table keeps its storage."""
        if size > self.cos.shape[0]:
            self._grow(size)

    def _grow(self, size: int) -> None:
        angles = torch.arange(size, dtype=torch.float32)[:, None] * self.inv
        cos, sin = angles.cos() * self.factor, angles.sin() * self.factor
        self.cos = torch.cat([cos, cos], -1)[:, None].to(self.device, self.dtype)
        self.sin = torch.cat([-sin, sin], -1)[:, None].to(self.device, self.dtype)


def inverse_frequencies(rope: Rope, head_dim: int) -> tuple[Tensor, float]:
    """Return the inverse frequencies [D/2] of a table and the factor its cos and sin are multiplied by."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    inv = 1.0 / (rope.theta**exponents)
    if rope.kind == "linear":
        return inv / rope.params["factor"], 1.0
    if rope.kind == "llama3":
        return _llama3(inv, rope), 1.0
    if rope.kind == "yarn":
        return _yarn(inv, rope, head_dim), _yarn_factor(rope)
    return inv, 1.0


def _llama3(inv: Tensor, rope: Rope) -> Tensor:
    p = rope.params
    low, high, old = p["low_freq_factor"], p["high_freq_factor"], p["original_max_position_embeddings"]
    turns = old * inv / (2 * math.pi)  # full turns within the original context
    smooth = ((turns - low) / (high - low)).clamp(0, 1)
    return (1 - smooth) * inv / p["factor"] + smooth * inv


def _yarn(inv: Tensor, rope: Rope, head_dim: int) -> Tensor:
    p = rope.params

    def dimension(turns: float) -> float:
        ratio = p["original_max_position_embeddings"] / (turns * 2 * math.pi)
        return head_dim * math.log(ratio) / (2 * math.log(rope.theta))

    low, high = dimension(p.get("beta_fast") or 32), dimension(p.get("beta_slow") or 1)
    if p.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    ramp = (torch.arange(head_dim // 2, dtype=torch.float32) - low) / ((high - low) or 0.001)
    keep = 1 - ramp.clamp(0, 1)
    return inv / p["factor"] * (1 - keep) + inv * keep


def _yarn_factor(rope: Rope) -> float:
    p = rope.params
    if p.get("attention_factor") is not None:
        return float(p["attention_factor"])

    def mscale(weight: float) -> float:
        return 0.1 * weight * math.log(p["factor"]) + 1.0 if p["factor"] > 1 else 1.0

    if p.get("mscale") and p.get("mscale_all_dim"):
        return mscale(p["mscale"]) / mscale(p["mscale_all_dim"])
    return mscale(1.0)
