"""One forward for all rows at once, over shapes rounded up to few sizes: the way for an accelerator.

In: the nodes of a pass (`passes.Nodes`), packed into one buffer of static size (`Frame`). Out: attended heads, one
call per layer whatever the number of rows. Everything that depends on lengths, slots or trees is computed on the
device from the frame, so the same kernels serve every pass of a size (`graphs` records them once). Rows and nodes
that round a size up are written to a place nobody reads; what a node must not see is read as zeros and masked.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from slipstream.nets.attention import ancestry
from slipstream.nets.families import DecoderConfig
from slipstream.nets.kv_cache import KVCache
from slipstream.nets.passes import Nodes, Rotate, Rotations

_BITS = 32  # of a node's ancestors in each word of a frame
_SHORTEST = 128  # keys of the smallest size


@dataclass(frozen=True)
class Bucket:
    """The sizes of a pass: rows, nodes of each row, keys of layers that see everything."""

    rows: int
    nodes: int
    keys: int

    @property
    def words(self) -> int:
        """Words that hold one node's ancestors."""
        return -(-self.nodes // _BITS)

    @property
    def size(self) -> int:
        """Elements of the frame's buffer: slot, start and count of each row; id, depth and ancestors of each node."""
        return self.rows * (3 + self.nodes * (2 + self.words))


def bucket_of(nodes: Nodes, *, max_rows: int, max_nodes: int, places: int) -> Bucket:
    """Round the sizes of a pass up to powers of two, at most what there is at all."""
    width = _up(max(nodes.counts), max_nodes)
    longest = max(start + n for start, n in zip(nodes.starts, nodes.counts, strict=True))
    # places behind the last one read as zeros: a size that fused kernels like costs nothing
    return Bucket(_up(len(nodes.slots), max_rows), width, _up(max(longest, _SHORTEST), _wide(places)))


def pack(nodes: Nodes, ids: list[list[int]] | None, bucket: Bucket) -> Tensor:
    """Write a pass as one buffer of the host, int64 [size]; `ids` None: they are on the device and come later.

    What `ids` hold beyond a row's nodes is left out.
    """
    rows, n, words = bucket.rows, bucket.nodes, bucket.words
    buffer = np.zeros(bucket.size, dtype=np.int64)
    head, body = buffer[: 3 * rows].reshape(3, rows), buffer[3 * rows :]
    tokens, depths = body[: 2 * rows * n].reshape(2, rows, n)
    bits = body[2 * rows * n :].reshape(rows, n, words)
    for b, count in enumerate(nodes.counts):
        head[:, b] = nodes.slots[b], nodes.starts[b], count
        if ids is not None:
            tokens[b, :count] = ids[b][:count]
        parents = list(range(-1, count - 1)) if nodes.trees is None else nodes.trees[b]
        depths[b, :count], seen = ancestry(parents)
        bits[b, :count] = _packed(seen, words)
    return torch.from_numpy(buffer)


class Frame:
    """The inputs of a pass as views of one device buffer [size], which keeps its storage from pass to pass."""

    def __init__(self, buffer: Tensor, bucket: Bucket) -> None:
        rows, n = bucket.rows, bucket.nodes
        head, body = buffer[: 3 * rows].view(3, rows), buffer[3 * rows :]
        tokens, depths = body[: 2 * rows * n].view(2, rows, n).unbind(0)
        self.buffer, self.bucket = buffer, bucket
        self.slots, self.starts, self.counts = (part[:, None] for part in head.unbind(0))  # [B, 1]
        self.tokens, self.depths = tokens, depths  # [B, N]
        self._bits = body[2 * rows * n :].view(rows, n, bucket.words)

    def real(self) -> Tensor:
        """Mark the nodes that are there -> bool [B, N]."""
        return torch.arange(self.bucket.nodes, device=self.buffer.device) < self.counts

    def ancestors(self) -> Tensor:
        """Say which nodes each node sees, itself included -> bool [B, N, N]."""
        shifts = torch.arange(_BITS, device=self.buffer.device)
        return ((self._bits[..., None] >> shifts) & 1).flatten(2)[..., : self.bucket.nodes].bool()


@dataclass(frozen=True)
class Reach:
    """What the layers of one window read: cache places [B, T], and what is added to the scores, [B, 1, G * N, T]."""

    places: Tensor
    mask: Tensor


class BatchPass:
    """A forward over a frame: made of device operations only, none of which depends on what the frame holds."""

    def __init__(self, config: DecoderConfig, cache: KVCache, frame: Frame, rotate: Rotate) -> None:
        self.config, self.cache, self.frame = config, cache, frame
        positions = (frame.starts + frame.depths).flatten()
        self.rotations: Rotations = rotate(positions, cache.shape.max_len + cache.shape.scratch - 1)
        own = frame.starts + torch.arange(frame.bucket.nodes, device=positions.device)
        self.written = frame.slots, torch.where(frame.real(), own, cache.waste)
        ancestors = frame.ancestors()
        self.reaches = {window: self._reach(window, ancestors) for window in set(config.windows)}

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Write k, v [R, KV, D] and attend q [R, heads, D] -> [R, heads * D], R = B * N."""
        c, bucket = self.config, self.frame.bucket
        b, n, groups = bucket.rows, bucket.nodes, c.heads // c.kv_heads
        reach, shape = self.reaches[c.windows[layer]], (b, n, c.kv_heads, c.head_dim)
        self.cache.scatter(layer, self.written, k.reshape(shape), v.reshape(shape))
        keys, values = self.cache.gather(layer, (self.frame.slots, reach.places))
        # heads that share a key head stand side by side as queries
        folded = q.reshape(b, n, c.kv_heads, groups, c.head_dim).permute(0, 2, 3, 1, 4).flatten(2, 3)
        o = F.scaled_dot_product_attention(folded, keys, values, attn_mask=reach.mask, scale=c.scale)
        return o.view(b, c.kv_heads, groups, n, c.head_dim).permute(0, 3, 1, 2, 4).reshape(b * n, -1)

    def _reach(self, window: int | None, ancestors: Tensor) -> Reach:
        frame, cache = self.frame, self.cache
        n, device = frame.bucket.nodes, frame.buffer.device
        width = frame.bucket.keys if window is None else min(frame.bucket.keys, _wide(window - 1 + n))
        begin = torch.zeros_like(frame.starts) if window is None else (frame.starts + 1 - window).clamp(min=0)
        places = begin + torch.arange(width, device=device)  # [B, T]
        own = places - frame.starts  # which node of the draft, below 0: a committed token
        node = own.clamp(0, n - 1)
        seen = ancestors.gather(2, node[:, None].expand(-1, n, -1)) | (own < 0)[:, None]  # [B, N, T]
        there = own < frame.counts
        if window is not None:
            positions = torch.where(own < 0, places, frame.starts + frame.depths.gather(1, node))
            seen = seen & (positions[:, None] > (frame.starts + frame.depths)[..., None] - window)
        seen = seen & there[:, None]
        # a node that is not there sees something, or its softmax would be over nothing
        first = torch.arange(width, device=device) == 0
        seen = seen | (first & ~frame.real()[..., None])
        mask = torch.zeros(seen.shape, dtype=cache.keys.dtype, device=device).masked_fill_(~seen, -torch.inf)
        groups = self.config.heads // self.config.kv_heads
        return Reach(torch.where(there, places, cache.zero), mask.repeat(1, groups, 1)[:, None])


def _up(size: int, most: int) -> int:
    return min(1 << (size - 1).bit_length(), max(most, size))


def _wide(size: int) -> int:
    return -(-size // 64) * 64  # the fused kernels want masks of even width


def _packed(seen: np.ndarray, words: int) -> np.ndarray:
    wide = np.zeros((len(seen), words * _BITS), dtype=np.int64)
    wide[:, : len(seen)] = seen
    return (wide.reshape(len(seen), words, _BITS) << np.arange(_BITS)).sum(-1)
