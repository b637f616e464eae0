"""The weights of a GGUF file as the kernels read them: its blocks as they lie, nothing dequantised to disk.

4-bit and 8-bit blocks are handed over whole; other types are dequantised tensor by tensor, in memory, and marked as
finer than four bits. Names and the order of Llama's rotary pairs are those of `gguf.py`. Packs nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from slipstream.checkpoints.gguf import ROTATED, bfloat16, open_gguf, read_fields, tensor_name, unpermute
from slipstream.checkpoints.gguf_config import config_of
from slipstream.kernels.rows import Rows
from slipstream.nets.families import read_config
from slipstream.types import WorkError

_KEPT = {"Q4_0": "q4_0", "Q4_1": "q4_1", "Q4_K": "q4_k", "Q8_0": "q8_0"}
_FINE = {"Q8_0"}
_FLOATS = {"F32", "F16", "BF16"}


class GgufSource:
    """One GGUF file. `keep` False dequantises everything, for weight formats that do not take its codes."""

    def __init__(self, gguf_file: Path, *, keep: bool = True) -> None:
        reader = open_gguf(gguf_file)
        fields = read_fields(reader, gguf_file)
        tensors = {tensor.name: tensor for tensor in reader.tensors}
        rope = tensors.pop("rope_freqs.weight", None)
        shapes = {name: [int(n) for n in tensor.shape] for name, tensor in tensors.items()}
        self.raw = config_of(fields, shapes, None if rope is None else np.array(rope.data, dtype=np.float64))
        self.config = read_config(self.raw)
        self.file, self.keep = gguf_file, keep
        self._tensors = {tensor_name(name): tensor for name, tensor in tensors.items()}
        self._taken: set[str] = set()

    def rows(self, name: str, shape: tuple[int, int]) -> Rows:
        """Return a weight [out, in]: as the file's codes where the kernels take them, else in bfloat16 or float32."""
        tensor = self._take(name, shape)
        kind = tensor.tensor_type.name
        if self.keep and kind in _KEPT:
            raw = np.ascontiguousarray(self._ordered(tensor, tensor.data))
            return Rows(raw, _KEPT[kind], *shape, fine=kind in _FINE)
        values = self._dequantised(tensor, shape)
        if kind in _FLOATS or not self.keep:
            return Rows(bfloat16(values), "bfloat16", *shape)
        return Rows(values, "float32", *shape, fine=kind not in _KEPT or kind in _FINE)

    def values(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Return a tensor in bfloat16 if it is a matrix, else in float32."""
        values = self._dequantised(self._take(name, shape), shape)
        if len(shape) == 2:
            return torch.from_numpy(bfloat16(values)).view(torch.bfloat16)
        return torch.from_numpy(bfloat16(values)).view(torch.bfloat16).float()

    def finish(self) -> None:
        """Raise WorkError if a tensor was never taken."""
        for name in sorted(set(self._tensors) - self._taken):
            raise WorkError(f"{self.file.name}: tensor {name} is unknown to this model_type")

    def _take(self, name: str, shape: tuple[int, ...]) -> Any:
        tensor = self._tensors.get(name)
        if tensor is None:
            raise WorkError(f"{self.file.name}: tensor {name} {list(shape)} is missing")
        found = tuple(int(n) for n in reversed(tensor.shape))
        if found != shape:
            raise WorkError(f"{self.file.name}: tensor {name} is {list(found)}; its fields ask for {list(shape)}")
        self._taken.add(name)
        return tensor

    def _ordered(self, tensor: Any, data: np.ndarray) -> np.ndarray:
        """Put the rows of Llama's queries and keys in our order; a block never spans two rows."""
        rotated = ROTATED.fullmatch(tensor.name)
        if self.raw["model_type"] != "llama" or not rotated:
            return data
        return unpermute(data, self.raw["num_attention_heads" if rotated[1] == "q" else "num_key_value_heads"])

    def _dequantised(self, tensor: Any, shape: tuple[int, ...]) -> np.ndarray:
        from gguf import dequantize

        values = np.asarray(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32).reshape(shape)
        return np.ascontiguousarray(self._ordered(tensor, values))
