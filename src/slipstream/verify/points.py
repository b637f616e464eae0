"""Walks that follow given tokens: from the root to the child that carries the wanted token, until there is none.

The greedy walk (every row of p a point mass, shared by all rules) and the coupled rule are this walk; it draws nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from slipstream.devices import listed, maybe, moved, one_each, remembered
from slipstream.types import Draft, Verdict

Choose = Callable[[Tensor, int, Tensor], Tensor]


def walk_points(draft: Draft, points: Tensor) -> Verdict:
    """Verify a greedy batch: points [B, N] is the target's token after each node."""
    if draft.nodes == 1:
        if points.is_cpu:
            return plain_verdict(one_each(tuple([ids[0] for ids in listed(points)]))[0])
        return plain_verdict(points.view(-1))
    if draft.chain:
        return _walk_chain(draft, points)
    return walk_tokens(draft, lambda node, _depth, _alive: points.gather(1, node[:, None])[:, 0])


def walk_tokens(draft: Draft, choose: Choose) -> Verdict:
    """Follow `choose(node [B], depth, alive [B]) -> token [B]` down the tree; its last token comes out as next_token.

    `depth` is the depth of the token asked for, 1 below the root; rows that are not alive have ended.
    """
    B, N, device = draft.tokens.shape[0], draft.nodes, draft.tokens.device
    valid = torch.arange(N, device=device) < draft.length[:, None]
    path = torch.full((B, max(1, N - 1)), -1, dtype=torch.int64, device=device)
    node = torch.zeros(B, dtype=torch.int64, device=device)
    accepted, out = torch.zeros_like(node), torch.zeros_like(node)
    alive = torch.ones(B, dtype=torch.bool, device=device)
    last = levels(draft)
    for depth in range(1, last + 1):
        token = choose(node, depth, alive)
        out = torch.where(alive, token, out)
        hits = valid & (draft.parents == node[:, None]) & (draft.tokens == token[:, None])  # [B, N]
        alive = alive & hits.any(1)
        if depth == last or not maybe(alive):
            break
        node = torch.where(alive, hits.int().argmax(1), node)  # the first of equal siblings
        path[:, depth - 1] = torch.where(alive, node, path[:, depth - 1])
        accepted += alive
    return Verdict(path, accepted, out)


def levels(draft: Draft) -> int:
    """Return at least how many tokens a walk can ask for: one more than the deepest node's depth.

    Where the walk itself can be asked whether it has ended, any bound will do.
    """
    if draft.chain or draft.tokens.device.type == "cpu":
        return draft.nodes
    deepest = 0
    for parents, length in zip(listed(draft.parents), listed(draft.length), strict=True):
        depths = [0]
        for parent in parents[1:length]:
            depths.append(depths[parent] + 1)
        deepest = max(deepest, *depths)
    return deepest + 1


def _walk_chain(draft: Draft, points: Tensor) -> Verdict:
    if points.is_cpu:
        return _walk_on_host(draft, points)
    node = torch.arange(1, max(2, draft.nodes), device=points.device)
    hits = (draft.tokens[:, 1:] == points[:, :-1]) & (node[: draft.nodes - 1] < draft.length[:, None])
    accepted = hits.cumprod(1).sum(1)
    path = torch.where(node <= accepted[:, None], node, -1)
    return Verdict(path, accepted, points.gather(1, accepted[:, None])[:, 0])


def _walk_on_host(draft: Draft, points: Tensor) -> Verdict:
    """Walk chains that lie in the host's memory in plain Python: a handful of tensor operations takes far longer."""
    accepted, out = [], []
    for ids, wanted, length in zip(listed(draft.tokens), listed(points), listed(draft.length), strict=True):
        kept = 0
        while kept < length - 1 and ids[kept + 1] == wanted[kept]:
            kept += 1
        accepted.append(kept)
        out.append(wanted[kept])
    return Verdict(*runs(draft.nodes, tuple(accepted)), remembered(torch.tensor(out), out))


def plain_verdict(next_token: Tensor) -> Verdict:
    """Write the verdict [B] of rows that drafted nothing."""
    path, accepted = runs(1, (0,) * next_token.shape[0])
    if not next_token.is_cpu:
        path, accepted = moved(path, next_token.device), moved(accepted, next_token.device)
    return Verdict(path, accepted, next_token)


@functools.lru_cache(maxsize=512)
def runs(nodes: int, accepted: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Paths and counts of chains so many of whose tokens stand: read, never written."""
    width = max(1, nodes - 1)
    paths = [[*range(1, n + 1), *[-1] * (width - n)] for n in accepted]
    kept = list(accepted)
    return (
        remembered(torch.tensor(paths, dtype=torch.int64), paths),
        remembered(torch.tensor(kept, dtype=torch.int64), kept),
    )
