"""Fixed budget: the same number of drafted nodes in every round. Choosing by measured cost is another controller."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq

from slipstream.types import Draft, Laws, RequestError, Sequence, Verdict


class FixedBudget:
    """Ask for `nodes` drafted nodes per row and round. 0 turns speculation off.

    `hooks` are those by which drafters are told whom to ask (see `arms.Arm`): here nobody, whoever else they draft for.
    """

    def __init__(self, nodes: int, hooks: Seq[Callable[[None], None]] = ()) -> None:
        if isinstance(nodes, bool) or not isinstance(nodes, int) or nodes < 0:
            raise RequestError(f"draft_tokens is {nodes!r}; give a whole number of at least 0, or 'auto'")
        self.nodes, self._hooks = nodes, hooks

    def begin(self) -> None:
        """Have the drafters ask nobody."""
        for hook in self._hooks:
            hook(None)

    def budget(self, rows: list[Sequence]) -> list[int]:
        """Return the fixed number for each row."""
        return [self.nodes] * len(rows)

    def record(self, rows: list[Sequence], draft: Draft, verdict: Verdict, laws: Laws) -> None:
        """Learn nothing: the budget never changes."""
