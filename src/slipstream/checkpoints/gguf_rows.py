"""The weights of a GGUF file as the kernels read them: its blocks as they lie, nothing dequantised to disk.

Blocks of the common types are handed over as they lie; others are dequantised a few rows at a time, in memory, while
they are packed. Names and the order of Llama's rotary pairs are those of `gguf.py`. Packs nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from slipstream.checkpoints.gguf import ROTATED, bfloat16, tensor_name, unpermute
from slipstream.checkpoints.gguf_config import config_of
from slipstream.checkpoints.gguf_file import FLOATS, GgufTensor, open_gguf
from slipstream.kernels.rows import Rows
from slipstream.nets.families import read_config
from slipstream.types import WorkError

_FORMATS = {"Q4_0": "q4_0", "Q4_1": "q4_1", "Q4_K": "q4_k", "Q5_0": "q5_0", "Q6_K": "q6_k", "Q8_0": "q8_0"}
_FOUR_BITS = frozenset({"Q4_0", "Q4_1", "Q4_K"})


@dataclass(frozen=True)
class Dequantised(Rows):
    """Rows of a type that the kernels do not read, dequantised a few at a time while they are packed."""

    kind: Any = None

    def blocks(self) -> Iterator[Rows]:
        """Yield all rows in order, in float32 or rounded to bfloat16."""
        tensor = GgufTensor("", self.kind, [self.cols, self.count], self.data)
        for _, block in tensor.blocks(bfloat16 if self.format == "bfloat16" else np.asarray):
            yield Rows(block, self.format, len(block), self.cols)


class GgufSource:
    """One GGUF file. `codes`: blocks are handed over as they lie; else everything is rounded to bfloat16."""

    def __init__(self, gguf_file: Path, *, codes: bool = True) -> None:
        reader = open_gguf(gguf_file)
        tensors = {tensor.name: tensor for tensor in reader.tensors}
        rope = tensors.pop("rope_freqs.weight", None)
        shapes = {name: [int(n) for n in tensor.shape] for name, tensor in tensors.items()}
        self.raw = config_of(reader.fields, shapes, None if rope is None else np.array(rope.data, dtype=np.float64))
        self.config = read_config(self.raw)
        self.file, self.codes, self.drop_pages = gguf_file, codes, reader.drop_pages
        self._tensors = {tensor_name(name): tensor for name, tensor in tensors.items()}
        self._taken: set[str] = set()

    def rows(self, name: str, shape: tuple[int, int]) -> Rows:
        """Return a weight [out, in]: as the file's blocks where the kernels read them, else in bfloat16 or float32."""
        tensor = self._take(name, shape)
        kind = tensor.tensor_type.name
        fine = self.codes and kind not in _FOUR_BITS | FLOATS
        if self.codes and kind in _FORMATS:
            return Rows(tensor.data, _FORMATS[kind], *shape, fine=fine)
        form = "float32" if fine else "bfloat16"
        return Dequantised(tensor.data, form, *shape, fine=fine, kind=tensor.tensor_type)

    def values(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Return a tensor in bfloat16 if it is a matrix, else in float32."""
        tensor = self._take(name, shape)
        out = torch.empty(shape, dtype=torch.bfloat16)
        for start, block in tensor.blocks(bfloat16):
            out[start : start + len(block)] = torch.from_numpy(block).view(torch.bfloat16)
        return out if len(shape) == 2 else out.float()

    def finish(self) -> None:
        """Raise WorkError if a tensor was never taken."""
        for name in sorted(set(self._tensors) - self._taken):
            raise WorkError(f"{self.file.name}: tensor {name} is unknown to this model_type")

    def _take(self, name: str, shape: tuple[int, ...]) -> GgufTensor:
        tensor = self._tensors.get(name)
        if tensor is None:
            raise WorkError(f"{self.file.name}: tensor {name} {list(shape)} is missing")
        found = tuple(int(n) for n in reversed(tensor.shape))
        if found != shape:
            raise WorkError(f"{self.file.name}: tensor {name} is {list(found)}; its fields ask for {list(shape)}")
        self._taken.add(name)
        rotated = ROTATED.fullmatch(tensor.name)
        if self.raw["model_type"] != "llama" or not rotated:
            return tensor
        heads = self.raw["num_attention_heads" if rotated[1] == "q" else "num_key_value_heads"]
        # a block never spans two rows, so rows are put in order as they lie
        return replace(tensor, data=np.ascontiguousarray(unpermute(tensor.data, heads)))
