"""The prompts that speed and equality are measured on, as chat messages.

`grounded` prompts carry their source text (edit, extract, quote, translate keys), so that much of the answer is a copy;
`free` prompts carry none. Both were written for this project and ship with it. No model, no timing here.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib import resources

from slipstream.config import choose
from slipstream.types import RequestError

KINDS = ("grounded", "free")


@dataclass(frozen=True)
class Prompt:
    """One prompt: a name to print, its kind, and chat messages."""

    id: str
    kind: str
    messages: list[dict[str, str]]


def load_prompts(kind: str = "all", count: int | None = None) -> list[Prompt]:
    """Return the shipped prompts of a kind ("all": grounded, then free), at most `count` of each kind."""
    choose("prompts", kind, ("all", *KINDS))
    if count is not None and count < 1:
        raise RequestError(f"count={count} must be at least 1")
    found = []
    for name in KINDS if kind == "all" else (kind,):
        lines = resources.files("slipstream.measure").joinpath("prompts", f"{name}.jsonl").read_text(encoding="utf-8")
        found += [Prompt(**json.loads(line)) for line in lines.splitlines()][:count]
    return found
