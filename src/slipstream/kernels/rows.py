"""Where weights to be packed come from: tensors by their checkpoint names, each as rows of a known number format.

`FolderSource` reads a model folder's safetensors. A GGUF file is another source (`checkpoints.gguf_rows`): its blocks
are handed over as they lie. Nothing is packed here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from slipstream.nets.families import DecoderConfig, read_config
from slipstream.nets.weights import Checkpoint, read_json

_PIECE = 1 << 24  # values packed before pages of files are let go
_ALIGNED = 64  # rows of a piece are a multiple of this


@dataclass(frozen=True)
class Rows:
    """A weight [count, cols] as the kernels read it: `format` names the packing of `data` (bfloat16, q4_k, ..).

    `fine`: it comes from a format finer than four bits, and deserves no coarser one.
    """

    data: Any  # a contiguous tensor or array, kept alive while it is packed
    format: str
    count: int
    cols: int
    fine: bool = False

    @property
    def address(self) -> int:
        """Where the rows begin."""
        data = self.data
        return int(data.data_ptr() if isinstance(data, Tensor) else data.ctypes.data)

    def first(self, count: int) -> Rows:
        """Return the first so many rows."""
        return replace(self, data=self.data[:count], count=count)

    def after(self, count: int) -> Rows:
        """Return the others."""
        return replace(self, data=self.data[count:], count=self.count - count)

    def blocks(self) -> Iterator[Rows]:
        """Yield the rows in order, in pieces that are packed one after the other."""
        step = max(1, _PIECE // (_ALIGNED * self.cols)) * _ALIGNED
        for start in range(0, self.count, step):
            count = min(step, self.count - start)
            yield replace(self, data=self.data[start : start + count], count=count)


class Source(Protocol):
    """A checkpoint: its config and its tensors by their checkpoint names."""

    config: DecoderConfig

    def rows(self, name: str, shape: tuple[int, int]) -> Rows:
        """Return a weight [out, in] of this shape."""

    def values(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Return a tensor in float32, or in bfloat16 where that holds it exactly."""

    def drop_pages(self) -> None:
        """Let go of the pages of files that were read; rows handed out so far are not read again."""

    def finish(self) -> None:
        """Raise WorkError if a tensor was never taken."""


class FolderSource:
    """A folder of config.json and safetensors."""

    def __init__(self, folder: Path) -> None:
        self.config = read_config(read_json(folder / "config.json"))
        self._files = Checkpoint(folder)

    def rows(self, name: str, shape: tuple[int, int]) -> Rows:
        """Return a weight [out, in] of this shape; float16 and float64 are widened or rounded to float32."""
        tensor = self._files.take(name, shape)
        if tensor.dtype is not torch.bfloat16:
            tensor = tensor.float()
        kind = "bfloat16" if tensor.dtype is torch.bfloat16 else "float32"
        return Rows(tensor.contiguous(), kind, *shape)

    def values(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Return a tensor as the file holds it, or in float32."""
        tensor = self._files.take(name, shape)
        return tensor if tensor.dtype is torch.bfloat16 else tensor.float()

    def drop_pages(self) -> None:
        """Close the files until the next tensor: pages that were read count as this process's memory."""
        self._files.close()

    def finish(self) -> None:
        """Raise WorkError if a tensor was never taken."""
        tied = ("lm_head.weight",) if self.config.tied else ()
        self._files.finish(ignore=("rotary_emb.inv_freq", *tied))
