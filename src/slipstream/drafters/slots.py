"""Which of a cache's slots belongs to which row, from the first time the row is heard of until it is forgotten.

In: rows. Out: what a drafter notes of each, made for a free slot. The cache itself is the drafter's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from slipstream.types import Sequence, WorkError


class HasSlot(Protocol):
    """A note on a row."""

    slot: int


Note = TypeVar("Note", bound=HasSlot)


class Slots(dict[int, Note]):
    """Notes by row id, `count` at most, each with a slot of its own; `whose` is named when there are none left."""

    def __init__(self, count: int, make: Callable[[int], Note], whose: str) -> None:
        super().__init__()
        self.count, self.whose, self._make = count, whose, make
        self.free = list(range(count))[::-1]

    def of(self, row: Sequence) -> Note:
        """Return the row's note, a new one the first time."""
        note = self.get(row.id)
        if note is None:
            if not self.free:
                raise WorkError(
                    f"the {self.whose}'s cache has {self.count} rows, all in use; "
                    f"give it as many rows as the engine decodes at once"
                )
            note = self[row.id] = self._make(self.free.pop())
        return note

    def drop(self, row: Sequence) -> Note | None:
        """Free the row's slot for another; return its note, None where there was none."""
        note = self.pop(row.id, None)
        if note is not None:
            self.free.append(note.slot)
        return note
