"""Draft a block left to right, each slot corrected by the token before it, and keep what pays (DSpark, 2607.05147).

In: committed tokens and the target's hidden states. Out: one chain per row, drawn from the corrected laws, which are
the q that is recorded. How much of a chain is kept follows from the confidence head: what it says of a token was made
before that token was drawn, so a threshold on it, and the scheduler over all rows (`schedule`), keep the target's law.
With the scheduler on, how much a row drafts depends on the rows beside it; what it emits keeps its law.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from slipstream.drafters.calibration import Outcome, checked_temperatures, load
from slipstream.drafters.drawing import Drawing
from slipstream.drafters.net_drafters import BlockDrafter
from slipstream.drafters.schedule import Seconds, schedule
from slipstream.nets.dspark import Corrected, DSparkNet
from slipstream.types import Draft, RequestError, Rngs, Sequence


@dataclass(frozen=True, kw_only=True)
class DSparkOptions:
    """How much of a block to submit.

    `schedule`: "hardware" weighs all rows' tokens against the measured cost of a round; "off" submits all; "auto"
    weighs those of greedy rows, whose text no length can change: a sampled row's lengths, and so the text of its seed,
    would depend on measured times and on its neighbours. Without a confidence head "auto" is off.
    `threshold`: draft no token whose confidence is below this; 0 is off. `temperatures` of the confidence head by
    depth, or a file that `calibration` saved; depths not named have 1.
    """

    schedule: Literal["auto", "off", "hardware"] = "auto"
    threshold: float = 0.0
    temperatures: tuple[float, ...] | str | Path = ()

    def __post_init__(self) -> None:
        if self.schedule not in ("auto", "off", "hardware"):
            raise RequestError(f"schedule={self.schedule!r} must be auto, off or hardware")
        number = isinstance(self.threshold, int | float) and not isinstance(self.threshold, bool)
        if not (number and 0.0 <= self.threshold < 1.0):
            raise RequestError(f"threshold={self.threshold!r} must be at least 0 (off) and below 1")
        if not isinstance(self.temperatures, str | Path):
            checked_temperatures(self.temperatures, "temperatures")

    @property
    def sure(self) -> bool:
        """True when the confidence head must be there."""
        return self.threshold > 0.0 or self.schedule == "hardware"


@dataclass
class _Walk:
    """The rows still drafting: where each is in the block's states, its last token and what its last slot left."""

    at: list[int]
    previous: Tensor  # [live]
    state: Tensor | None = None  # [live, r]

    def keep(self, places: list[int], state: Tensor | None) -> None:
        """Go on with these places of the live rows, whose slot left `state`."""
        self.at = [self.at[i] for i in places]
        self.previous = self.previous[places]
        self.state = None if state is None else state[places]


@dataclass
class _Said:
    """What the confidence head said of each row's tokens: its logits, and the chances [B, G] that a prefix stands."""

    survival: Tensor
    logits: list[list[float]] = field(default_factory=list)


class DSpark(BlockDrafter):
    """Drafts with a block network and its heads; see `NetDrafter`.

    `seconds(n)` is the time of a round whose target pass reads n tokens of all rows; without it nothing is scheduled.
    `target` names the target, for calibration files. Put a list into `collect` to have the outcome of every later round
    appended to it.
    """

    name = "dspark"
    net: DSparkNet

    def __init__(
        self,
        net: DSparkNet,
        *,
        vocab: int,
        max_rows: int,
        device: torch.device | str = "cpu",
        options: DSparkOptions | None = None,
        seconds: Callable[[int], float] | None = None,
        target: str = "",
    ) -> None:
        self.options = options or DSparkOptions()
        super().__init__(net, vocab=vocab, max_rows=max_rows, device=device)
        self.temperatures = _temperatures(self.options, net, target)
        weighed = self.options.schedule != "off" and net.config.markov.confidence != "none"
        self.seconds: Seconds | None = seconds if weighed else None
        self.collect: list[Outcome] | None = None
        self._submitted: dict[int, tuple[float, ...]] = {}  # kept up while somebody collects

    def propose(self, rows: list[Sequence], budget: list[int], rngs: Rngs) -> Draft:
        """Draft at most `budget[b]` tokens for each row, never more than the block has, fewer where that pays."""
        for row in rows:
            self._submitted.pop(row.id, None)
        return super().propose(rows, budget, rngs)

    def observe(self, rows: list[Sequence], tokens: list[list[int]], taps: list[Mapping[int, Tensor]]) -> None:
        """Feed what was committed to the network's context."""
        if self.collect is not None:
            for row, new in zip(rows, tokens, strict=True):
                self._hear(row, len(new) - 1)
        super().observe(rows, tokens, taps)

    def forget(self, row: Sequence) -> None:
        """Free the row's place in the network's cache."""
        self._submitted.pop(row.id, None)
        super().forget(row)

    def _kept(self, rows: list[Sequence], survival: Tensor, drawn: list[int]) -> list[int]:
        if self.options.schedule == "hardware":
            return self._lengths(survival, drawn)
        greedy = [row.params.greedy for row in rows]
        found = self._lengths(survival, [n if g else 0 for n, g in zip(drawn, greedy, strict=True)])
        return [f if g else n for f, n, g in zip(found, drawn, greedy, strict=True)]

    def _lengths(self, survival: Tensor, drawn: list[int]) -> list[int]:
        assert self.seconds is not None
        return schedule(survival, drawn, self.seconds)

    def _hear(self, row: Sequence, accepted: int) -> None:
        logits = self._submitted.pop(row.id, ())
        # of a row that just ended nobody knows what else would have stood
        if logits and row.finish_reason is None and self.collect is not None:
            self.collect.append(Outcome(logits, accepted))

    def _chains(self, work: Drawing) -> None:
        """Draw every row's chain, cut it to what pays, and note what was said of it."""
        said = _Said(torch.zeros(len(work.rows), max(work.limits), dtype=torch.float64), [[] for _ in work.rows])
        self._walk(work, said)
        if self.seconds is not None:
            work.cut(self._kept(work.rows, said.survival, [len(guess) for guess in work.guesses]))
        if self.collect is not None:
            for row, guess, logits in zip(work.rows, work.guesses, said.logits, strict=True):
                self._submitted[row.id] = tuple(logits[: len(guess)])

    def _walk(self, work: Drawing, said: _Said) -> None:
        """Draw every row's chain, slot after slot."""
        rows, deepest = [work.rows[b] for b in work.live], max(work.limits)
        states = self.context.block(rows, deepest, anchor=self.net.runs_in)  # [n, D, H]
        roots = torch.tensor([row.tokens[-1] for row in rows], device=states.device)
        walk = _Walk(list(range(len(rows))), roots)
        if self.net.runs_in:
            walk.state, states = self.net.before(states[:, 0], roots), states[:, 1:]
        step = self._at_once(len(rows))
        for depth in range(1, deepest + 1):
            if (depth - 1) % step == 0:
                some = states[:, depth - 1 : depth - 1 + step]
                base = self.net.logits(some.flatten(0, 1)).unflatten(0, some.shape[:2])  # [n, <= step, Vd]
            hidden, u = states[walk.at, depth - 1], base[walk.at, (depth - 1) % step]
            found = self._doubt(work, walk, self.net.correct(hidden, u, walk.previous, walk.state), said, depth)
            going = work.draw(self.reduced.spread(found.logits), depth) if work.live else []
            self._dropped.add(len(work.broken))
            if not going:
                return
            walk.keep(going, found.state)
            walk.previous = work.last().to(states.device)

    def _doubt(self, work: Drawing, walk: _Walk, found: Corrected, said: _Said, depth: int) -> Corrected:
        """Note the confidence in each live row's next token, not yet drawn; end the rows that lack it."""
        if found.confidence is None or not (self.options.sure or self.seconds or self.collect is not None):
            return found
        heat = self.temperatures[depth - 1] if depth <= len(self.temperatures) else 1.0
        chances = torch.sigmoid(found.confidence.double() / heat).cpu()
        before = said.survival[work.live, depth - 2] if depth > 1 else torch.ones_like(chances)
        said.survival[work.live, depth - 1] = before * chances
        for b, logit in zip(work.live, found.confidence.tolist(), strict=True):
            said.logits[b].append(logit)
        if self.options.threshold == 0.0:
            return found
        sure = [i for i, c in enumerate(chances.tolist()) if c >= self.options.threshold]
        work.live = [work.live[i] for i in sure]
        walk.keep(sure, found.state)
        return Corrected(found.logits[sure], found.confidence[sure], walk.state)


def _temperatures(options: DSparkOptions, net: DSparkNet, target: str) -> tuple[float, ...]:
    if options.sure and net.config.markov.confidence == "none":
        raise RequestError(
            f"schedule={options.schedule!r}, threshold={options.threshold!r}: this drafter has no confidence head; "
            f"use schedule='off' and threshold=0"
        )
    if isinstance(options.temperatures, str | Path):
        return load(options.temperatures, drafter=net.fingerprint, target=target).temperatures
    return tuple(float(t) for t in options.temperatures)
