"""One forward over a decoder's cache, row by row: where each row's nodes stand and what they see, and its attention.

In: slots, lengths and trees, once per pass. Out: attended heads, layer by layer. Each row is attended over a slice of
its own cache, without padding: the way for a CPU, and for prompts. `batched` does all rows in one call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import torch
from torch import Tensor

from slipstream.devices import moved
from slipstream.nets.attention import Sight, ancestry, attend, chain_sight, tree_sight
from slipstream.nets.families import DecoderConfig, Rope
from slipstream.nets.kv_cache import KVCache

Rotations: TypeAlias = Mapping[Rope, tuple[Tensor, Tensor]]  # cos, sin: [R, 1, D]
Rotate: TypeAlias = Callable[[Tensor, int], Rotations]  # (positions [R], the largest of them)


class Pass(Protocol):
    """What the layers of a decoder need to know of a forward."""

    @property
    def rotations(self) -> Rotations:
        """Rotary tables at the positions of the pass."""

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Write k, v [R, KV, D] to the cache and attend q [R, heads, D] -> [R, heads * D]."""


@dataclass(frozen=True)
class RowPass:
    """`counts[b]` new entries behind `starts[b]` cached ones in each slot, and what each may see."""

    config: DecoderConfig
    cache: KVCache
    slots: list[int]
    starts: list[int]
    counts: list[int]
    rotations: Rotations
    sights: dict[int | None, list[Sight]]  # per window, one for each row

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Write and attend one row after the other."""
        c, cache = self.config, self.cache
        out, at = [], 0
        for b, (slot, sight) in enumerate(zip(self.slots, self.sights[c.windows[layer]], strict=True)):
            rows = slice(at, at + self.counts[b])
            cache.write(layer, slot, self.starts[b], k[rows], v[rows])
            out.append(attend(q[rows], cache.read(layer, slot, sight.begin, sight.end), sight, c.scale))
            at = rows.stop
        return out[0] if len(out) == 1 else torch.cat(out)


@dataclass(frozen=True)
class Nodes:
    """What a pass runs over: `counts[b]` nodes behind `starts[b]` cached tokens of `slots[b]`; `trees[b]` are the
    parents of row b's nodes, None: chains. `prompt`: read as a prompt, which some networks do their own way."""

    slots: list[int]
    starts: list[int]
    counts: list[int]
    trees: list[list[int]] | None = None
    prompt: bool = False

    def depths(self) -> list[list[int]]:
        """Return the depth of every node, row by row."""
        if self.trees is None:
            return [list(range(n)) for n in self.counts]
        return [ancestry(parents)[0] for parents in self.trees]


def row_pass(config: DecoderConfig, cache: KVCache, nodes: Nodes, rotate: Rotate, like: Tensor) -> RowPass:
    """Work out positions and masks once, for all layers; masks have dtype and device of `like`."""
    trees, starts, counts = nodes.trees, nodes.starts, nodes.counts
    grown = None if trees is None else [ancestry(parents) for parents in trees]
    depths = [list(range(n)) for n in counts] if grown is None else [g[0] for g in grown]
    at = [start + depth for start, row in zip(starts, depths, strict=True) for depth in row]
    rotations = rotate(moved(torch.tensor(at), like.device), max(at))
    groups = config.heads // config.kv_heads
    sights: dict[int | None, list[Sight]] = {}
    for window in set(config.windows):
        if grown is None:
            sights[window] = [chain_sight(s, n, window, groups, like) for s, n in zip(starts, counts, strict=True)]
        else:
            sights[window] = [tree_sight(s, g, window, groups, like) for s, g in zip(starts, grown, strict=True)]
    return RowPass(config, cache, nodes.slots, starts, counts, rotations, sights)
