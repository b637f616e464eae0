"""Draw rounds for people: one line each, readable without colour.

In: the engine's `RoundTrace`. Out: lines such as `#3 +[ cat] +[ sat] x[ a] .[ on] => [ the] correction (3 tokens)`.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, TextIO

from slipstream.cli.paint import Painter

if TYPE_CHECKING:
    from slipstream.engine import RoundTrace

LEGEND = "+[accepted] x[rejected] .[not reached] => [the target's own token] (tokens emitted by this round)"


class Tracer:
    """Print each round of an engine; give an instance to `Engine.trace`."""

    def __init__(self, tokenizer: Any, stream: TextIO | None = None, *, several: bool = False) -> None:
        """Name the sample in every line if several are decoded at once."""
        self._tokenizer = tokenizer
        self._stream = stream or sys.stderr
        self._paint = Painter(self._stream)
        self._several = several
        self._names: dict[int, int] = {}
        print(self._paint(LEGEND, "dim"), file=self._stream)

    def __call__(self, trace: RoundTrace) -> None:
        """Print one round of one row."""
        row = trace.sequence
        head = f"#{row.rounds}"
        if self._several:
            head = f"{self._names.setdefault(row.id, len(self._names) + 1)}{head}"
        parts = [self._paint(head, "dim"), *self._drafted(trace)]
        kept = trace.kept
        if kept > len(trace.path):
            parts.append(f"=> {self._paint(self._box(trace.next_token), 'bold')} {_kind(trace)}")
        count = f"({kept} token{'s' if kept != 1 else ''}{', ended here' if row.finish_reason else ''})"
        print(" ".join([*parts, self._paint(count, "dim")]), file=self._stream, flush=True)

    def _drafted(self, trace: RoundTrace) -> list[str]:
        kept = {0, *trace.path[: trace.kept]}
        parts = []
        for node in range(1, len(trace.tokens)):
            box = self._box(trace.tokens[node])
            if node in kept:
                parts.append(self._paint(f"+{box}", "green"))
            elif trace.parents[node] in kept and node not in trace.path:
                parts.append(self._paint(f"x{box}", "red"))
            else:
                parts.append(self._paint(f".{box}", "dim"))
        return parts

    def _box(self, token: int) -> str:
        text = self._tokenizer.decode([token], skip_special=False)
        shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
        return f"[{shown}]"


def _kind(trace: RoundTrace) -> str:
    if len(trace.tokens) == 1:
        return "plain"
    tested_all = len(trace.path) == len(trace.tokens) - 1
    return "bonus" if tested_all else "correction"
