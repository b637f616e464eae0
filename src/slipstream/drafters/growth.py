"""Dynamic trees (EAGLE-2, 2406.16858): grown level by level where the drafter is surest, one network pass a level.

In: rows, their limits, a network behind `frontier.Feed`. Out: a `Draft`. Greedy rows, and all rows when drawing is off,
get FIXED nodes: every run node offers its `top_k` likeliest children, and the best of the pool are kept. The other
rows get hybrid nodes (`hybrid`), whose shape is never chosen by a drawn token (law 4).
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from slipstream.drafters.frontier import Feed, Frontier, Level
from slipstream.drafters.hybrid import Hybrid
from slipstream.drafters.ranks import Ranked, rank
from slipstream.drafters.trees import Pool, best_tree, merge
from slipstream.types import Draft, RequestError, Rngs, Sequence


@dataclass(frozen=True, kw_only=True)
class GrowthOptions:
    """At most `depth` levels, `top_k` nodes run in each and `top_k` children of each; `drawn`: hybrid nodes at
    temperature above 0. How many nodes are kept is the budget's to say."""

    depth: int = 6
    top_k: int = 10
    drawn: bool = True

    def __post_init__(self) -> None:
        for name, value in (("depth", self.depth), ("top_k", self.top_k)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise RequestError(f"{name}={value!r} must be a whole number of at least 1")


class Growth:
    """Grows trees from `feed`; `logits` maps its states [n, H] to the target's real ids [n, V].

    No row runs more than `room` nodes. `broken` counts the rows of the last call that were cut short because their
    logits were not finite.
    """

    def __init__(
        self,
        feed: Feed,
        logits: Callable[[Tensor], Tensor],
        options: GrowthOptions | None = None,
        *,
        room: int,
        device: torch.device | str = "cpu",
    ) -> None:
        self.options = options or GrowthOptions()
        self.room, self.device, self.broken = room, torch.device(device), 0
        self._feed, self._logits = feed, logits

    def grow(self, rows: list[Sequence], limits: Seq[int], rngs: Rngs) -> Draft:
        """Return a tree of at most `limits[b]` nodes for each row; only rows with a limit above 0 are fed."""
        live = [b for b, n in enumerate(limits) if n > 0]
        drawn = [b for b in live if self.options.drawn and not rows[b].params.greedy]
        fixed = [b for b in live if b not in drawn]
        self.broken = 0
        parts = []
        if fixed:
            parts.append((fixed, self._fixed([rows[b] for b in fixed], [limits[b] for b in fixed], fixed)))
        if drawn:
            parts.append((drawn, self._hybrid(rows, limits, drawn, rngs)))
        return merge(rows, parts, self.device)

    def _fixed(self, rows: list[Sequence], limits: list[int], which: list[int]) -> Draft:
        frontier = Frontier(self._feed, self._logits, which)
        grown = Grown(rows, limits, self.options.top_k)
        grown.start(frontier.roots())
        left = torch.full((len(rows),), self.room)  # each row's own: batch mates change no tree
        for depth in range(1, self.options.depth):
            level = grown.frontier(self.options.top_k).within(left)
            if not bool(level.ok.any()):
                break
            left -= level.ok.sum(1).cpu()
            grown.add(level, *frontier.step(level, depth))
        self.broken += len(grown.broken)
        return best_tree(rows, grown.pool, limits)

    def _hybrid(self, rows: list[Sequence], limits: Seq[int], which: list[int], rngs: Rngs) -> Draft:
        frontier = Frontier(self._feed, self._logits, which)
        tree = Hybrid(rows, which, limits, rngs, self.options.top_k)
        logits, left = frontier.roots(), torch.full((len(which),), self.room)
        for depth in range(1, self.options.depth + 1):
            levels_left = self.options.depth - depth
            tree.extend(logits, depth, levels_left + 1)
            level = tree.frontier(self.options.top_k, levels_left).within(left)
            if not levels_left or not bool(level.ok.any()):
                break
            left -= level.ok.sum(1).cpu()
            logits, where = frontier.step(level, depth)
            tree.reach(level, where)
        self.broken += len(tree.broken)
        return tree.draft()


class Grown:
    """The pool of a batch of rows while it grows, and its last level."""

    def __init__(self, rows: list[Sequence], limits: list[int], top_k: int) -> None:
        self.rows, self.top_k = rows, top_k
        self.broken: set[int] = set()
        self._limits = torch.tensor(limits)[:, None]

    def start(self, logits: Tensor) -> None:
        """Fill the pool with the children of the roots: logits [B, V]."""
        ranked = rank(self.rows, logits, self.top_k)
        b = torch.arange(len(self.rows), device=logits.device)
        self._note(ranked, b)
        self.pool = Pool(ranked.ids, torch.full_like(ranked.ids, -1), ranked.scores)
        at = torch.arange(ranked.ids.shape[1], device=logits.device).expand_as(ranked.ids)
        self._level = Level(ranked.ids, ranked.scores, at, b[:, None].expand_as(at), ~ranked.ended)

    def frontier(self, width: int) -> Level:
        """Return the nodes to run next: the best of the last level that can have a descendant among the kept.

        Those behind the limit in the pool as it is cannot, nor can the last within it: children come after parents.
        """
        order = self.pool.scores.sort(dim=1, descending=True, stable=True).indices
        steps = torch.arange(order.shape[1], device=order.device)
        place = torch.empty_like(order).scatter_(1, order, steps.expand_as(order))
        level = self._level
        fits = place.gather(1, level.at) < self._limits.to(order.device) - 1
        level = replace(level, ok=level.ok & fits & (level.scores > -torch.inf)).best(width)
        used = int(level.ok.sum(1).max()) if level.ok.numel() else 0
        return level.best(used)

    def add(self, level: Level, logits: Tensor, where: Tensor) -> None:
        """Pool the children of the nodes run: logits [n, V], `where` [B, F] their rows, -1 for padding."""
        b, f = level.ok.nonzero(as_tuple=True)
        ranked = rank([self.rows[i] for i in b.tolist()], logits, self.top_k)
        self._note(ranked, b)
        shape = (*level.ok.shape, ranked.ids.shape[1])
        tokens = ranked.ids.new_zeros(shape)
        scores = ranked.scores.new_full(shape, -torch.inf)
        ok = torch.zeros(shape, dtype=torch.bool, device=tokens.device)
        tokens[b, f], ok[b, f] = ranked.ids, ~ranked.ended
        scores[b, f] = level.scores[b, f][:, None] + ranked.scores
        parents, home = (part[:, :, None].expand(shape).flatten(1) for part in (level.at, where))
        size = self.pool.tokens.shape[1]
        at = torch.arange(size, size + parents.shape[1], device=parents.device).expand_as(parents)
        self._level = Level(tokens.flatten(1), scores.flatten(1), at, home, ok.flatten(1))
        news = Pool(self._level.tokens, parents, self._level.scores)
        self.pool = Pool(*(torch.cat([getattr(pool, n) for pool in (self.pool, news)], 1) for n in vars(news)))

    def _note(self, ranked: Ranked, b: Tensor) -> None:
        self.broken |= set(b[ranked.broken].tolist())
