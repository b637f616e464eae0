"""What is built, as records: an opened target, what a drafter is built for, and a built drafter.

No plug-in is known here, and torch is not imported: these are the types that `plugins`, `build` and `profiles` share.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slipstream.types import Drafter, RequestError, Target

if TYPE_CHECKING:
    import torch

    from slipstream.control.cost import CostTable
    from slipstream.control.profile import Profile
    from slipstream.engine import Engine
    from slipstream.text import Tokenizer


@dataclass
class Opened:
    """A loaded target with its tokenizer. `notes` are lines a person should see (on stderr).

    Several engines may be made on it, one decoding at a time: `busy` is the last one used, `lock` guards them all.
    """

    name: str
    folder: Path
    target: Target
    tokenizer: Tokenizer
    kind: str
    dtype: torch.dtype
    device: str
    quantize: str = "none"
    notes: list[str] = field(default_factory=list)
    lock: threading.RLock = field(default_factory=threading.RLock)
    busy: Engine | None = None
    measured: CostTable | None = None
    profile: Profile | None = None

    def cost(self) -> CostTable:
        """Return what a pass of the target costs by its nodes; measured once, when nothing is being decoded."""
        from slipstream.control.cost import measure

        with self.lock:
            if self.measured is None:
                self.need_idle()
                self.measured = measure(self.target)
            return self.measured

    @property
    def idle(self) -> bool:
        """True when nothing is being decoded: its cache is free to measure with."""
        return self.busy is None or self.busy.idle

    def need_idle(self) -> None:
        """Refuse to measure while a text is in the cache that measuring writes to."""
        if not self.idle:
            raise RequestError("the target is decoding: its cost can only be measured when it is idle")


@dataclass(frozen=True)
class Wanted:
    """What a drafter is built for: where it is, rows decoded at once, its options, and whether it may draft trees."""

    path: str = ""
    rows: int = 1
    options: Mapping[str, Any] = field(default_factory=dict)
    tree: bool = True
    notes: list[str] = field(default_factory=list)  # written by what is built: lines a person should see


@dataclass(frozen=True)
class Part:
    """A drafter that can be chosen by cost: the object, the most it drafts, its name among a target's costs, and where
    its weights are."""

    drafter: Drafter
    most: int
    cost: str
    folder: Path | None = None


@dataclass
class Guess:
    """A built drafter: the object, the most tokens it drafts per round, and lines a person should see.

    `parts` are the drafters to choose from, none for an object of the caller's; `fixed`: how much was asked for.
    """

    drafter: Drafter
    draft_tokens: int
    folder: Path | None = None
    notes: list[str] = field(default_factory=list)
    parts: list[Part] = field(default_factory=list)
    fixed: int | None = None
