"""A decoder without a network: its logits are any function of the tokens in a slot's cache.

It stands in for `nets.decoder.CachedDecoder` wherever a drafter feeds a model of its own, and keeps the tokens of each
slot, so that a wrong rewind shows as a wrong logit. Chains only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from slipstream.types import WorkError

PrefixLogits = Callable[[list[int]], Tensor]  # prefix -> [V]


def hashed_logits(vocab: int, *, seed: int = 0, memory: int = 3, dtype: torch.dtype = torch.float32) -> PrefixLogits:
    """Return logits that look random but depend on the last `memory` tokens alone."""
    table = 2 * torch.randn(997, vocab, generator=torch.Generator().manual_seed(seed), dtype=dtype)

    def logits(prefix: list[int]) -> Tensor:
        key = 0
        for token in prefix[-memory:]:
            key = key * 31 + token + 1
        return table[key % len(table)]

    return logits


@dataclass(frozen=True)
class ToyLimits:
    """Ids below `vocab`, `max_len` tokens in a slot."""

    vocab: int
    max_len: int


class ToyDecoder:
    """Caches token lists. `fed` counts tokens that went through it, padding apart; `passes` its forwards."""

    def __init__(self, logits: PrefixLogits, *, vocab: int, max_len: int = 4096) -> None:
        self.logits = logits
        self.config = ToyLimits(vocab, max_len)
        self.max_nodes = 64
        self.slots: dict[int, list[int]] = {}
        self.fed = 0
        self.passes = 0
        self._pending: dict[int, list[int]] = {}

    def extend(self, slot: int, tokens: list[int], *, prompt: bool = True) -> Mapping[int, Tensor]:
        """Append tokens to a slot; how they are read makes no difference here."""
        self._check(slot, tokens)
        self.slots.setdefault(slot, []).extend(tokens)
        self.fed += len(tokens)
        self.passes += 1
        return {}

    def nodes(self, slots: list[int], tokens: Tensor) -> tuple[Tensor, Mapping[int, Tensor]]:
        """Logits [B, N, V] after each node of a chain."""
        self._pending = dict(zip(slots, tokens.tolist(), strict=True))
        self.passes += 1
        rows = []
        for slot, line in self._pending.items():
            prefix = self.slots.get(slot, [])
            rows.append(torch.stack([self.logits(prefix + line[: i + 1]) for i in range(len(line))]))
        return torch.stack(rows), {}

    def keep(self, slots: list[int], paths: list[list[int]]) -> None:
        """Commit the root and the path of the last `nodes`."""
        for slot, path in zip(slots, paths, strict=True):
            kept = [self._pending[slot][i] for i in [0, *path]]
            self._check(slot, kept)
            self.slots.setdefault(slot, []).extend(kept)
            self.fed += len(kept)
        self._pending = {}

    def truncate(self, slot: int, length: int) -> None:
        """Drop all tokens from `length` on."""
        if not 0 <= length <= self.length(slot):
            raise WorkError(f"slot {slot} holds {self.length(slot)} tokens and cannot be cut to {length}")
        del self.slots[slot][length:]

    def length(self, slot: int) -> int:
        """Tokens in a slot."""
        return len(self.slots.get(slot, ()))

    def release(self, slot: int) -> None:
        """Empty a slot."""
        self.slots.pop(slot, None)

    def _check(self, slot: int, tokens: list[int]) -> None:
        if min(tokens) < 0 or max(tokens) >= self.config.vocab:
            raise WorkError(f"ids {min(tokens)} to {max(tokens)} do not all lie in a vocabulary of {self.config.vocab}")
        if self.length(slot) + len(tokens) > self.config.max_len:
            raise WorkError(
                f"slot {slot} is full: {self.length(slot)} + {len(tokens)} tokens, {self.config.max_len} fit"
            )
