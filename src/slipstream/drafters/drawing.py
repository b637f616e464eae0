"""Draw the tokens of chains, depth by depth: what every drafter that has logits shares.

In: logits after the last token of each row still drafting. Out: its next token, and at the end the `Draft`. Greedy rows
take the highest logit (FIXED); the others draw from the law of their own sampling parameters, and the law drawn from
is the row of q that is recorded (law 3). Where the logits come from is the drafter's business.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from slipstream.drafters.chains import chain_draft
from slipstream.sampling.laws import drafting_law, fit_vocab, needs_history, peaks_of
from slipstream.types import Draft, Rngs, SamplingParams, Sequence

Doubt = Callable[[list[int], Tensor, Tensor], list[bool]]  # (batch indices, logits [n, V], tokens [n]) -> end here?


class Drawing:
    """The chains of one call of `propose` under way.

    `limits[b]` is the most tokens row b may draft; `live` are the batch indices still drafting, in order. `vocab` is
    the target's number of real ids, to which logits are fitted where more than their peak is needed.
    """

    def __init__(
        self, rows: list[Sequence], limits: list[int], rngs: Rngs, *, vocab: int, device: torch.device | str = "cpu"
    ) -> None:
        self.rows, self.limits, self.rngs = rows, limits, rngs
        self.vocab, self.device = vocab, torch.device(device)
        self.live = [b for b, limit in enumerate(limits) if limit > 0]
        self.guesses: list[list[int]] = [[] for _ in rows]
        self.broken: list[int] = []  # rows whose logits were not finite at the last depth: their chains end there
        self.sampled = [not row.params.greedy for row in rows]
        # kept up only for rows whose law depends on it
        self._prefixes = [list(row.tokens) if needs_history(row.params) else [] for row in rows]
        self._q: Tensor | None = None  # [B, N, V]
        self._recorded = 0  # depths that q has been written for

    def draw(self, logits: Tensor, depth: int, doubt: Doubt | None = None) -> list[int]:
        """Give each live row its token at `depth` (1 first) from logits [live, V or wider or narrower].

        Returns the places, in the former `live`, of the rows that draft on. Whatever ends a row here ends it after its
        token is kept (law 4): nothing can follow the token, its limit is reached, or `doubt` says so; or before it is
        drawn: its logits are not finite, or its parameters leave none of the tokens.
        """
        logits = logits if logits.dtype == torch.float64 else logits.float()
        logits = logits[:, : self.vocab]
        tokens, broken = peaks_of(logits)
        places, live, self.broken = list(range(len(self.live))), self.live, []
        if broken is not None:
            self.broken = [b for b, bad in zip(live, broken.tolist(), strict=True) if bad]
            places = [i for i, bad in enumerate(broken.tolist()) if not bad]
            live, logits, tokens = [live[i] for i in places], logits[places], tokens[places]
        if not all(_bare_greedy(self.rows[b].params) for b in live):
            logits = fit_vocab(logits, self.vocab, logits=True)
            law, bare = drafting_law([self.rows[b] for b in live], [self._prefixes[b] for b in live], logits, tokens)
            if bare is not None:
                some = (~bare).nonzero()[:, 0].tolist()
                places, live = [places[i] for i in some], [live[i] for i in some]
                logits, law = logits[some], law[some]
            tokens = self._choose(live, law, depth)
        doubtful = doubt(live, logits, tokens) if doubt is not None and live else [False] * len(live)
        going = self._take(live, tokens.tolist(), doubtful)
        self.live = [live[i] for i in going]
        return [places[i] for i in going]

    def last(self) -> Tensor:
        """Return the last drafted token of each live row -> [live]."""
        return torch.tensor([self.guesses[b][-1] for b in self.live], dtype=torch.int64)

    def draft(self) -> Draft:
        """Return what was drafted."""
        sampled = self.sampled if any(self.sampled) else None
        if self._q is not None:
            for row, guess in zip(self._q, self.guesses, strict=True):
                row[min(len(guess), self._recorded) :] = 0.0  # only now: most rows have been written
        return chain_draft(self.rows, self.guesses, device=self.device, sampled=sampled, q=self._q)

    def cut(self, lengths: list[int]) -> None:
        """Keep only the first tokens of each chain; the caller answers for law 4."""
        for guess, n in zip(self.guesses, lengths, strict=True):
            del guess[n:]

    def _choose(self, live: list[int], law: Tensor, depth: int) -> Tensor:
        """Draw, or take the highest, from each row's law [live, V]; record the law drawn from."""
        greedy = [i for i, b in enumerate(live) if not self.sampled[b]]
        if len(greedy) == len(live):
            return law.argmax(-1)
        if self._q is None:
            shape = (len(self.rows), 1 + max(self.limits), self.vocab)
            self._q = torch.empty(shape, dtype=law.dtype, device=self.device)
        row_law, self._recorded = self._q[:, depth - 1], depth  # [B, V]: node depth - 1 is the parent
        if len(live) == len(self.rows):
            row_law.copy_(law)
        else:
            row_law[live] = law.to(self.device)
        active = torch.zeros(len(self.rows), dtype=torch.bool, device=self.device)
        active[[b for b in live if self.sampled[b]]] = True
        tokens = self.rngs.draft(row_law, depth, active)[live]  # law 3: drawn from the recorded rows themselves
        if greedy:
            tokens[greedy] = law[greedy].argmax(-1).to(tokens.device)
        return tokens

    def _take(self, live: list[int], tokens: list[int], doubtful: list[bool]) -> list[int]:
        going = []
        for i, (b, token) in enumerate(zip(live, tokens, strict=True)):
            row, guess = self.rows[b], self.guesses[b]
            guess.append(token)
            if self._prefixes[b]:
                self._prefixes[b].append(token)
            if not (ends(row, token) or doubtful[i] or len(guess) >= self.limits[b]):
                going.append(i)
        return going


class Dropped:
    """Count the drafts cut short because a drafter's numbers were not finite, and say so once."""

    def __init__(self, what: str) -> None:
        self.what, self.count = what, 0

    def add(self, rows: int) -> None:
        """Count `rows` more; the first time warn."""
        first = self.count == 0 and rows > 0
        self.count += rows
        if first:
            warnings.warn(
                f"the {self.what}'s logits are not finite: drafts end there (counted in `dropped`, told once); "
                f"if it goes on, load the {self.what} as float32 or bfloat16",
                RuntimeWarning,
                stacklevel=3,
            )


def ends(row: Sequence, token: int) -> bool:
    """Say whether nothing can come after this token, so that drafting on would be wasted."""
    return token in row.params.stop_token_ids or (token in row.eos_ids and not row.params.ignore_eos)


def _bare_greedy(params: SamplingParams) -> bool:
    """True when the row's law is the highest raw logit: nothing needs to be applied first."""
    return params.greedy and not params.logit_bias and not needs_history(params)
