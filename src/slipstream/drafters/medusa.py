"""Draft with Medusa heads (2401.10774): as many marginals as heads from one state, put together as a tree.

In: the target's last state of each row. Out: the likeliest paths through the heads' laws, or a static tree of
ranks (`choices`), all FIXED and verified losslessly (no typical acceptance); or a chain. Row t's state predicts from
t + 2 on, which is the token after the root. Loads nothing, verifies nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from slipstream.drafters.drawing import Drawing
from slipstream.drafters.marginals import broken, marginal_tree
from slipstream.drafters.net_drafters import NetDrafter
from slipstream.drafters.ranks import rank
from slipstream.drafters.trees import Pool, Seconds, best_tree, merge
from slipstream.nets.medusa import MedusaNet
from slipstream.types import Draft, RequestError, Rngs, Sequence

Choices = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, kw_only=True)
class MedusaOptions:
    """`shape`: a tree or a chain. `choices`: the tree's nodes as paths of ranks, (0, 2) being the third likeliest token
    of the second head below the likeliest of the first; also as text, "0 1 0,0 0,2". Empty: the likeliest paths."""

    shape: Literal["tree", "chain"] = "tree"
    choices: Choices | str = ()

    def __post_init__(self) -> None:
        if self.shape not in ("tree", "chain"):
            raise RequestError(f"shape={self.shape!r} must be 'tree' or 'chain'")
        object.__setattr__(self, "choices", _paths(self.choices))
        if self.choices and self.shape == "chain":
            raise RequestError("choices name the nodes of a tree: leave them out, or use shape='tree'")


@dataclass
class _Held:
    """What is known of a row: tokens heard of, the state at the last (None: its history has a gap)."""

    heard: int = 0
    state: Tensor | None = None
    lost: bool = False


class Medusa(NetDrafter):
    """Drafts with Medusa heads; see `NetDrafter`.

    With `seconds`, the measured time of a target pass by its number of tokens, trees have the size that pays
    (CaDDTree).
    """

    name = "medusa"
    net: MedusaNet

    def __init__(
        self,
        net: MedusaNet,
        *,
        vocab: int,
        max_rows: int,
        device: torch.device | str = "cpu",
        options: MedusaOptions | None = None,
        seconds: Seconds | None = None,
    ) -> None:
        self.options = options or MedusaOptions()
        super().__init__(net, vocab=vocab, device=device, tree=self.options.shape == "tree")
        self.seconds = seconds
        self._static = _Static(self.options.choices, net.count) if self.options.choices else None
        self._held: dict[int, _Held] = {}

    def propose(self, rows: list[Sequence], budget: list[int], rngs: Rngs) -> Draft:
        """Draft at most `budget[b]` nodes for each row, no deeper than there are heads."""
        limits = [n if self._known(row) else 0 for row, n in zip(rows, budget, strict=True)]
        if self.options.shape == "chain":
            return self._chain(rows, [min(n, self.net.count) for n in limits], rngs)
        live = [b for b, n in enumerate(limits) if n > 0]
        if not live:
            return merge(rows, [], self.device)
        some, sizes = [rows[b] for b in live], [limits[b] for b in live]
        logits = self._logits(some, max(sizes))
        self._dropped.add(len(broken(logits, sizes)))
        if self._static is None:
            draft = marginal_tree(some, logits, sizes, seconds=self.seconds)
        else:
            draft = best_tree(some, self._static.pool(some, logits), sizes, self.seconds)
        return merge(rows, [(live, draft)], self.device)

    def observe(self, rows: list[Sequence], tokens: list[list[int]], taps: list[Mapping[int, Tensor]]) -> None:
        """Keep the state of the last token of each row."""
        for row, new, felt in zip(rows, tokens, taps, strict=True):
            if not new:
                continue
            held = self._held.setdefault(row.id, _Held())
            held.lost |= row.tokens[held.heard : held.heard + len(new)] != new
            held.heard += len(new)
            # copied: a view would keep the whole prompt's states alive
            held.state = None if held.lost else self.net.features({k: x[-1:] for k, x in felt.items()})[0].clone()

    def forget(self, row: Sequence) -> None:
        """Drop the row's state."""
        self._held.pop(row.id, None)

    def _known(self, row: Sequence) -> bool:
        held = self._held.get(row.id)
        return held is not None and held.state is not None and held.heard == len(row.tokens) - 1

    def _logits(self, rows: list[Sequence], depth: int) -> Tensor:
        """Logits of the heads up to `depth` over the target's ids [B, S, V]."""
        states = [state for row in rows if (state := self._held[row.id].state) is not None]
        logits = self.net.logits(torch.stack(states), min(depth, self.net.count))
        return self.reduced.spread(logits.flatten(0, 1)).unflatten(0, logits.shape[:2])

    def _chain(self, rows: list[Sequence], limits: list[int], rngs: Rngs) -> Draft:
        work = Drawing(rows, limits, rngs, vocab=self.vocab, device=self.device)
        if work.live:
            logits = self._logits([rows[b] for b in work.live], max(limits))
            at = list(range(len(work.live)))  # where each row still drafting is in `logits`
            for depth in range(logits.shape[1]):
                going = work.draw(logits[at, depth], depth + 1)
                self._dropped.add(len(work.broken))
                at = [at[i] for i in going]
                if not at:
                    break
        return work.draft()


class _Static:
    """A tree of ranks: node c is the `ranks[c]`-th likeliest token of head `heads[c]`, below node `parents[c]`."""

    def __init__(self, choices: Choices | str, heads: int) -> None:
        assert not isinstance(choices, str)
        paths = sorted(choices, key=lambda path: (len(path), path))
        if len(paths[-1]) > heads:
            raise RequestError(f"choices go {len(paths[-1])} deep, the drafter has {heads} heads")
        place = {path: i for i, path in enumerate(paths)}
        self.width = 1 + max(max(path) for path in paths)
        self.ranks = torch.tensor([path[-1] for path in paths])
        self.heads = torch.tensor([len(path) - 1 for path in paths])
        self.parents = torch.tensor([place.get(path[:-1], -1) for path in paths])

    def pool(self, rows: Seq[Sequence], logits: Tensor) -> Pool:
        """Fill the tree in from logits [B, S, V]; nodes of heads that were not asked are left out."""
        B, S, V = logits.shape
        ranked = rank([row for row in rows for _ in range(S)], logits.flatten(0, 1), min(self.width, V))
        k = ranked.ids.shape[1]
        there = ((self.heads < S) & (self.ranks < k)).to(logits.device)
        heads, ranks, parents = (x.to(logits.device) for x in (self.heads, self.ranks, self.parents))
        at = heads.clamp(max=S - 1), ranks.clamp(max=k - 1)
        ids, own, ended = (x.view(B, S, k)[:, *at] for x in (ranked.ids, ranked.scores, ranked.ended))
        total = own.masked_fill(~there, -torch.inf)
        for head in range(1, int(self.heads.max()) + 1):
            here = (heads == head).nonzero()[:, 0]
            above = parents[here]
            total[:, here] += total[:, above].masked_fill(ended[:, above], -torch.inf)
        return Pool(ids, parents.expand(B, -1), total)


def _paths(choices: Choices | str) -> Choices:
    """Read choices; each needs all its prefixes, or its node would hang in the air."""
    wrong = "a path of ranks is whole numbers from 0, as in '0 1 0,0 0,2'"
    try:
        if isinstance(choices, str):
            choices = tuple(tuple(int(rank_) for rank_ in path.split(",")) for path in choices.split())
        found = tuple(tuple(int(rank_) for rank_ in path) for path in choices)
    except (TypeError, ValueError) as error:
        raise RequestError(f"choices={choices!r} cannot be read: {wrong}") from error
    for path in found:
        if not path or min(path) < 0:
            raise RequestError(f"choices name {path!r}: {wrong}")
        if path[:-1] and path[:-1] not in found:
            raise RequestError(f"choices name {path!r} but not {path[:-1]!r}, the node above it")
    if len(set(found)) < len(found):
        raise RequestError("choices name a path twice")
    return found
