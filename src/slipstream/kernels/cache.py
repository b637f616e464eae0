"""The kernels' key/value cache: zero pages until written, laid out as the kernels multiply it (kv_cache.h).

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
    """Keys in blocks of 16 positions and values by position, S entries (D rounded up to 16) each.

    float32: keys [L, rows, KV, blocks, D, 16, 1], values [L, rows, KV, positions, S, 1]. bfloat16: keys
    [L, rows, KV, blocks, D / 2, 16, 2], values [L, rows, KV, positions / 2, S, 2].
    """

    def __init__(self, shape: CacheShape, dtype: torch.dtype) -> None:
        from slipstream.kernels import _native

        if dtype not in _DTYPES:
            raise RequestError(f"a cache of {dtype} is not one of bfloat16, float32")
        self.shape = shape
        capacity = _whole(shape.max_len + shape.scratch)
        outer = (shape.layers, shape.rows, shape.kv_heads)
        two = 1 if dtype is torch.float32 else 2
        self.keys = _buffer((*outer, capacity // BLOCK, -(-shape.head_dim // two), BLOCK, two), dtype)
        self.values = _buffer((*outer, capacity // two, _whole(shape.head_dim), two), dtype)
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
        keys = self.keys[:, slot].permute(0, 1, 2, 4, 3, 5).flatten(2, 3).flatten(3)
        values = self.values[:, slot].transpose(3, 4).flatten(2, 3)
        dim = self.shape.head_dim
        return keys[:, :, :end, :dim].contiguous(), values[:, :, :end, :dim].contiguous()

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
