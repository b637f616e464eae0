"""Packed linear maps over torch tensors: weights in, a callable `Linear` out.

Kinds: bf16; q4 and q8, 4- and 8-bit weights in groups of 32 with bfloat16 activations; q4a8 and w8a8, the same weights
with activations rounded to 8 bits per group. Any number of inputs: the last group is padded with zeros.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from slipstream.kernels import native
from slipstream.types import RequestError

KINDS = ("bf16", "q4", "q8", "q4a8", "w8a8")
_DRAFTING = {"none": "bf16", "int4": "q4a8", "int8": "q8", "w8a8": "w8a8"}  # weight format -> kind
GGUF_TYPES = {"Q4_0": "q4_0", "Q4_1": "q4_1", "Q4_K": "q4_k", "Q8_0": "q8_0"}


def pack(weight: Tensor, bias: Tensor | None, kind: str) -> Any:
    """Pack weight [out, in] in float32 or bfloat16, and bias [out], as one of `KINDS`; raises ValueError otherwise."""
    if kind not in KINDS:
        raise ValueError(f"unknown kind of packed weight {kind!r}; known: {', '.join(KINDS)}")
    if weight.ndim != 2 or weight.dtype not in (torch.float32, torch.bfloat16) or weight.device.type != "cpu":
        raise ValueError(f"cannot pack a {weight.dtype} weight {tuple(weight.shape)} on {weight.device}")
    source = "bfloat16" if weight.dtype is torch.bfloat16 else "float32"
    weight = weight.detach().contiguous()
    matrix = _matrix(kind, source, (weight.shape[0], weight.shape[1]), bias)
    matrix.pack(getattr(native().Source, source), weight.data_ptr(), 0, weight.shape[0])
    return matrix


def pack_gguf(data: np.ndarray, gguf_type: str, cols: int, kind: str, bias: Tensor | None = None) -> Any:
    """Pack the raw rows [out, bytes] of a GGUF tensor without changing its codes: see `keeps_codes`."""
    if not keeps_codes(gguf_type, kind):
        raise ValueError(f"GGUF {gguf_type} codes do not fit {kind}; dequantise them and use pack")
    source = getattr(native().Source, GGUF_TYPES[gguf_type])
    data = np.ascontiguousarray(data, dtype=np.uint8)
    if data.ndim != 2 or data.shape[1] != native().row_bytes(source, cols):
        raise ValueError(f"{gguf_type} rows of {cols} values are not {data.shape} bytes")
    matrix = _matrix(kind, GGUF_TYPES[gguf_type], (data.shape[0], cols), bias)
    matrix.pack(source, data.ctypes.data, 0, data.shape[0])
    return matrix


def keeps_codes(gguf_type: str, kind: str) -> bool:
    """Say whether a GGUF tensor of this type packs as this kind code by code."""
    bits = {"q4": 4, "q4a8": 4, "q8": 8, "w8a8": 8}.get(kind)
    return gguf_type in GGUF_TYPES and bits == (8 if gguf_type == "Q8_0" else 4)


def unpack(matrix: Any) -> Tensor:
    """Return the float32 value [out, in] that each packed weight stands for."""
    values = torch.empty(matrix.out, matrix.cols, dtype=torch.float32)
    matrix.unpack(values.data_ptr())
    return values


def _matrix(kind: str, source: str, shape: tuple[int, int], bias: Tensor | None) -> Any:
    if bias is not None:
        bias = bias.detach().to("cpu", torch.float32).contiguous()
        if tuple(bias.shape) != shape[:1]:
            raise ValueError(f"a bias of shape {tuple(bias.shape)} does not fit {shape[0]} outputs")
    lib = native()
    address = 0 if bias is None else bias.data_ptr()
    return lib.matrix(getattr(lib.Kind, kind), getattr(lib.Source, source), *shape, address)


class Linear:
    """Multiply rows by a packed weight [out, in] and add bias [out]; row by row the same bits in any company.

    `prompt`: as rows of a prompt are, which the level may do its own way (gemm.h, Role).
    """

    __slots__ = ("matrix", "shape")

    def __init__(self, weight: Tensor, bias: Tensor | None = None, kind: str = "bf16") -> None:
        self.matrix = pack(weight, bias, kind)
        self.shape = (self.matrix.out, self.matrix.cols)

    @classmethod
    def of(cls, matrix: Any) -> Linear:
        """Wrap what `pack` or `pack_gguf` returned."""
        made = cls.__new__(cls)
        made.matrix, made.shape = matrix, (matrix.out, matrix.cols)
        return made

    def __call__(self, x: Tensor, *, prompt: bool = False) -> Tensor:
        """Map rows [R, in] -> [R, out] in the rows' dtype."""
        out, cols = self.shape
        if x.ndim != 2 or x.shape[1] != cols:
            raise ValueError(f"rows of shape {tuple(x.shape)} do not fit a weight with {cols} inputs")
        rows = x.detach().to("cpu", torch.float32).contiguous()
        y = torch.empty(rows.shape[0], out, dtype=torch.float32)
        if rows.shape[0]:
            native().linear(self.matrix, rows.data_ptr(), rows.shape[0], y.data_ptr(), prompt)
        return y.to(x.dtype)

    @property
    def nbytes(self) -> int:
        """Bytes of memory held."""
        return int(self.matrix.nbytes)


class Table:
    """An embedding in packed matrices, one part's rows after the other's."""

    def __init__(self, parts: list[Any]) -> None:
        self.parts = parts

    def __call__(self, ids: Tensor) -> Tensor:
        """Return the rows of ids [R] -> [R, H] in float32."""
        out = torch.empty(len(ids), self.parts[0].cols)
        first = 0
        for part in self.parts:
            here = ((ids >= first) & (ids < first + part.out)).nonzero()[:, 0]
            rows = torch.empty(len(here), part.cols)
            part.unpack_rows((ids[here] - first).tolist(), rows.data_ptr())
            if len(here) == len(ids):
                return rows
            out[here] = rows
            first += part.out
        return out


def maps_of(quantize: str) -> Maps:
    """Return the maker for a weight format: of a network that only guesses, logits need no finer one than the rest."""
    if quantize not in _DRAFTING:
        raise RequestError(f"quantize={quantize!r} is not one of {', '.join(_DRAFTING)}")
    return Maps(_DRAFTING[quantize])


@dataclass(frozen=True)
class Maps:
    """Makes linear maps of one kind."""

    kind: str

    def __call__(self, weight: Tensor, bias: Tensor | None = None, *, last: bool = False) -> Linear:
        """Pack weight [out, in] of any floating type."""
        if weight.dtype not in (torch.float32, torch.bfloat16):
            weight = weight.float()
        return Linear(weight, bias, self.kind)
