"""The kernels' key/value cache: keys in blocks of sixteen positions, values row by row, zero pages until written.

In: a shape and a number format, bfloat16 or float32. Out: buffers the native code writes, and what is committed.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from slipstream.nets.kv_cache import CacheShape, zero_pages
from slipstream.types import RequestError, WorkError

BLOCK = 16  # positions of one block of keys
_DTYPES = (torch.bfloat16, torch.float32)


class KernelCache:
    """Keys [L, rows, KV, blocks, D, 16] and values [L, rows, KV, positions, D rounded up to 16]."""

    def __init__(self, shape: CacheShape, dtype: torch.dtype) -> None:
        from slipstream.kernels import _native

        if dtype not in _DTYPES:
            raise RequestError(f"a cache of {dtype} is not one of bfloat16, float32")
        self.shape = shape
        capacity = _whole(shape.max_len + shape.scratch)
        outer = (shape.layers, shape.rows, shape.kv_heads)
        self.keys = _buffer((*outer, capacity // BLOCK, shape.head_dim, BLOCK), dtype)
        self.values = _buffer((*outer, capacity, _whole(shape.head_dim)), dtype)
        self.lengths = [0] * shape.rows
        sizes = [*outer, shape.head_dim, capacity]
        self.native = _native.Cache(sizes, dtype is torch.float32, self.keys.data_ptr(), self.values.data_ptr())

    def keep(self, slot: int, path: list[int]) -> None:
        """Commit the root and the nodes of `path`, in order, of the nodes written at this slot's length."""
        start = self.lengths[slot]
        if path != list(range(1, len(path) + 1)):
            self.native.keep(slot, start, [0, *path])
        self.lengths[slot] = start + 1 + len(path)

    def truncate(self, slot: int, length: int) -> None:
        """Forget the tokens from `length` on."""
        if not 0 <= length <= self.lengths[slot]:
            raise RequestError(f"slot {slot} holds {self.lengths[slot]} tokens; it cannot be cut to {length}")
        self.lengths[slot] = length

    def entries(self, slot: int, end: int) -> tuple[Tensor, Tensor]:
        """Return copies of keys and values [L, KV, end, D] of a slot's first `end` places."""
        keys = self.keys[:, slot].permute(0, 1, 2, 4, 3).flatten(2, 3)[:, :, :end]
        return keys.contiguous(), self.values[:, slot, :, :end, : self.shape.head_dim].clone()

    @property
    def nbytes(self) -> int:
        """Bytes reserved; pages never written take no memory."""
        return self.keys.nbytes + self.values.nbytes


def _whole(count: int) -> int:
    return -(-count // BLOCK) * BLOCK


def _buffer(size: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    try:
        return zero_pages(size, dtype)
    except MemoryError:
        need = math.prod(size) * dtype.itemsize / 2**30
        raise WorkError(f"a cache of {2 * need:.1f} GiB does not fit; use a smaller max_len or fewer rows") from None
