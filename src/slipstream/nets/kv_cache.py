"""A static key/value cache: one slot per row, committed tokens first, scratch for a draft behind them.

What lies behind a slot's length is uncommitted: `keep` moves an accepted path into place and advances the length.
Readers ask for an explicit range, or name each place (`gather`): what is not to be seen is read from a place that is
always zero, so stale entries (even NaN) cannot reach an output. No attention here.
"""

from __future__ import annotations

import math
import mmap
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import Tensor

from slipstream.devices import moved
from slipstream.types import RequestError, WorkError

_SPARE = 2  # places behind the scratch: one always zero, one for what is written and never read


@dataclass(frozen=True)
class CacheShape:
    """Sizes of a cache; `scratch` is how many uncommitted nodes fit behind `max_len` committed tokens."""

    layers: int
    rows: int
    kv_heads: int
    head_dim: int
    max_len: int
    scratch: int


class KVCache:
    """Keys and values of every layer: two buffers [L, rows, KV, max_len + scratch, D].

    On a CPU the buffers are zero pages of the operating system: a long `max_len` costs memory only where written.
    Sliding-window layers keep every token too and are masked; for them this is more memory than a ring would need.
    """

    def __init__(self, shape: CacheShape, dtype: torch.dtype, device: torch.device) -> None:
        self.shape = shape
        places = shape.max_len + shape.scratch
        self.zero, self.waste = places, places + 1
        size = (shape.layers, shape.rows, shape.kv_heads, places + _SPARE, shape.head_dim)
        try:
            self._keys, self._values = _buffer(size, dtype, device), _buffer(size, dtype, device)
        except (MemoryError, torch.OutOfMemoryError):
            need = 2 * math.prod(size) * dtype.itemsize / 2**30
            tokens = f"{shape.rows} rows of {shape.max_len + shape.scratch} tokens"
            raise WorkError(
                f"a cache of {need:.1f} GiB ({tokens}) does not fit; use a smaller max_len or fewer rows"
            ) from None
        self.keys, self.values = self._keys[..., :places, :], self._values[..., :places, :]
        self.lengths = [0] * shape.rows
        # views are made once: at one row per pass, indexing would cost as much as the copy
        self._k = [[self.keys[i, s] for s in range(shape.rows)] for i in range(shape.layers)]
        self._v = [[self.values[i, s] for s in range(shape.rows)] for i in range(shape.layers)]

    def write(self, layer: int, slot: int, start: int, k: Tensor, v: Tensor) -> None:
        """Write k, v [N, KV, D] at positions start.. of a slot."""
        end = start + k.shape[0]
        self._k[layer][slot][:, start:end].copy_(k.transpose(0, 1))
        self._v[layer][slot][:, start:end].copy_(v.transpose(0, 1))

    def read(self, layer: int, slot: int, begin: int, end: int) -> tuple[Tensor, Tensor]:
        """Return keys and values [KV, end - begin, D] of a slot, without copying."""
        return self._k[layer][slot][:, begin:end], self._v[layer][slot][:, begin:end]

    def scatter(self, layer: int, at: tuple[Tensor, Tensor], k: Tensor, v: Tensor) -> None:
        """Write k, v [B, N, KV, D] at slots [B, 1] and places [B, N] in one go; `waste` takes what nobody reads."""
        self._keys[layer].transpose(1, 2).index_put_(at, k)
        self._values[layer].transpose(1, 2).index_put_(at, v)

    def gather(self, layer: int, at: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Copy the keys and values [B, KV, T, D] at slots [B, 1] and places [B, T]; `zero` reads as zeros."""
        keys, values = self._keys[layer].transpose(1, 2)[at], self._values[layer].transpose(1, 2)[at]
        return keys.transpose(1, 2), values.transpose(1, 2)

    def keep(self, slot: int, path: list[int]) -> None:
        """Commit the root and the nodes of `path`, in order, of the nodes written at this slot's length."""
        start = self.lengths[slot]
        if path != list(range(1, len(path) + 1)):
            source = moved(torch.tensor(path) + start, self.keys.device)
            end = start + 1 + len(path)
            for buffer in (self.keys, self.values):
                buffer[:, slot, :, start + 1 : end] = buffer[:, slot].index_select(2, source)
        self.lengths[slot] = start + 1 + len(path)

    def truncate(self, slot: int, length: int) -> None:
        """Forget the tokens from `length` on."""
        if not 0 <= length <= self.lengths[slot]:
            raise RequestError(f"slot {slot} holds {self.lengths[slot]} tokens; it cannot be cut to {length}")
        self.lengths[slot] = length

    @property
    def nbytes(self) -> int:
        """Bytes reserved; on a CPU, pages never written take no memory."""
        return self.keys.nbytes + self.values.nbytes


def _buffer(size: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    return zero_pages(size, dtype) if device.type == "cpu" else torch.zeros(size, dtype=dtype, device=device)


def zero_pages(size: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return zeros whose pages take no memory until they are written; MemoryError where even that does not fit.

    Small pages: a short text would fill a huge one in every layer and head of its slot.
    """
    try:
        memory = mmap.mmap(-1, math.prod(size) * dtype.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError) as error:
        raise MemoryError(str(error)) from error
    with suppress(AttributeError, OSError):  # a system that knows no huge pages
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    return torch.frombuffer(memory, dtype=dtype).view(size)
