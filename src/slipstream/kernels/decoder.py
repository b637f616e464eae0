"""The decoder of `nets.decoder` on the CPU kernels: the same interface, packed weights, rows that keep their bits.

A row's logits and hidden states do not depend on what else is in the pass: a tree's path, a chain and a batch give the
same bits, and so does a prompt fed in pieces, so greedy speculative text is plain text, bit for bit. Rows read as a
prompt may differ from the same tokens decoded (gemm.h, Role). Loading is in `load.py`.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor

from slipstream.devices import remembered
from slipstream.kernels.cache import KernelCache
from slipstream.kernels.linear import Table
from slipstream.nets.decoder import CachedDecoder, padded, places, real_ids
from slipstream.nets.families import DecoderConfig, Rope
from slipstream.nets.kv_cache import CacheShape
from slipstream.nets.layers import Map, inverse_frequencies
from slipstream.nets.passes import Nodes

KernelPass: TypeAlias = tuple[Any, Nodes]  # the native cache, and what runs over it


class Angles:
    """Cosines and sines of one rotary table, [positions, head_dim / 2] float32, grown when needed."""

    def __init__(self, rope: Rope, head_dim: int) -> None:
        self.inverse, self.factor = inverse_frequencies(rope, head_dim)
        self.positions = 0
        self.grow(1024)

    def grow(self, positions: int) -> None:
        """Make room for positions 0 to `positions` - 1."""
        if positions > self.positions:
            self.positions = max(positions, 2 * self.positions)
            angles = torch.arange(self.positions, dtype=torch.float32)[:, None] * self.inverse
            self.cos, self.sin = angles.cos() * self.factor, angles.sin() * self.factor
            self.addresses = self.cos.data_ptr(), self.sin.data_ptr()  # where the two tables lie


@dataclass
class PackedWeights:
    """What the network holds in memory: the native decoder's matrices, embedding and output layer among them."""

    embed: Table
    matrices: list[Any]
    head: list[Map]

    @property
    def nbytes(self) -> int:
        """Bytes of memory held."""
        return sum(matrix.nbytes for matrix in self.matrices)


class KernelNet:
    """The network without a cache: what drafters that share the target's tables read.

    `dtype` is what hidden states are handed out in; the arithmetic between two products is float32.
    """

    device = torch.device("cpu")

    def __init__(self, config: DecoderConfig, native: Any, weights: PackedWeights, dtype: torch.dtype) -> None:
        self.config, self.native, self.weights, self.dtype = config, native, weights, dtype
        self.angles = [Angles(rope, config.head_dim) for rope in rope_tables(config)]
        self.embed_scale = rounded_scale(config, dtype)
        self.vocab = 0  # columns of the logits, set by the loader
        self._reach(1024)

    def embed(self, tokens: Tensor) -> Tensor:
        """Tokens [R] -> [R, H], as fed to the first layer."""
        h = self.weights.embed(tokens)
        return (h if self.embed_scale == 1 else h * self.embed_scale).to(self.dtype)

    def run(self, ids: Tensor, work: KernelPass, taps: Seq[int], head: bool) -> tuple[Tensor, dict[int, Tensor]]:
        """Run all layers over ids [R], row after row -> logits [R, V] (empty without `head`) and taps [R, H]."""
        tokens = ids.flatten().tolist()
        return self.forward(tokens, *work, taps, (len(tokens) if head else 0,))[:2]

    def forward(
        self, tokens: list[int], cache: Any, nodes: Nodes, taps: Seq[int], shape: tuple[int, ...]
    ) -> tuple[Tensor, dict[int, Tensor], Tensor]:
        """Do what `run` does, with ids in a list and logits [*shape, V]; return their peaks (types.Scores) too."""
        states = {tap: torch.empty(len(tokens), self.config.hidden) for tap in taps}
        logits, peaks = torch.empty(*shape, self.vocab), torch.empty(shape, dtype=torch.int64)
        head = shape != (0,)
        last = max(map(operator.add, nodes.starts, nodes.counts))
        if last > self.positions:
            self._reach(last)
        told = self.native.forward(
            cache,
            tokens,
            nodes.slots,
            nodes.starts,
            nodes.counts,
            [parent for tree in nodes.trees for parent in tree] if nodes.trees else [],
            self._tables,
            [(tap, out.data_ptr()) for tap, out in states.items()],
            logits.data_ptr() if head else 0,
            peaks.data_ptr() if head else 0,
            nodes.prompt,
        )
        if len(shape) == 2:
            remembered(peaks, [told[at : at + shape[1]] for at in range(0, len(told), shape[1])])
        return logits, {tap: out.to(self.dtype) for tap, out in states.items()}, peaks

    def _reach(self, positions: int) -> None:
        """Have rotary tables of so many positions, or more."""
        for table in self.angles:
            table.grow(positions)
        self.positions = min((table.positions for table in self.angles), default=positions)
        self._tables = [table.addresses for table in self.angles]

    def logits(self, x: Tensor) -> Tensor:
        """Normed states [R, H] -> logits [R, V] in the dtype of the states."""
        states = x.float().contiguous()
        out = torch.empty(states.shape[0], self.vocab)
        self.native.logits(states.data_ptr(), states.shape[0], out.data_ptr())
        return out.to(x.dtype)

    def bare_embed(self, tokens: Tensor) -> Tensor:
        """Tokens [R] -> [R, H], without the model's scale."""
        return self.weights.embed(tokens).to(self.dtype)

    def bare_logits(self, x: Tensor) -> Tensor:
        """Normed states [R, H] -> logits [R, V], without the model's cap."""
        return torch.cat([part(x) for part in self.weights.head], dim=-1)


def rope_tables(config: DecoderConfig) -> list[Rope]:
    """Return the distinct rotary tables of a model, in the order of their first layer."""
    return list(dict.fromkeys(rope for rope in config.ropes if rope is not None))


def rounded_scale(config: DecoderConfig, dtype: torch.dtype) -> float:
    """Return what embeddings are multiplied by, rounded as the model's own number format rounds it."""
    return 1.0 if config.embed_scale is None else float(torch.tensor(config.embed_scale).to(dtype))


class KernelDecoder(CachedDecoder):
    """Play `CachedDecoder` on the kernels. Logits come in float32, hidden states in the network's dtype."""

    own_threads = True

    def __init__(
        self, net: KernelNet, *, vocab: int, max_rows: int, max_len: int, max_nodes: int, kv: torch.dtype
    ) -> None:
        self.net, self.max_rows, self.max_nodes = net, max_rows, max_nodes  # type: ignore[assignment]
        self.config = replace(net.config, vocab=vocab, max_len=max_len)
        c = net.config
        shape = CacheShape(c.layers, max_rows, c.kv_heads, c.head_dim, max_len, max_nodes)
        self._cache = KernelCache(shape, kv)
        self.cache = self._cache  # type: ignore[assignment]
        self.runner = None
        self._scored: dict[int, list[int]] = {}

    def _rows(self, nodes: Nodes) -> Any:
        return self._cache.native, nodes

    def _one_by_one(self, nodes: Nodes, tokens: Tensor, taps: Seq[int]) -> tuple[Tensor, dict[int, Tensor]]:
        rows, n = tokens.shape
        ids = [token for line in real_ids(tokens, nodes.counts) for token in line]
        full = len(ids) == rows * n
        net: Any = self.net
        shape = (rows, n) if full else (len(ids),)
        logits, states, self.peaks = net.forward(ids, self._cache.native, nodes, taps, shape)
        if full and not taps:  # most passes
            return logits, {}
        real = places(n, nodes.counts)
        self.peaks = padded(self.peaks.view(-1, 1), rows, n, real)[..., 0]
        return padded(logits, rows, n, real), {tap: padded(x, rows, n, real) for tap, x in states.items()}
