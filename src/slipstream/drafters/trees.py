"""Cut the best tree out of a pool of scored nodes, and write it as a `Draft` of FIXED nodes.

In: a pool per row in which parents come before children and no child scores above its parent. Out: its best nodes, an
ancestor-closed tree, in order of score: any head of that order is itself the best tree of its size. FIXED nodes may be
chosen by score (law 4); drawn ones are not made here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from slipstream.drafters.chains import chain_draft
from slipstream.types import Draft, Draw, Sequence

Seconds = Callable[[int], float]  # tokens in a target pass, roots included -> measured seconds


@dataclass(frozen=True)
class Pool:
    """Nodes that may be drafted: `parents` are places in the pool, -1 the root; `scores` log-probabilities of paths."""

    tokens: Tensor  # [B, P]
    parents: Tensor  # [B, P]
    scores: Tensor  # [B, P], -inf: not to be drafted


def best_tree(rows: Seq[Sequence], pool: Pool, limits: Seq[int], seconds: Seconds | None = None) -> Draft:
    """Return the tree of the `limits[b]` best nodes of each row, ties by place in the pool; on the pool's device.

    With `seconds` the trees are cut to the size that promises most tokens per second of the target's pass (CaDDTree,
    2606.01813), over the whole batch: nodes of all greedy rows enter in the order of their probability.
    """
    most = max([0, *limits])
    scores, order = pool.scores.sort(dim=1, descending=True, stable=True)
    scores, order = scores[:, :most], order[:, :most]  # [B, N - 1]
    at = torch.arange(order.shape[1], device=order.device)
    sizes = torch.tensor(list(limits), device=order.device)
    allowed = (at < sizes[:, None]) & (scores > -torch.inf)
    if seconds is not None:
        # measured times differ from run to run: a sampled row keeps its size, so that its seed fixes its text
        timed = torch.tensor([row.params.greedy for row in rows], device=order.device)[:, None]
        allowed &= _worth(torch.where(allowed & timed, scores.exp(), 0.0), seconds) | ~timed
    counts = allowed.sum(1)
    order = order[:, : int(counts.max()) if len(limits) else 0]
    place = torch.zeros_like(pool.tokens).scatter_(1, order, (at[: order.shape[1]] + 1).expand_as(order))
    above = pool.parents.gather(1, order)
    parents = torch.where(above < 0, 0, place.gather(1, above.clamp(min=0)))
    return _written(rows, pool.tokens.gather(1, order), parents, counts)


def widen(draft: Draft, width: int) -> Draft:
    """Pad, or cut padding off, a draft to `width` nodes."""
    extra = width - draft.nodes
    if extra <= 0:
        q = None if draft.q is None else draft.q[:, :width]
        parts = (part[:, :width] for part in (draft.tokens, draft.parents, draft.draw))
        tokens, parents, draw = parts
        return replace(draft, tokens=tokens, parents=parents, draw=draw, q=q)
    pad = torch.nn.functional.pad
    behind = torch.arange(draft.nodes - 1, width - 1, device=draft.parents.device)
    return replace(
        draft,
        tokens=pad(draft.tokens, (0, extra)),
        parents=torch.cat([draft.parents, behind.expand(len(draft.length), -1)], 1),
        draw=pad(draft.draw, (0, extra)),
        q=None if draft.q is None else pad(draft.q, (0, 0, 0, extra)),
    )


def merge(rows: Seq[Sequence], parts: Seq[tuple[list[int], Draft]], device: torch.device) -> Draft:
    """Join drafts of some rows each, given by their places in the batch, on `device`; rows in none have their root."""
    if not parts:
        return chain_draft(rows, [()] * len(rows), device=device)
    if len(parts) == 1 and parts[0][0] == list(range(len(rows))):
        return moved(parts[0][1], device)
    nothing = torch.zeros(len(rows), 0, dtype=torch.int64, device=device)
    width = max([1, *(draft.nodes for _, draft in parts)])
    whole = widen(_written(rows, nothing, nothing, torch.zeros(len(rows), dtype=torch.int64, device=device)), width)
    laws = [draft.q for _, draft in parts if draft.q is not None]
    q = None
    if laws:  # wide enough for all: a law must stay what was drawn from (law 3)
        dtype = functools.reduce(torch.promote_types, (law.dtype for law in laws))
        q = torch.zeros(len(rows), width, laws[0].shape[2], dtype=dtype, device=device)
    for which, draft in parts:
        part, at = moved(widen(draft, width), device), torch.tensor(which, device=device)
        for name in ("tokens", "parents", "length", "draw"):
            getattr(whole, name)[at] = getattr(part, name)
        if q is not None and part.q is not None:
            q[at] = part.q.to(q)
    chain = bool((whole.parents == torch.arange(-1, width - 1, device=device)).all())
    return replace(whole, q=q, chain=chain)


def moved(draft: Draft, device: torch.device) -> Draft:
    """Return the draft on `device`."""
    if draft.tokens.device == device:
        return draft
    tokens, parents, length, draw = (t.to(device) for t in (draft.tokens, draft.parents, draft.length, draft.draw))
    return Draft(tokens, parents, length, draw, None if draft.q is None else draft.q.to(device), draft.chain)


def _worth(gains: Tensor, seconds: Seconds) -> Tensor:
    """Mark the nodes worth their time; gains [B, N] are path probabilities, falling along each row."""
    B, N = gains.shape
    # place by place, then row by row: the stable sort leaves each row's nodes in their order
    flat, order = gains.T.reshape(-1).sort(descending=True, stable=True)
    count = int((flat > 0).sum())
    tokens = torch.cat([flat.new_zeros(1), flat[:count].cumsum(0)]) + B
    cost = torch.tensor([seconds(B + n) for n in range(count + 1)], dtype=tokens.dtype, device=tokens.device)
    size = int((tokens / cost).argmax())
    marks = torch.zeros(N * B, dtype=torch.bool, device=gains.device)
    marks[order[:size]] = True
    return marks.view(N, B).T


def _written(rows: Seq[Sequence], tokens: Tensor, parents: Tensor, counts: Tensor) -> Draft:
    """Put the root in front and make padding harmless; tokens, parents [B, N - 1], `counts` [B] real ones."""
    device, n = tokens.device, tokens.shape[1]
    roots = torch.tensor([row.tokens[-1] for row in rows], dtype=torch.int64, device=device)[:, None]
    behind = torch.arange(n, device=device)
    real = behind < counts[:, None]
    tokens = torch.cat([roots, torch.where(real, tokens, 0)], 1)
    parents = torch.cat([torch.full_like(roots, -1), torch.where(real, parents, behind)], 1)
    chain = bool((parents == torch.arange(-1, n, device=device)).all())
    draw = torch.full_like(tokens, int(Draw.FIXED))
    return Draft(tokens, parents, counts + 1, draw, None, chain)
