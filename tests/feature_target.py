"""A target of known law that feels something: taps that are a pure function of the prefix, as a real target's are."""

from __future__ import annotations

import functools
import zlib
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from slipstream.testing import ToyTarget
from slipstream.types import Draft, Scores


def felt(prefix: Sequence[int], tap: int, width: int) -> Tensor:
    """A vector that looks random and depends on the last four tokens and the tap alone."""
    return _felt(tuple(prefix[-4:]), tap, width)


@functools.cache
def _felt(key: tuple[int, ...], tap: int, width: int) -> Tensor:
    seed = zlib.crc32(repr((key, tap)).encode())
    return torch.randn(width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class FeatureTarget(ToyTarget):
    """`ToyTarget` whose taps are `felt` along the text, or along the path to a node."""

    def __init__(self, *args, taps: tuple[int, ...] = (-1,), width: int = 16, **settings) -> None:
        super().__init__(*args, **settings)
        self.taps, self.width = taps, width

    def prefill(self, slot: int, tokens: list[int]) -> Mapping[int, Tensor]:
        """Append tokens to the slot's cache."""
        super().prefill(slot, tokens)
        cache = self.cache[slot]
        places = range(len(cache) - len(tokens), len(cache))
        return {k: torch.stack([felt(cache[: t + 1], k, self.width) for t in places]) for k in self.taps}

    def score(self, slots: list[int], draft: Draft) -> Scores:
        """Score every node, and feel along its path."""
        found = super().score(slots, draft)
        taps = {k: torch.zeros(*draft.tokens.shape, self.width, dtype=torch.float64) for k in self.taps}
        for b, slot in enumerate(slots):
            paths: list[list[int]] = []
            for i in range(int(draft.length[b])):
                before = self.cache[slot] if i == 0 else paths[int(draft.parents[b, i])]
                paths.append([*before, int(draft.tokens[b, i])])
                for k in self.taps:
                    taps[k][b, i] = felt(paths[-1], k, self.width)
        return Scores(found.logits, taps)
