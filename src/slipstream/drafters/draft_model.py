"""Draft with a smaller model of the same vocabulary (Leviathan et al. 2211.17192; Chen et al. 2302.01318).

In: committed tokens, a decoder with its own cache. Out: one chain per row, all rows in one batch per depth, drawn by
`drawing`. Loads nothing, verifies nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from slipstream.drafters.draft_cache import DraftCache, DraftDecoder
from slipstream.drafters.drawing import Drawing, Dropped
from slipstream.types import Draft, Needs, RequestError, Rngs, Sequence


@dataclass(frozen=True, kw_only=True)
class DraftModelOptions:
    """`min_prob`: draft no further after a token that the draft model gave less than this; the token itself stays."""

    min_prob: float = 0.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.min_prob < 1.0:
            raise RequestError(f"min_prob={self.min_prob!r} must be at least 0 (off) and below 1")


class DraftModel:
    """Drafts chains with a decoder. `dropped` counts drafts cut short because the logits were not finite.

    `vocab` is the target's number of token ids, `device` where the target wants its draft; the decoder may be on
    another device, in another dtype, and wider or narrower than `vocab`.
    """

    name = "draft_model"
    needs = Needs()

    def __init__(
        self,
        decoder: DraftDecoder,
        *,
        vocab: int,
        max_rows: int,
        device: torch.device | str = "cpu",
        options: DraftModelOptions | None = None,
    ) -> None:
        self.options = options or DraftModelOptions()
        self.vocab = vocab
        self.device = torch.device(device)
        self._dropped = Dropped("draft model")
        self._cache = DraftCache(decoder, max_rows)

    @property
    def dropped(self) -> int:
        """Drafts cut short because the logits were not finite."""
        return self._dropped.count

    def propose(self, rows: list[Sequence], budget: list[int], rngs: Rngs) -> Draft:
        """Draft a chain of at most `budget[b]` tokens for each row; none past the draft model's context."""
        room = self._cache.decoder.config.max_len
        limits = [min(n, room - len(row.tokens)) for row, n in zip(rows, budget, strict=True)]
        work = Drawing(rows, limits, rngs, vocab=self.vocab, device=self.device)
        doubt = self._doubtful if self.options.min_prob else None
        depth = 0
        while work.live:
            depth += 1
            live = [rows[b] for b in work.live]
            logits = self._cache.catch_up(live) if depth == 1 else self._cache.advance(live, work.last().tolist())
            work.draw(logits, depth, doubt)
            for b in work.broken:
                self._cache.distrust(rows[b])
            self._dropped.add(len(work.broken))
        return work.draft()

    def observe(self, rows: list[Sequence], tokens: list[list[int]], taps: list[Mapping[int, Tensor]]) -> None:
        """Feed prompts at once; the few tokens of a round wait for `propose`, which feeds what the cache lacks."""
        for row, new in zip(rows, tokens, strict=True):
            self._cache.prefill(row, new)

    def forget(self, row: Sequence) -> None:
        """Free the row's place in the draft model's cache."""
        self._cache.forget(row)

    def _doubtful(self, logits: Tensor, tokens: Tensor) -> list[bool]:
        logprob = logits.gather(1, tokens[:, None])[:, 0] - logits.logsumexp(-1)
        return (logprob < math.log(self.options.min_prob)).tolist()
