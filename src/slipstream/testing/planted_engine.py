"""Wrong engines, targets, drafters and random streams: planted errors outside the verification rules.

In and out: as the parts they pretend to be. Each is what a hasty optimisation would do; the audit must flag all of
them. Never used to decode.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from slipstream.engine import Engine
from slipstream.sampling import RequestRngs
from slipstream.sampling import laws as right_laws
from slipstream.sampling.streams import Stream
from slipstream.testing.toy_drafters import SampledToy
from slipstream.types import Caps, Draft, Laws, Rngs, Scores, Sequence, Target


def frozen_laws(rows: list[Sequence], logits: Tensor, draft: Draft, peaks: Tensor | None = None) -> Laws:
    """Shape every node as if its prefix were the root's: penalties do not see the drafted tokens."""
    parts = [right_laws(rows, logits[:, i : i + 1], replace(_roots(draft), q=None)).probs for i in range(draft.nodes)]
    if parts[0] is None:
        return right_laws(rows, logits, draft)
    return Laws(torch.cat([part for part in parts if part is not None], 1))


def _roots(draft: Draft) -> Draft:
    ones = torch.ones_like(draft.length)
    return Draft(draft.tokens[:, :1], draft.parents[:, :1], ones, draft.draw[:, :1])


class FrozenPenalty(Engine):
    """Computes penalties once per round."""

    _laws = staticmethod(frozen_laws)


class StaleSlot:
    """A target that keeps one refused node in the cache instead of the token that replaced it.

    The first refusal of each slot after `after` committed tokens leaves the drafted token where the next root belongs.
    """

    def __init__(self, target: Target, after: int = 4) -> None:
        self._target, self._after = target, after
        self.caps: Caps = target.caps
        self._stale: dict[int, int] = {}
        self._kept: dict[int, int] = {}
        self._draft: Draft | None = None

    def prefill(self, slot: int, tokens: list[int]) -> Mapping[int, Tensor]:
        """Append tokens to the slot's cache."""
        return self._target.prefill(slot, tokens)

    def score(self, slots: list[int], draft: Draft) -> Scores:
        """Score, with a stale token as the root of the rows that have one."""
        tokens = draft.tokens.clone()
        for b, slot in enumerate(slots):
            if slot in self._stale:
                tokens[b, 0] = self._stale.pop(slot)
        self._draft = draft
        return self._target.score(slots, replace(draft, tokens=tokens))

    def commit(self, slots: list[int], paths: list[list[int]]) -> None:
        """Keep the paths; remember a refused token in place of the next root."""
        assert self._draft is not None
        lengths = self._draft.length.tolist()
        for b, (slot, path) in enumerate(zip(slots, paths, strict=True)):
            self._kept[slot] = self._kept.get(slot, 0) + 1 + len(path)
            if self._kept[slot] > self._after and len(path) + 1 < lengths[b]:
                self._stale[slot] = int(self._draft.tokens[b, len(path) + 1])
        self._target.commit(slots, paths)

    def release(self, slot: int) -> None:
        """Empty a slot."""
        self._stale.pop(slot, None)
        self._kept.pop(slot, None)
        self._target.release(slot)


class OneSidedTopP(SampledToy):
    """Draws from the `keep` likeliest tokens, records the whole law."""

    keep = 2

    def grow(self, rows: list[Sequence], sprouts: list, budget: list[int], rngs: Rngs) -> None:
        """Draw from cut rows, then put the whole rows in their place."""
        whole = self.law

        def cut(prefix: tuple[int, ...]) -> list[float]:
            row = whole(prefix)
            kept = sorted(range(len(row)), key=lambda t: -row[t])[: self.keep]
            return [row[t] / sum(row[k] for k in kept) if t in kept else 0.0 for t in range(len(row))]

        self.law = cut
        try:
            super().grow(rows, sprouts, budget, rngs)
        finally:
            self.law = whole
        for row, sprout in zip(rows, sprouts, strict=True):
            sprout.q = {node: whole((*row.tokens, *sprout.path(node))) for node in sprout.q}


class SharedStream(RequestRngs):
    """Draws drafts and corrections from one stream, with the same counters."""

    def _key(self, stream: Stream, b: int) -> tuple[int, int]:
        return super()._key(Stream.DRAFT if stream is Stream.CORRECT else stream, b)


class SharedCoin(RequestRngs):
    """Flips accept coins with the numbers that drew the drafts."""

    def _key(self, stream: Stream, b: int) -> tuple[int, int]:
        return super()._key(Stream.DRAFT if stream is Stream.ACCEPT else stream, b)


class RepeatedRounds(RequestRngs):
    """Forgets the round number: every round draws the same numbers."""

    def __init__(self, rows: list[Sequence], shared_noise: bool = False) -> None:
        super().__init__(rows, shared_noise)
        self._rounds = [0] * len(rows)


class LowPrecision(RequestRngs):
    """Rounds its uniforms to bfloat16."""

    def _uniform(self, stream: Stream, b: int, n: int) -> list[float]:
        exact = torch.tensor(super()._uniform(stream, b, n))
        coarse: list[float] = exact.bfloat16().double().clamp(max=1 - 2.0**-53).tolist()
        return coarse


class NeighbourRngs(RequestRngs):
    """Seeds every row with the first row's seed and its place: a row's draws depend on its batch-mates."""

    def __init__(self, rows: list[Sequence], shared_noise: bool = False) -> None:
        super().__init__(rows, shared_noise)
        self._ids = [(self._ids[0][0] + b, 0) for b in range(len(rows))]
