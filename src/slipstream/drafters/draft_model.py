"""Draft with a smaller model of the same vocabulary (Leviathan et al. 2211.17192; Chen et al. 2302.01318).

In: committed tokens, a decoder with its own cache. Out: one chain per row, all rows in one batch per depth. Greedy rows
take the highest logit (FIXED); the others draw from the draft's law under the row's own sampling parameters, and the
law drawn from is the q that is recorded. Loads nothing, verifies nothing.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from slipstream.drafters.chains import chain_draft
from slipstream.drafters.draft_cache import DraftCache, DraftDecoder
from slipstream.sampling.laws import draft_law, fit_vocab, needs_history, peaks
from slipstream.types import Draft, Needs, RequestError, Rngs, SamplingParams, Sequence


@dataclass(frozen=True, kw_only=True)
class DraftModelOptions:
    """`min_prob`: draft no further after a token that the draft model gave less than this; the token itself stays."""

    min_prob: float = 0.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.min_prob < 1.0:
            raise RequestError(f"min_prob={self.min_prob!r} must be at least 0 (off) and below 1")


@dataclass
class _Round:
    """One call of `propose` under way."""

    rows: list[Sequence]
    limits: list[int]
    rngs: Rngs
    sampled: list[bool]
    q: Tensor | None = None  # [B, N, V]
    guesses: list[list[int]] = field(default_factory=list)
    prefixes: list[list[int]] = field(default_factory=list)  # kept up only for rows whose law depends on it


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
        self.dropped = 0
        self._cache = DraftCache(decoder, max_rows)

    def propose(self, rows: list[Sequence], budget: list[int], rngs: Rngs) -> Draft:
        """Draft a chain of at most `budget[b]` tokens for each row; none past the draft model's context."""
        work = self._start(rows, budget, rngs)
        live = [b for b, limit in enumerate(work.limits) if limit > 0]
        depth = 0
        while live:
            depth += 1
            if depth == 1:
                logits = self._cache.catch_up([rows[b] for b in live])
            else:
                logits = self._cache.advance([rows[b] for b in live], [work.guesses[b][-1] for b in live])
            live = self._draw(work, live, logits, depth)
        return chain_draft(
            rows, work.guesses, device=self.device, sampled=work.sampled if any(work.sampled) else None, q=work.q
        )

    def observe(self, rows: list[Sequence], tokens: list[list[int]], taps: list[Mapping[int, Tensor]]) -> None:
        """Feed prompts at once; the few tokens of a round wait for `propose`, which feeds what the cache lacks."""
        for row, new in zip(rows, tokens, strict=True):
            self._cache.prefill(row, new)

    def forget(self, row: Sequence) -> None:
        """Free the row's place in the draft model's cache."""
        self._cache.forget(row)

    def _start(self, rows: list[Sequence], budget: list[int], rngs: Rngs) -> _Round:
        room = self._cache.decoder.config.max_len
        limits = [min(n, room - len(row.tokens)) for row, n in zip(rows, budget, strict=True)]
        work = _Round(rows, limits, rngs, [not row.params.greedy for row in rows], guesses=[[] for _ in rows])
        work.prefixes = [list(row.tokens) if needs_history(row.params) else [] for row in rows]
        return work

    def _draw(self, work: _Round, live: list[int], logits: Tensor, depth: int) -> list[int]:
        """Give each live row its token at `depth`; return the rows that go on. logits [live, V of the drafter]."""
        logits = logits if logits.dtype == torch.float64 else logits.float()
        logits = fit_vocab(logits, self.vocab, logits=True)
        tokens, broken = peaks(logits)
        if broken is not None:
            good = self._drop(work, live, broken.tolist())
            live, logits, tokens = [live[i] for i in good], logits[good], tokens[good]
        if not all(_bare_greedy(work.rows[b].params) for b in live):
            law = draft_law([work.rows[b] for b in live], [work.prefixes[b] for b in live], logits)  # [live, V]
            tokens = self._choose(work, live, law, depth)
        return self._take(work, live, logits, tokens)

    def _choose(self, work: _Round, live: list[int], law: Tensor, depth: int) -> Tensor:
        """Draw, or take the highest, from each row of law [live, V]; record the law drawn from."""
        greedy = [i for i, b in enumerate(live) if not work.sampled[b]]
        if len(greedy) == len(live):
            return law.argmax(-1)
        if work.q is None:
            shape = (len(work.rows), 1 + max(work.limits), self.vocab)
            work.q = torch.zeros(shape, dtype=law.dtype, device=self.device)
        row_law = work.q[:, depth - 1]  # [B, V]: node depth - 1 is the parent
        if len(live) == len(work.rows):
            row_law.copy_(law)
        else:
            row_law[live] = law.to(self.device)
        active = torch.zeros(len(work.rows), dtype=torch.bool, device=self.device)
        active[[b for b in live if work.sampled[b]]] = True
        tokens = work.rngs.draft(row_law, depth, active)[live]  # law 3: drawn from the recorded rows themselves
        if greedy:
            tokens[greedy] = law[greedy].argmax(-1).to(tokens.device)
        return tokens

    def _take(self, work: _Round, live: list[int], logits: Tensor, tokens: Tensor) -> list[int]:
        """Append tokens [live]. Whatever ends a row here ends it after its token is kept (law 4)."""
        doubtful = self._doubtful(logits, tokens)
        going = []
        for i, (b, token) in enumerate(zip(live, tokens.tolist(), strict=True)):
            row, guess = work.rows[b], work.guesses[b]
            guess.append(token)
            if work.prefixes[b]:
                work.prefixes[b].append(token)
            if not (_ends(row, token) or doubtful[i] or len(guess) >= work.limits[b]):
                going.append(b)
        return going

    def _doubtful(self, logits: Tensor, tokens: Tensor) -> list[bool]:
        if self.options.min_prob == 0.0 or not len(tokens):
            return [False] * len(tokens)
        logprob = logits.gather(1, tokens[:, None])[:, 0] - logits.logsumexp(-1)
        return (logprob < math.log(self.options.min_prob)).tolist()

    def _drop(self, work: _Round, live: list[int], broken: list[bool]) -> list[int]:
        """End the drafts of the rows marked `broken` [live] here; return the places in `live` of the others."""
        for b, bad in zip(live, broken, strict=True):
            if bad:
                self._cache.distrust(work.rows[b])
        first = self.dropped == 0
        self.dropped += sum(broken)
        if first:
            warnings.warn(
                "the draft model's logits are not finite: drafts end there (counted in `dropped`, told once); "
                "if it goes on, load the draft model as float32 or bfloat16",
                RuntimeWarning,
                stacklevel=4,
            )
        return [i for i, bad in enumerate(broken) if not bad]


def _bare_greedy(params: SamplingParams) -> bool:
    """True when the row's law is the highest raw logit: nothing needs to be applied first."""
    return params.greedy and not params.logit_bias and not needs_history(params)


def _ends(row: Sequence, token: int) -> bool:
    """True when nothing can come after this token, so that drafting on would be wasted."""
    return token in row.params.stop_token_ids or (token in row.eos_ids and not row.params.ignore_eos)
