"""Draft with a smaller model of the same vocabulary (Leviathan et al. 2211.17192; Chen et al. 2302.01318).

In: committed tokens, a decoder with its own cache. Out: one chain per row, all rows in one batch per depth, drawn by
`drawing`; a row that is alone is drafted in fewer passes where it repeats itself, with the same draft. Loads nothing,
verifies nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from slipstream.drafters.draft_cache import DraftCache, DraftDecoder
from slipstream.drafters.drawing import Drawing, Dropped
from slipstream.drafters.lookup import Lookup, LookupOptions
from slipstream.types import Draft, Needs, RequestError, Rngs, Sequence

_HINT = 6  # tokens of a hint

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Waits = Callable[[Sequence], bool]
GoOn = Callable[[Sequence, Seq[float]], bool]  # (row, probabilities of its drafted tokens) -> draft another


@dataclass(frozen=True, kw_only=True)
class DraftModelOptions:
    """`min_prob`: draft no further after a token that the draft model gave less than this; the token itself stays.

    `head_ids`: score only so many first ids, 0: all (2502.14856). Ids made by merging are in the order of the merges,
    frequent ones first, and reading the whole output layer takes a third of a small model's pass.
    """

    min_prob: float = 0.0
    head_ids: int = 65536

    def __post_init__(self) -> None:
        if isinstance(self.head_ids, bool) or not isinstance(self.head_ids, int) or self.head_ids < 0:
            raise RequestError(f"head_ids={self.head_ids!r} must be a whole number, 0 (all ids) or more")
        if not 0.0 <= self.min_prob < 1.0:
            raise RequestError(f"min_prob={self.min_prob!r} must be at least 0 (off) and below 1")


class DraftModel:
    """Drafts chains with a decoder. `dropped` counts drafts cut short because the logits were not finite.

    `vocab` is the target's number of token ids, `device` where the target wants its draft; the decoder may be on
    another device, in another dtype, and wider or narrower than `vocab`. `ids` is how many ids it may be fed, where
    it gives logits to fewer: q is 0 on the others.
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
        ids: int | None = None,
    ) -> None:
        self.options = options or DraftModelOptions()
        self.vocab = vocab
        self.device = torch.device(device)
        self._go_on: GoOn | None = None
        self._waits: Waits | None = None
        self._dropped = Dropped("draft model")
        self._cache = DraftCache(decoder, max_rows, ids)
        # hints are too short for longer matches to be of use
        self._lookup = Lookup(LookupOptions(max_ngram=4), vocab=min(vocab, decoder.config.vocab))

    @property
    def dropped(self) -> int:
        """Drafts cut short because the logits were not finite."""
        return self._dropped.count

    def steer(self, go_on: GoOn | None) -> None:
        """Ask `go_on` after each token of a greedy row whether to draft another; the budget stays the most."""
        self._go_on = go_on

    def wait(self, waits: Waits | None) -> None:
        """Ask `waits` whether to leave a row's prompt unread for now; drafting for the row reads it."""
        self._waits = waits

    def propose(self, rows: list[Sequence], budget: list[int], rngs: Rngs) -> Draft:
        """Draft a chain of at most `budget[b]` tokens for each row; none past the draft model's context."""
        limits = [min(n, self.room(row)) for row, n in zip(rows, budget, strict=True)]
        work = Drawing(rows, limits, rngs, vocab=self.vocab, device=self.device)
        sure: dict[int, list[float]] = {}

        def doubt(live: list[int], logits: Tensor, tokens: Tensor) -> list[bool]:
            told = _probabilities(logits, tokens)
            return [self._ends(rows[b], sure.setdefault(b, []), p) for b, p in zip(live, told, strict=True)]

        asked = self.options.min_prob or self._go_on is not None
        depth = 0
        while work.live:
            hint = self._hint(work)
            drafted = [work.guesses[b] for b in work.live]
            logits = self._cache.after([rows[b] for b in work.live], drafted, hint)  # [live, 1 + len(hint), V]
            for k in range(1 + len(hint)):
                depth += 1
                work.draw(logits[:, k], depth, doubt if asked and depth < max(limits) else None)
                for b in work.broken:
                    self._cache.distrust(rows[b])
                self._dropped.add(len(work.broken))
                if not work.live or work.guesses[work.live[0]][-1:] != hint[k : k + 1]:
                    break
        return work.draft()

    def observe(self, rows: list[Sequence], tokens: list[list[int]], taps: list[Mapping[int, Tensor]]) -> None:
        """Feed prompts at once, unless they are to wait. They and the few tokens of a round are left to `propose`,
        which feeds what is missing: for a short answer, reading a long prompt costs more than drafting saves."""
        for row, new in zip(rows, tokens, strict=True):
            if self.room(row) > 0 and not (self._waits is not None and self._waits(row)):
                self._cache.prefill(row, new)

    def room(self, row: Sequence) -> int:
        """Return how many tokens after the row's text fit into the draft model's context."""
        return max(0, self._cache.decoder.config.max_len - len(row.tokens))

    def unread(self, row: Sequence) -> int:
        """Return how many tokens of the row's text would have to be fed before drafting."""
        return self._cache.unread(row)

    def forget(self, row: Sequence) -> None:
        """Free the row's place in the draft model's cache."""
        self._cache.forget(row)
        self._lookup.forget(row)

    def _hint(self, work: Drawing) -> list[int]:
        """Foresee what a row that is alone will draft: tokens that come true cost a place in a pass, not a pass."""
        if len(work.live) != 1:
            return []
        b = work.live[0]
        room = work.limits[b] - len(work.guesses[b]) - 1
        return self._lookup.ahead(work.rows[b], work.guesses[b], min(room, _HINT))

    def _ends(self, row: Sequence, sure: list[float], probability: float) -> bool:
        """Say whether a row's draft ends with the token that has this probability."""
        sure.append(probability)
        if probability < self.options.min_prob:
            return True
        return row.params.greedy and self._go_on is not None and not self._go_on(row, sure)


def _probabilities(logits: Tensor, tokens: Tensor) -> list[float]:
    """Return the probability of one token [R] of each row of logits [R, V]."""
    if logits.device.type != "cpu":
        found: list[float] = (logits.gather(1, tokens[:, None])[:, 0] - logits.logsumexp(-1)).exp().tolist()
        return found
    with np.errstate(over="ignore"):  # beside a far likelier one its probability is 0
        # numpy is ten times as fast on one row
        odds = [_odds(row, at) for row, at in zip(logits.numpy(), tokens.tolist(), strict=True)]
    return [1.0 / each for each in odds]


def _odds(row: Array, at: int) -> float:
    """Return one over the probability of a token; infinite for one that the model rules out and a processor let in."""
    return float(np.exp(row - row[at]).sum()) if np.isfinite(row[at]) else float("inf")
