"""All endings happen here, after the verdict (law 6): end of text, stop ids, stop strings, token and context limits.

Tokens of a block are taken one by one, as plain decoding would produce them, and whatever follows the end is dropped
before anybody else sees it. Meanings are vLLM's: the token that completes a stop string stays in the ids, its text is
cut; an end-of-text or stop id stays in the ids without text; neither counts before `min_tokens`.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Protocol

from slipstream.types import FinishReason, SamplingParams


class Detokenizer(Protocol):
    """Turn ids into text as they come."""

    def push(self, token: int) -> str:
        """Return the text that became complete with this token."""

    def flush(self) -> str:
        """Return what is still pending, an unfinished character included."""


@dataclass(frozen=True)
class Taken:
    """How many of the offered tokens were kept, the text released by them, and the end if there is one."""

    kept: int
    text: str
    reason: FinishReason | None = None
    stop_reason: int | str | None = None


class Ending:
    """Decide, token by token, where one sequence ends; release text that can no longer be withdrawn."""

    def __init__(
        self,
        params: SamplingParams,
        eos_ids: Seq[int] = (),
        *,
        room: int | None = None,
        detokenizer: Detokenizer | None = None,
    ) -> None:
        """Take the token limit as the smaller of `max_tokens` and `room` (what the context leaves)."""
        limits = [n for n in (params.max_tokens, room) if n is not None]
        self.limit = min(limits) if limits else None
        self._params = params
        self._stop_ids = frozenset(params.stop_token_ids)
        self._eos_ids = frozenset() if params.ignore_eos else frozenset(eos_ids)
        self._detokenizer = detokenizer
        self._push = detokenizer.push if detokenizer else _nothing
        self._count = 0
        self._held = ""  # text not released yet: it may be the beginning of a stop string

    def room(self) -> int | None:
        """Return how many tokens may still be emitted; None is without limit."""
        return None if self.limit is None else self.limit - self._count

    def close(self) -> str:
        """Release what is held back, for an end that the text did not ask for."""
        text, self._held = self._held + self._flush(), ""
        return text

    def take(self, ids: Seq[int]) -> Taken:
        """Take tokens until the sequence ends or they run out."""
        released: list[str] = []
        for kept, token in enumerate(ids, 1):
            end = self._take_one(token, released)
            if end is not None:
                return Taken(kept, "".join(released), *end)
        return Taken(len(ids), "".join(released))

    def _take_one(self, token: int, released: list[str]) -> tuple[FinishReason, int | str | None] | None:
        self._count += 1
        may_stop = self._count > self._params.min_tokens
        if may_stop and (token in self._eos_ids or token in self._stop_ids):
            piece = self._push(token) if self._params.include_stop_str_in_output else ""
            released.append(self._held + piece)
            self._held = ""
            released.append(self.close())
            return "stop", (token if token in self._stop_ids else None)
        piece = self._push(token)
        stop = self._find_stop(piece) if self._params.stop and may_stop and piece else None
        if stop is not None:
            start, end, text = stop
            whole = self._held + piece
            released.append(whole[:end] if self._params.include_stop_str_in_output else whole[:start])
            self._held = ""
            return "stop", text
        if self._params.stop:
            self._release(piece, released)
        else:
            released.append(piece)
        if self.limit is not None and self._count >= self.limit:
            released.append(self.close())
            return "length", None
        return None

    def _flush(self) -> str:
        return self._detokenizer.flush() if self._detokenizer else ""

    def _find_stop(self, piece: str) -> tuple[int, int, str] | None:
        """Return (start, end, stop string) of the match that ends first within the new text; the longest on a tie."""
        best: tuple[int, int, str] | None = None
        whole = self._held + piece
        for text in self._params.stop:
            start = whole.find(text, max(0, len(self._held) - len(text) + 1))
            if start < 0:
                continue
            found = (start, start + len(text), text)
            if best is None or (found[1], found[0]) < (best[1], best[0]):
                best = found
        return best

    def _release(self, piece: str, released: list[str]) -> None:
        text = self._held + piece
        keep = 0
        for stop in self._params.stop:
            for size in range(min(len(stop) - 1, len(text)), keep, -1):
                if text.endswith(stop[:size]):
                    keep = size
                    break
        self._held = text[len(text) - keep :] if keep else ""
        released.append(text[: len(text) - keep] if keep else text)


def _nothing(token: int) -> str:
    """Stand in for a detokenizer: no text."""
    return ""
