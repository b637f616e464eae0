"""Linear maps with 8-bit or 4-bit weights for an accelerator: packed once, when a model is loaded; rows are bfloat16.

`int8` has a scale for each output; its product is a Triton kernel (`int8_rows`). `int4` has a scale and an offset for
each 32 inputs of an output; its product is torch's own for the device, and its output layer is kept in 8 bits. On a
CPU, which has kernels of its own (`slipstream.kernels`), both run for the sake of tests. Not for training.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from slipstream.nets.layers import Map, MapMaker
from slipstream.types import RequestError

Product: TypeAlias = Callable[[Tensor, Tensor, Tensor], Tensor]

BITS = {"int8": (8, 8), "int4": (4, 8)}  # of a layer's weights, of the output layer's
GROUP = 32  # inputs that share a scale of four-bit weights, as in the files most models are shared in
_WIDE = 16  # the four-bit products want outputs in multiples of this
_STEPS = range(15, 9, -1)  # how many of the 15 steps between four-bit codes a group may span
_PART = 4096  # outputs rounded at a time: bounds what the rounding takes in memory


class QuantisedLinear:
    """Multiply by packed weights [out, in] and add bias [out]."""

    __slots__ = ("bias", "codes", "factors", "outputs", "product")

    def __init__(self, weight: Tensor, bias: Tensor | None = None, *, bits: int) -> None:
        """Pack a weight where it is."""
        self.outputs, self.bias = weight.shape[0], bias
        self.codes, self.factors = eight_bits(weight) if bits == 8 else _packed(*four_bits(weight))
        self.product = (_eight if bits == 8 else _four)(weight.device.type)

    def __call__(self, x: Tensor) -> Tensor:
        """Map rows [R, in] -> [R, out]."""
        out = self.product(x.contiguous(), self.codes, self.factors)[:, : self.outputs]
        return out if self.bias is None else out + self.bias

    @property
    def nbytes(self) -> int:
        """Bytes of memory held."""
        return self.codes.nbytes + self.factors.nbytes + (0 if self.bias is None else self.bias.nbytes)


def quantised(quantize: str) -> MapMaker:
    """Return what makes the maps of a format, to stand in for `layers.linear`."""
    layer, output = BITS[quantize]

    def make(weight: Tensor, bias: Tensor | None = None, *, last: bool = False) -> Map:
        return QuantisedLinear(weight, bias, bits=output if last else layer)

    return make


@cache
def lacking(quantize: str, device: str) -> str:
    """Say in a few words why a format cannot be had on a device; empty when it can: a small product is tried."""
    try:
        # 16 values, which four bits hold exactly; times the unit vectors they come out as they went in
        weight = (torch.arange(_WIDE)[:, None] + torch.arange(2 * GROUP)).remainder(16).to(device, torch.bfloat16)
        units = torch.eye(2 * GROUP, dtype=torch.bfloat16, device=device)
        wrong = [b for b in BITS[quantize] if (QuantisedLinear(weight, bits=b)(units).T - weight).abs().max() > 0.1]
    except Exception as error:  # whatever keeps a product from running keeps its format from being had
        return (str(error).strip() or type(error).__name__).splitlines()[0]
    return f"its {wrong[0]}-bit product is wrong here" if wrong else ""


def eight_bits(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Round weight [N, K] -> codes int8 [N, K] in -127..127, and the scale of each output, float32 [N]."""
    codes, scales = zip(*(_eight_bits(part.float()) for part in weight.split(_PART)), strict=True)
    return torch.cat(codes), torch.cat(scales)


def four_bits(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Round weight [N, K] -> codes uint8 [N, K] in 0..15, and scale and offset of each group, bfloat16 [K/32, N, 2].

    A weight is (code - 8) * scale + offset. Of the spans a group may take the closest is chosen: weights that come from
    a four-bit file lie on few values, and find them again.
    """
    if weight.shape[1] % GROUP:
        raise RequestError(f"quantize=int4 needs a multiple of {GROUP} inputs, not {weight.shape[1]}; use int8")
    codes, factors = zip(*(_four_bits(part.float()) for part in weight.split(_PART)), strict=True)
    return torch.cat(codes), torch.cat(factors).transpose(0, 1).contiguous()


def _eight_bits(weight: Tensor) -> tuple[Tensor, Tensor]:
    scale = weight.abs().amax(1).clamp(min=torch.finfo(torch.float32).tiny) / 127
    return (weight / scale[:, None]).round().to(torch.int8), scale


def _four_bits(weight: Tensor) -> tuple[Tensor, Tensor]:
    groups = weight.view(len(weight), -1, GROUP)
    low, high = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
    best, least = torch.zeros(0), torch.full_like(low, torch.inf)
    for steps in _STEPS:
        # rounded as they are kept, before the codes are chosen
        scale = ((high - low) / steps).clamp(min=1e-12).bfloat16().float()
        offset = (low + 8 * scale).bfloat16().float()
        codes = ((groups - offset) / scale + 8).round().clamp(0, 15)
        error = ((codes - 8) * scale + offset - groups).square().sum(-1, keepdim=True)
        found = torch.cat([codes, scale, offset], -1)
        best = torch.where(error < least, found, best) if len(best) else found
        least = torch.minimum(least, error)
    return best[..., :GROUP].flatten(1).byte(), best[..., GROUP:].bfloat16()


def _packed(codes: Tensor, factors: Tensor) -> tuple[Tensor, Tensor]:
    """Lay four-bit codes out as the device's product wants them; outputs are filled up with zeros."""
    outputs, inputs = codes.shape
    spare = -outputs % _WIDE
    codes, factors = F.pad(codes, (0, 0, 0, spare)), F.pad(factors, (0, 0, 0, spare))
    tiles = next(n for n in (8, 4, 2) if inputs % (16 * n) == 0)
    if codes.device.type == "cpu":
        return torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes.int(), tiles), factors
    pairs = codes[:, ::2] << 4 | codes[:, 1::2]
    return torch.ops.aten._convert_weight_to_int4pack(pairs, tiles), factors


def _eight(device: str) -> Product:
    if device == "cpu":
        return lambda x, codes, scales: (F.linear(x.float(), codes.float()) * scales).to(x.dtype)
    from slipstream.nets.int8_rows import int8_rows

    return int8_rows


def _four(device: str) -> Product:
    return _four_on_cpu if device == "cpu" else _four_on_device


def _four_on_cpu(x: Tensor, codes: Tensor, factors: Tensor) -> Tensor:
    out: Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(x, codes, GROUP, factors)
    return out


def _four_on_device(x: Tensor, codes: Tensor, factors: Tensor) -> Tensor:
    out: Tensor = torch.ops.aten._weight_int4pack_mm(x, codes, GROUP, factors)
    return out
