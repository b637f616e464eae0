"""What a draft model's own cache holds for each row, kept in step with the committed text.

In: rows, drafted tokens and hints of what may follow. Out: the draft model's logits after them. What was fed stays in
the cache until the text, or the draft, turns out to go another way; what is missing is fed (after full acceptance: the
last drafted token, which was never fed, and the one after it). Tokens of the prompt but its last are read as a prompt,
all others as decoded, so that a row's bits do not depend on when it was fed.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from slipstream.drafters.slots import Slots
from slipstream.types import Sequence

_BATCHED = 8  # missing tokens that may be fed in one batch with the other rows'; longer gaps are prefilled


class DecoderLimits(Protocol):
    """What a decoder can be fed: ids below `vocab`, `max_len` tokens in a slot."""

    @property
    def vocab(self) -> int:
        """Number of token ids."""

    @property
    def max_len(self) -> int:
        """Most tokens in a slot."""


class DraftDecoder(Protocol):
    """The part of `nets.decoder.CachedDecoder` that drafting needs."""

    max_nodes: int

    @property
    def config(self) -> DecoderLimits:
        """Its limits."""

    def extend(self, slot: int, tokens: list[int], *, prompt: bool = True) -> Mapping[int, Tensor]:
        """Append tokens to a slot's cache, as part of a prompt or as decoded ones."""

    def nodes(self, slots: list[int], tokens: Tensor) -> tuple[Tensor, Mapping[int, Tensor]]:
        """Logits [B, N, V] after each of a chain of tokens [B, N]; commits nothing."""

    def keep(self, slots: list[int], paths: list[list[int]]) -> None:
        """Commit the first node of the last `nodes`, and those of the path."""

    def truncate(self, slot: int, length: int) -> None:
        """Drop all tokens from `length` on."""

    def length(self, slot: int) -> int:
        """Tokens in a slot's cache."""

    def release(self, slot: int) -> None:
        """Empty a slot."""


@dataclass
class _Held:
    """A row's slot: `certain` committed tokens, then the guesses that were fed."""

    slot: int
    certain: int = 0
    guesses: list[int] = field(default_factory=list)


class DraftCache:
    """The draft model's cache, one slot per row from its first draft until `forget`. It is fed ids below `ids`; None:
    those that the decoder gives logits."""

    def __init__(self, decoder: DraftDecoder, max_rows: int, ids: int | None = None) -> None:
        self.decoder = decoder
        self._ids = decoder.config.vocab if ids is None else ids
        self._batched = min(_BATCHED, decoder.max_nodes)
        self._held = Slots(max_rows, _Held, "draft model")

    def prefill(self, row: Sequence, tokens: list[int]) -> None:
        """Feed a prompt, or a long run of committed tokens, as it arrives: it is paid for while it is prefilled."""
        held = self._held.of(row)
        after = held.certain + len(tokens)
        follows = not held.guesses and row.tokens[held.certain : after] == tokens
        # a prompt may come in pieces of any size; without one of them those after it could not be fed
        long = len(tokens) > self._batched or after < row.prompt_len
        if long and follows and after <= self.decoder.config.max_len:
            if self.decoder.length(held.slot) > held.certain:
                self.decoder.truncate(held.slot, held.certain)
            self._extend(row, held, tokens)

    def unread(self, row: Sequence) -> int:
        """Return how many committed tokens a row's cache lacks, the root apart."""
        return max(0, len(row.tokens) - 1 - self._held.of(row).certain)

    def after(self, rows: Seq[Sequence], drafted: Seq[list[int]], hint: Seq[int] = ()) -> Tensor:
        """Feed what each row's cache lacks of its text and what was drafted, the last token at least.

        Returns the logits after that token [B, 1, V]; with a `hint`, tokens that may come next in the only row, those
        after each of them too, [B, 1 + len(hint), V].
        """
        missing = [self._rewind(row, guess) for row, guess in zip(rows, drafted, strict=True)]
        for row, tokens in zip(rows, missing, strict=True):
            held = self._held[row.id]
            read = len(tokens) - 1 if len(tokens) > self._batched else max(0, row.prompt_len - 1 - held.certain)
            self._extend(row, held, tokens[:read])
            del tokens[:read]
        logits = self._feed(rows, [[*tokens, *hint] for tokens in missing], 1 + len(hint))
        for row, guess in zip(rows, drafted, strict=True):
            held = self._held[row.id]
            held.certain, held.guesses = len(row.tokens), [*guess, *hint]
        return logits

    def distrust(self, row: Sequence) -> None:
        """Have the row's root and guesses fed again next time: they may have left numbers that are not finite."""
        held = self._held[row.id]
        held.certain = min(held.certain, len(row.tokens) - 1)
        held.guesses.clear()

    def forget(self, row: Sequence) -> None:
        """Empty the row's slot, for another to use."""
        held = self._held.drop(row)
        if held is not None:
            self.decoder.release(held.slot)

    def _rewind(self, row: Sequence, drafted: list[int]) -> list[int]:
        """Cut the row's cache back to what belongs to its text and the draft; return what it lacks of them."""
        held, decoder, size = self._held.of(row), self.decoder, len(row.tokens)
        keep = held.certain
        for guess, token in zip(held.guesses, row.tokens[held.certain :] + drafted, strict=False):
            if guess != token:
                break
            keep += 1
        keep = min(keep, size + len(drafted) - 1)  # the last one is fed again if its logits are needed again
        held.certain, held.guesses = min(keep, size), drafted[: max(0, keep - size)]
        if decoder.length(held.slot) > keep:
            decoder.truncate(held.slot, keep)
        return row.tokens[keep:] + drafted[max(0, keep - size) :]

    def _extend(self, row: Sequence, held: _Held, tokens: list[int]) -> None:
        """Commit tokens, each in its role."""
        left = max(0, row.prompt_len - 1 - held.certain)
        for part, prompt in ((tokens[:left], True), (tokens[left:], False)):
            if part:
                self.decoder.extend(held.slot, self._known(part), prompt=prompt)
                held.certain += len(part)

    def _feed(self, rows: Seq[Sequence], tokens: Seq[list[int]], wanted: int) -> Tensor:
        """Commit each row's tokens; return the logits after its last ones [B, wanted, V]."""
        slots = [self._held[row.id].slot for row in rows]
        lengths = [len(line) for line in tokens]
        width = max(lengths)
        # padding follows the real tokens, so no real token attends to it, and it is not kept
        padded = [self._known(line) + [0] * (width - len(line)) for line in tokens]
        logits, _ = self.decoder.nodes(slots, torch.tensor(padded))  # [B, N, V]
        self.decoder.keep(slots, [list(range(1, n)) for n in lengths])
        if min(lengths) == width:
            return logits[:, width - wanted :]
        last = torch.tensor(lengths, device=logits.device)[:, None] - torch.arange(wanted, 0, -1, device=logits.device)
        return logits[torch.arange(len(lengths), device=logits.device)[:, None], last]

    def _known(self, tokens: list[int]) -> list[int]:
        """Stand in id 0 for ids the draft model does not have: a worse guess, and q is still what was drawn from."""
        return [t if t < self._ids else 0 for t in tokens] if max(tokens) >= self._ids else tokens
