"""Trees of hybrid nodes (2502.18779): a node's children are one token drawn from q and some of the likeliest.

The drawn child comes first, from q' = q without the likeliest ones, renormalised; q' is the row that is recorded. What
each level may hold, which nodes get children and how many are fixed is settled by the scores of paths before any token
of the level is drawn, and what is drawn stays (law 4). Scores of finished levels may be looked at: they precede.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import replace

import torch
from torch import Tensor

from slipstream.drafters.frontier import Level
from slipstream.drafters.ranks import end_ids, highest
from slipstream.sampling.laws import drafting_law, needs_history
from slipstream.types import Draft, Draw, Rngs, Sequence


class Hybrid:
    """The trees of the rows `which` of a batch while they grow. `rows`, `limits` and `rngs` are the whole batch's."""

    def __init__(self, rows: list[Sequence], which: list[int], limits: Seq[int], rngs: Rngs, top_k: int) -> None:
        self.rows, self._which, self._rngs = [rows[b] for b in which], which, rngs
        self.top_k = top_k
        self.broken: set[int] = set()
        self._ends = end_ids(self.rows)  # [B, E]
        self._limits = torch.tensor([limits[b] for b in which])
        shape = (len(which), 1 + max(limits[b] for b in which))
        self.tokens = torch.zeros(shape, dtype=torch.int64)
        self.tokens[:, 0] = torch.tensor([row.tokens[-1] for row in self.rows])
        self.parents = torch.arange(-1, shape[1] - 1).repeat(shape[0], 1)
        self.draw = torch.zeros_like(self.tokens)
        self.length = torch.ones(shape[0], dtype=torch.int64)
        self.q: Tensor | None = None  # [B, N, V]
        one = torch.zeros(shape[0], 1, dtype=torch.int64)
        rows_of = torch.arange(shape[0])[:, None]
        self._parents = Level(self.tokens[:, :1], one.double(), one, rows_of, torch.ones_like(one, dtype=torch.bool))
        self._level = self._parents

    def extend(self, logits: Tensor, depth: int, levels_left: int) -> None:
        """Give the nodes of the last level run their children: logits [n, V] of the nodes that are ok, in order."""
        level = self._parents
        b, f = level.ok.nonzero(as_tuple=True)
        fine = logits.amax(-1).isfinite().cpu()
        self.broken |= set(b[~fine].tolist())
        law, bare = drafting_law([self.rows[i] for i in b.tolist()], self._prefixes(level), logits)  # [n, V]
        if bare is not None:
            fine = fine & ~bare.cpu()
        scores, ids = self._fixed(law)  # [n, K - 1]
        table = level.scores.new_full((*level.ok.shape, 1 + ids.shape[1]), -torch.inf)
        own = level.scores[b, f].masked_fill(~fine, -torch.inf)[:, None]
        table[b, f] = torch.cat([own, own + scores], 1)
        keep = self._keep(table, levels_left)  # [B, F, K]
        some = keep[b, f, 0].nonzero()[:, 0]  # these draw
        b, f, drawing = b[some], f[some], some.to(law.device)
        rest, own = _without(law[drawing], ids[some], keep[b, f, 1:])
        keep[b, f, 0] = own  # nothing is left to draw when the fixed ones are all there is
        tokens = torch.zeros(table.shape, dtype=torch.int64)
        tokens[level.ok, 1:] = ids
        tokens[b, f, 0] = self._drawn(rest, (b, f), own, depth)
        reached = law[drawing, tokens[b, f, 0].to(law.device)]
        table[b, f, 0] += reached.double().log().clamp(max=0.0).cpu()
        self._append(tokens, keep, table)

    def frontier(self, width: int, levels_left: int) -> Level:
        """Return the nodes of the last level that should be run: the best, and no more than the next level may hold."""
        level = self._level
        ended = (level.tokens[:, :, None] == self._ends[:, None, :]).any(-1)
        level = replace(level, ok=level.ok & ~ended).best(width)
        level = replace(level, ok=level.ok & (torch.arange(level.ok.shape[1]) < self._share(levels_left)[:, None]))
        used = int(level.ok.sum(1).max()) if level.ok.numel() else 0
        return level.best(used)

    def reach(self, level: Level, where: Tensor) -> None:
        """Hear which nodes were run, and where their states are."""
        self._parents = Level(level.tokens, level.scores, level.at, where, level.ok)

    def draft(self) -> Draft:
        """Return what was drafted."""
        n = int(self.length.max())
        parents = self.parents[:, :n]
        chain = bool((parents == torch.arange(-1, n - 1)).all())
        q = None if self.q is None else self.q[:, :n]
        return Draft(self.tokens[:, :n], parents, self.length, self.draw[:, :n], q, chain)

    def _share(self, levels_left: int) -> Tensor:
        """Return how many nodes the next level may hold [B]: of what is left, less the deeper the level is, since width
        is worth most near the root."""
        left = self._limits - self.length + 1
        return torch.minimum((2 * left + levels_left) // (levels_left + 1), left)  # rounded up

    def _prefixes(self, level: Level) -> list[list[int]]:
        """Return the whole prefix of each node run, for rows whose law depends on it; else nothing."""
        b, f = level.ok.nonzero(as_tuple=True)
        nodes = zip(b.tolist(), level.at[b, f].tolist(), strict=True)
        return [self._path(i, node) if needs_history(self.rows[i].params) else [] for i, node in nodes]

    def _path(self, b: int, node: int) -> list[int]:
        path = []
        while node > 0:
            path.append(int(self.tokens[b, node]))
            node = int(self.parents[b, node])
        return [*self.rows[b].tokens, *reversed(path)]

    def _fixed(self, law: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probability and id of the children that may be fixed [n, K - 1]."""
        if self.top_k == 1:
            return torch.zeros(len(law), 0, dtype=torch.float64), torch.zeros(len(law), 0, dtype=torch.int64)
        values, ids = highest(law, self.top_k - 1)
        return values.double().log().clamp(max=0.0).cpu(), ids.cpu()

    def _keep(self, table: Tensor, levels_left: int) -> Tensor:
        """Choose a level's children by their scores before drawing [B, F, K]; slot 0 is drawn and has its parent's."""
        scores, order = table.flatten(1).sort(dim=1, descending=True, stable=True)
        share = self._share(levels_left)[:, None]
        allowed = (torch.arange(scores.shape[1]) < share) & (scores > -torch.inf)
        return torch.zeros_like(allowed).scatter_(1, order, allowed).view(table.shape)

    def _drawn(self, law: Tensor, at: tuple[Tensor, Tensor], drawing: Tensor, depth: int) -> Tensor:
        """Draw a child from law [n, V] for each node that is `drawing`, and record the rows -> [n]."""
        b, f = at
        if self.q is None:
            self.q = torch.zeros((*self.tokens.shape, law.shape[1]), dtype=law.dtype, device=law.device)
        self.q[b, self._parents.at[b, f]] = law
        tokens = torch.zeros(len(b), dtype=torch.int64)
        mine = drawing.nonzero()[:, 0]
        owners = [self._which[i] for i in b[mine].tolist()]
        w = law if len(mine) == len(law) else law[mine.to(law.device)]  # law 3: the recorded rows
        tokens[mine] = self._rngs.draft_nodes(w, depth, owners).cpu()
        return tokens

    def _append(self, tokens: Tensor, keep: Tensor, scores: Tensor) -> None:
        """Add the children that are kept; tokens, keep, scores [B, F, K]."""
        above = self._parents
        shape = keep.shape
        flat = keep.flatten(1)
        place = self.length[:, None] + flat.cumsum(1) - 1
        b, m = flat.nonzero(as_tuple=True)
        to = place[b, m]
        self.tokens[b, to] = tokens.flatten(1)[b, m]
        self.parents[b, to] = above.at[:, :, None].expand(shape).flatten(1)[b, m]
        self.draw[b, to] = torch.where(m % shape[2] == 0, int(Draw.SAMPLED), int(Draw.FIXED))
        self.length = self.length + flat.sum(1)
        home = above.home[:, :, None].expand(shape).flatten(1)
        self._level = Level(tokens.flatten(1), scores.flatten(1), place, home, flat)


def _without(law: Tensor, ids: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
    """Take the fixed children that are kept [n, K - 1] out of law [n, V], in place; and say where anything is left."""
    ids, kept = ids.to(law.device), kept.to(law.device)
    law.scatter_(1, ids, law.gather(1, ids).masked_fill(kept, 0.0))
    mass = law.sum(1, keepdim=True)
    return law.div_(torch.where(mass > 0, mass, 1.0)), mass[:, 0].cpu() > 0
