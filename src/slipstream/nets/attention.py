"""Attention of a few draft nodes, or a chunk of prompt, over one row's cache.

In: which row sees what (`Sight`), computed once per pass for each distinct window. Out: attended heads. Rows are
attended one by one over a slice that ends at their own last node: nothing behind it is ever multiplied, so no stale
entry, not even NaN, can leak. Query heads that share a key head are folded into the query axis.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from slipstream.devices import moved

_FOLD_LIMIT = 32  # above this many queries the folded mask costs more than the grouped kernel


@dataclass(frozen=True)
class Sight:
    """What one row may see in the layers of one window: cache positions begin..end, less what `mask` hides.

    `mask` is added to the scores: [N, end - begin], or [G * N, end - begin] when the queries are folded.
    """

    begin: int
    end: int
    mask: Tensor | None
    folded: bool
    causal: bool = False


def ancestry(parents: list[int]) -> tuple[list[int], np.ndarray]:
    """Return each node's depth, and seen[i, j]: node j is node i or one of its ancestors."""
    n = len(parents)
    depths, seen = [0] * n, np.eye(n, dtype=bool)
    for i, parent in enumerate(parents[1:], start=1):
        depths[i] = depths[parent] + 1
        seen[i] |= seen[parent]
    return depths, seen


def chain_sight(start: int, nodes: int, window: int | None, groups: int, like: Tensor) -> Sight:
    """Say what a chain of nodes behind `start` cached tokens sees; `like` gives dtype and device of the mask."""
    begin = 0 if window is None else max(0, start + 1 - window)
    folded = nodes <= _FOLD_LIMIT
    if nodes == 1:
        return Sight(begin, start + 1, None, folded)
    if not folded and start == 0 and (window is None or nodes <= window):
        return Sight(0, nodes, None, folded, causal=True)
    queries = torch.arange(start, start + nodes)[:, None]
    keys = torch.arange(begin, start + nodes)[None]
    seen = keys <= queries
    if window is not None:
        seen &= keys > queries - window
    return Sight(begin, start + nodes, _additive(seen, groups if folded else 1, like), folded)


def tree_sight(start: int, tree: tuple[list[int], np.ndarray], window: int | None, groups: int, like: Tensor) -> Sight:
    """Say what the nodes of a tree (see `ancestry`) see: the cached tokens and their own ancestors."""
    depths, ancestors = tree
    begin = 0 if window is None else max(0, start + 1 - window)
    seen = torch.ones(len(depths), start + len(depths) - begin, dtype=torch.bool)  # [N, T]
    seen[:, start - begin :] = torch.from_numpy(ancestors)
    if window is not None:
        at = torch.tensor(depths)
        keys = torch.cat([torch.arange(begin, start), start + at])
        seen &= keys[None] > (start + at)[:, None] - window
    folded = len(depths) <= _FOLD_LIMIT
    return Sight(begin, start + len(depths), _additive(seen, groups if folded else 1, like), folded)


def attend(q: Tensor, kv: tuple[Tensor, Tensor], sight: Sight, scale: float) -> Tensor:
    """Attend q [N, heads, D] over keys and values [KV, T, D] -> [N, heads * D]."""
    n, heads, dim = q.shape
    k, v = kv[0].unsqueeze(0), kv[1].unsqueeze(0)
    groups = heads // k.shape[1]
    if sight.folded:
        folded = q.view(n, -1, groups, dim).permute(1, 2, 0, 3).reshape(1, -1, groups * n, dim)
        o = F.scaled_dot_product_attention(folded, k, v, attn_mask=sight.mask, scale=scale)
        return o.view(-1, groups, n, dim).permute(2, 0, 1, 3).reshape(n, heads * dim)
    o = F.scaled_dot_product_attention(
        q.transpose(0, 1).unsqueeze(0), k, v, sight.mask, is_causal=sight.causal, scale=scale, enable_gqa=groups > 1
    )
    return o[0].transpose(0, 1).reshape(n, heads * dim)


def _additive(seen: Tensor, groups: int, like: Tensor) -> Tensor:
    mask = torch.zeros(seen.shape, dtype=like.dtype).masked_fill_(~seen, float("-inf"))
    return moved(mask.repeat(groups, 1), like.device)
