"""Several drafters in one: each row is drafted for by the one whose turn it is.

In: drafters, and a route that says for a row which of them drafts in this round (-1: none). Out: their drafts, put
together. The route must go by what precedes the round: looking at a token that was drawn and turning to another
drafter for it would bias the output (law 4). All drafters hear all tokens, so that each may draft at any time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq

import torch
from torch import Tensor

from slipstream.drafters.trees import merge
from slipstream.types import Draft, Drafter, Needs, Rngs, Sequence

Route = Callable[[Sequence], int]


class Mixed:
    """Drafters by turns. Whose turn it is says the `route`, else always the first's."""

    def __init__(
        self, drafters: Seq[Drafter], route: Route | None = None, *, device: torch.device | str = "cpu"
    ) -> None:
        self.drafters = tuple(drafters)
        self.name = "+".join(drafter.name for drafter in drafters)
        taps = {tap for drafter in drafters for tap in drafter.needs.taps}
        self.needs = Needs(tuple(sorted(taps)), any(drafter.needs.tree for drafter in drafters))
        self.device = torch.device(device)
        self.route: Route = route or _first

    def lead(self, route: Route | None) -> None:
        """Ask `route` from now on; None: the first drafter drafts for all rows."""
        self.route = route or _first

    def propose(self, rows: list[Sequence], budget: list[int], rngs: Rngs) -> Draft:
        """Draft at most `budget[b]` nodes for each row, by the drafter whose turn it is."""
        turns = [self.route(row) if n > 0 else -1 for row, n in zip(rows, budget, strict=True)]
        parts = []
        for i, drafter in enumerate(self.drafters):
            which = [b for b, turn in enumerate(turns) if turn == i]
            if which:
                # all rows go along, the others with a budget of 0: streams go by the place in the batch
                mine = [n if turn == i else 0 for n, turn in zip(budget, turns, strict=True)]
                parts.append((which, _of(drafter.propose(rows, mine, rngs), which)))
        return merge(rows, parts, self.device)

    def observe(self, rows: list[Sequence], tokens: list[list[int]], taps: list[Mapping[int, Tensor]]) -> None:
        """Let every drafter hear what is committed."""
        for drafter in self.drafters:
            drafter.observe(rows, tokens, taps)

    def forget(self, row: Sequence) -> None:
        """Drop what every drafter knows of a row."""
        for drafter in self.drafters:
            drafter.forget(row)

    def by(self, row: Sequence) -> str:
        """Return the name of the drafter whose turn the round's draft of a row was."""
        turn = self.route(row)
        return self.drafters[turn].name if 0 <= turn < len(self.drafters) else self.name


def _first(_row: Sequence) -> int:
    return 0


def _of(draft: Draft, which: list[int]) -> Draft:
    """Return the draft of these rows only."""
    if len(which) == len(draft.length):
        return draft
    at = torch.tensor(which, device=draft.tokens.device)
    q = None if draft.q is None else draft.q[at.to(draft.q.device)]
    return Draft(draft.tokens[at], draft.parents[at], draft.length[at], draft.draw[at], q, draft.chain)
