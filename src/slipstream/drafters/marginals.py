"""The best tree over laws that do not depend on the path (DDTree, 2604.12989): block drafters and Medusa heads.

In: logits of every depth, all rows. Out: the N prefixes of largest product of probabilities, all FIXED. Found level by
level: no such prefix has a parent outside the N best of its level, and the i-th best parent with a token of rank r can
only be among the N best when (i + 1)(r + 1) <= N. No loop over nodes or vocabulary.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence as Seq

import torch
from torch import Tensor

from slipstream.drafters.ranks import Ranked, rank
from slipstream.drafters.trees import Pool, Seconds, best_tree, moved
from slipstream.types import Draft, Sequence


def marginal_tree(
    rows: Seq[Sequence],
    logits: Tensor,
    limits: Seq[int],
    *,
    seconds: Seconds | None = None,
    device: torch.device | str | None = None,
) -> Draft:
    """Return the trees of the `limits[b]` likeliest prefixes under logits [B, S, V], slot s being depth s + 1.

    V is the target's number of real ids. A row goes no deeper than its first slot that is not finite (see `broken`).
    `seconds` cuts the trees to the size that pays (see `trees.best_tree`).
    """
    most = max([0, *limits])
    depth = min(logits.shape[1], most)
    if depth == 0:
        nothing = torch.zeros(len(rows), 0, dtype=torch.int64)
        draft = best_tree(rows, Pool(nothing, nothing, nothing.double()), [0] * len(rows))
    else:
        x = logits[:, :depth]
        ranked = rank([row for row in rows for _ in range(depth)], x.reshape(-1, x.shape[-1]), most)
        draft = best_tree(rows, marginal_pool(ranked, depth, most), limits, seconds)
    return draft if device is None else moved(draft, torch.device(device))


def broken(logits: Tensor, limits: Seq[int]) -> list[int]:
    """Return the rows whose logits [B, S, V] are not finite at a depth they could reach."""
    peak = logits.amax(-1)
    depth = torch.arange(logits.shape[1], device=logits.device)
    reach = depth < torch.tensor(list(limits), device=logits.device)[:, None]
    wrong: list[int] = (~peak.isfinite() & reach).any(1).nonzero()[:, 0].tolist()
    return wrong


def marginal_pool(ranked: Ranked, depth: int, width: int) -> Pool:
    """Return, level by level, the `width` best prefixes of each row; `ranked` has rows B * depth, depth innermost."""
    k = ranked.ids.shape[1]
    scores, ids, ended = (part.view(-1, depth, k) for part in (ranked.scores, ranked.ids, ranked.ended))
    live = scores.new_zeros(scores.shape[0], 1)  # scores of the prefixes that may grow, best first
    at = torch.full_like(live, -1, dtype=torch.int64)  # their places in the pool
    levels: list[Pool] = []
    size = 0
    for d in range(depth):
        i, r = _pairs(width, live.shape[1], k, scores.device)
        total, order = (live[:, i] + scores[:, d, r]).sort(dim=1, descending=True, stable=True)
        total, order = total[:, :width], order[:, :width]
        levels.append(Pool(ids[:, d, r].gather(1, order), at[:, i].gather(1, order), total))
        grows = total.masked_fill(ended[:, d, r].gather(1, order), -torch.inf)
        live, order = grows.sort(dim=1, descending=True, stable=True)  # best first again, without those that ended
        at = size + order
        size += order.shape[1]
    return Pool(*(torch.cat([getattr(level, name) for level in levels], 1) for name in ("tokens", "parents", "scores")))


@functools.lru_cache(maxsize=256)
def _pairs(width: int, parents: int, tokens: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return (parent, token rank) pairs [M] that can be among the `width` best, in order."""
    i, r = torch.meshgrid(torch.arange(parents), torch.arange(tokens), indexing="ij")
    able = (i + 1) * (r + 1) <= width
    return i[able].to(device), r[able].to(device)
