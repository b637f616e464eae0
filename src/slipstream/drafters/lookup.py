"""Prompt lookup (Saxena 2023): find where the last few tokens occurred before, and copy what followed.

In: prompt and accepted tokens, through `observe`. Out: a chain of FIXED nodes. Each row has its own index, one hash per
n-gram length and position, so that a token costs O(max_ngram) to learn and a draft O(max_ngram + budget) to find,
however long the text is. Nothing is shared between rows.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from slipstream.drafters.chains import chain_draft
from slipstream.types import Draft, Needs, RequestError, Rngs, Sequence

_PRIME = (1 << 61) - 1
_BASE = 0x1B873593CC9E2D51 % _PRIME
_LONGEST = 64
_CLASSES = (1, 2, 3, 5)  # the least agreement of each class


@dataclass(frozen=True, kw_only=True)
class LookupOptions:
    """How many of the last tokens must agree, at least, and how many are compared, at most.

    A match of n < max_ngram tokens is trusted for `reach * n - 1` tokens, one of max_ngram (or any, with reach 0) for
    the whole budget: short matches are often chance, and wrong guesses cost the target time.
    """

    min_ngram: int = 1
    max_ngram: int = 8
    reach: int = 2

    def __post_init__(self) -> None:
        if isinstance(self.reach, bool) or not isinstance(self.reach, int) or self.reach < 0:
            raise RequestError(f"reach={self.reach!r} must be a whole number, 0 (no limit) or more")
        for name in ("min_ngram", "max_ngram"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _LONGEST:
                raise RequestError(f"{name}={value!r} must be a whole number, 1 to {_LONGEST}")
        if self.min_ngram > self.max_ngram:
            raise RequestError(f"min_ngram={self.min_ngram} must not be larger than max_ngram={self.max_ngram}")


class NgramIndex:
    """Where each n-gram of one growing text ended last. Keeps an entry, about 0.1 kB, per token and length."""

    def __init__(self, options: LookupOptions) -> None:
        self.options = options
        self.text: list[int] = []
        self.last: dict[int, int] = {}  # hash of an n-gram -> index of its last token, most recent occurrence
        self._seen: set[int] = set()  # the ids of the text
        self._indexed = 0  # tokens of the text that are in `last`
        self._hashes = [1]  # [n]: hash of the last n tokens, n < max_ngram; starting at 1 keeps lengths apart

    def extend(self, tokens: list[int]) -> None:
        """Append tokens to the text. O(max_ngram) each: single ones, which come in rounds, once an id is looked up that
        has occurred; where nothing repeats a round costs next to nothing."""
        self.text.extend(tokens)
        self._seen.update(tokens)
        if len(tokens) > 1:
            self._catch_up()

    def follow(self, root: int, budget: int) -> list[int]:
        """Return what followed the most recent, longest earlier occurrence of the text's end with `root` after it.

        The copy stops where the text does, unless its end is already periodic: then the period goes on.
        """
        return self.look(root, budget)[0]

    def look(self, root: int, budget: int) -> tuple[list[int], int]:
        """Return what `follow` returns, and in classes how many tokens agree where it copies from: 1, 2, 3-4, 5 or
        more, all -> 1..5, nowhere -> 0."""
        found = self._find([root])
        if found is None:
            return [], 0
        end, n = found
        sure = 5 if n == self.options.max_ngram else bisect_right(_CLASSES, n)
        return self._copy(root, end, self._trusted(n, budget)), sure

    def _copy(self, root: int, end: int, budget: int) -> list[int]:
        """Return what follows place `end`, at most `budget` ids."""
        text, period = self.text, len(self.text) - end
        copy = text[end + 1 : end + 1 + budget]
        if len(copy) == budget:
            return copy
        copy.append(root)
        begin = end + 1 - period  # of the period before the last one
        if begin >= 0 and text[begin:end] == text[end + 1 :]:
            copy *= -(-budget // period)
        return copy[:budget]

    def ahead(self, tail: list[int], budget: int) -> list[int]:
        """Return what followed the most recent, longest earlier occurrence of the text's end with `tail` after it.

        Where that reaches the end it goes on with itself: a period goes on.
        """
        found = self._find(tail)
        if found is None:
            return []
        begin, budget = found[0] + 1, self._trusted(found[1], budget)
        copy = [*self.text[begin : begin + budget], *tail][:budget]
        period = len(self.text) + len(tail) - begin
        while len(copy) < budget:
            copy.append(copy[-period])
        return copy

    def _trusted(self, agreeing: int, budget: int) -> int:
        """How much of a budget is copied where so many tokens agree."""
        free = not self.options.reach or agreeing == self.options.max_ngram
        return budget if free else min(budget, self.options.reach * agreeing - 1)

    def _catch_up(self) -> None:
        """Bring `last` up to the end of the text."""
        low, high = self.options.min_ngram, self.options.max_ngram
        for end, token in enumerate(self.text[self._indexed :], self._indexed):
            grown = _grown(self._hashes, token)
            for key in grown[low - 1 :]:
                self.last[key] = end
            self._hashes = [1, *grown][:high]
        self._indexed = len(self.text)

    def _find(self, tail: list[int]) -> tuple[int, int] | None:
        """Where the longest earlier occurrence of the text's end with `tail` after it ends, and its length."""
        if tail[-1] not in self._seen:
            return None
        self._catch_up()
        low, hashes, ends = self.options.min_ngram, self._hashes, []
        for token in tail[:-1]:
            hashes = [1, *_grown(hashes, token)][: self.options.max_ngram]
        for h in hashes[low - 1 :]:  # what has not occurred has not occurred with more before it either
            end = self.last.get((h * _BASE + tail[-1]) % _PRIME)
            if end is None:
                break
            ends.append(end)
        for n in range(low + len(ends) - 1, low - 1, -1):
            if self._agrees(ends[n - low], n, tail):
                return ends[n - low], n
        return None

    def _agrees(self, end: int, n: int, tail: list[int]) -> bool:
        """Rule out that two different n-grams share a hash."""
        text, own = self.text, max(0, n - len(tail))
        return text[end - n + 1 : end + 1] == text[len(text) - own :] + tail[-n:]


class Lookup:
    """Draft by copying from a row's own prompt and output, through an end-of-text or stop id, not to an unknown id."""

    name = "lookup"
    needs = Needs()

    def __init__(
        self, options: LookupOptions | None = None, *, vocab: int | None = None, device: torch.device | str = "cpu"
    ) -> None:
        self.options = options or LookupOptions()
        self.vocab = vocab
        self.device = torch.device(device)
        self._indexes: dict[int, NgramIndex] = {}

    def propose(self, rows: list[Sequence], budget: list[int], rngs: Rngs) -> Draft:
        """Copy at most `budget[b]` tokens for each row; none where nothing matches."""
        return chain_draft(rows, [self.guess(row, n) for row, n in zip(rows, budget, strict=True)], device=self.device)

    def guess(self, row: Sequence, budget: int) -> list[int]:
        """Return the ids to draft for one row."""
        return self.look(row, budget)[0]

    def look(self, row: Sequence, budget: int) -> tuple[list[int], int]:
        """Return what `guess` returns, and how sure it is: 1 (one token agrees) to 5 (as many as are compared)."""
        if budget <= 0:
            return [], 0
        copy, sure = self._index(row).look(row.tokens[-1], budget)
        copy = _cut(copy, row, self.vocab)
        return copy, sure if copy else 0

    def ahead(self, row: Sequence, drafted: list[int], budget: int) -> list[int]:
        """Return what followed where the row's text and `drafted` after it occurred before, at most `budget` ids."""
        copy = self._index(row).ahead([row.tokens[-1], *drafted], budget) if budget > 0 else []
        return _cut(copy, row, self.vocab)

    def observe(self, rows: list[Sequence], tokens: list[list[int]], taps: list[Mapping[int, Tensor]]) -> None:
        """Index the tokens of each row."""
        for row, new in zip(rows, tokens, strict=True):
            index = self._indexes.get(row.id)
            if index is None:
                index = self._indexes[row.id] = NgramIndex(self.options)
            index.extend(new)

    def forget(self, row: Sequence) -> None:
        """Free the row's index."""
        self._indexes.pop(row.id, None)

    def _index(self, row: Sequence) -> NgramIndex:
        """The row's index, brought up to date with what was never observed (a restored row, say)."""
        index, known = self._indexes.get(row.id), len(row.tokens) - 1
        tail = self.options.max_ngram
        seen = len(index.text) if index else 0
        if index is None or seen > known or index.text[-tail:] != row.tokens[max(0, seen - tail) : seen]:
            index = self._indexes[row.id] = NgramIndex(self.options)
            seen = 0
        if seen < known:
            index.extend(row.tokens[seen:known])
        return index


def _grown(hashes: list[int], token: int) -> list[int]:
    """Hashes of the last 1, 2, .. tokens once `token` is appended; `hashes` are those of the last 0, 1, .. before."""
    return [(h * _BASE + token) % _PRIME for h in hashes]


def _cut(copy: list[int], row: Sequence, vocab: int | None) -> list[int]:
    if not copy:
        return copy
    ends = (*row.eos_ids, *row.params.stop_token_ids)
    for i, token in enumerate(copy):
        if token < 0 or (vocab is not None and token >= vocab):
            return copy[:i]
        if token in ends:
            return copy[: i + 1]
    return copy
