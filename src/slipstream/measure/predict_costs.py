"""Time what a round costs on this machine: the round itself, by nodes scored, and the drafter, by tokens drafted.

In: an `LLM` and a text to be at. Out: a `Profile`. Rounds run through the production engine with a drafter that guesses
nonsense at once, so that laws, verification and commit are in the time, and nothing depends on acceptance. The real
drafter is timed apart, at places of the text.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from collections.abc import Sequence as Seq
from typing import TYPE_CHECKING

import numpy as np
import torch

from slipstream import build
from slipstream.drafters.chains import chain_draft
from slipstream.engine import Engine, EngineOptions
from slipstream.measure.predict_walk import Profile
from slipstream.sampling import RequestRngs
from slipstream.types import Draft, Drafter, Laws, Needs, Rngs, SamplingParams, Sequence, Verdict

if TYPE_CHECKING:
    from slipstream.llm import LLM

CYCLES = 9
STEP = 3  # tokens a drafter hears between two timed drafts: about what a round commits


def sizes_for(longest: int) -> list[int]:
    """Return the draft lengths to time: all small ones, then fewer; costs between them are interpolated."""
    wanted = {0, 1, 2, 3, 4, 6, 8, 10, 12, 16, 24, 32, 48, 64, longest}
    return sorted(n for n in wanted if n <= longest)


def profile(
    llm: LLM,
    tokens: list[int],
    params: SamplingParams,
    longest: int,
    *,
    place: int | None = None,
    cycles: int = CYCLES,
    tick: Callable[[], object] = lambda: None,
) -> Profile:
    """Time rounds and drafts of 0..`longest` tokens after the first `place` of `tokens` (None: half of them), a text of
    the kind that is predicted for. `tick` is called after each round."""
    sizes = sizes_for(longest)
    place = max(1, min(len(tokens) // 2 if place is None else place, len(tokens), llm.max_model_len // 2))
    rounds = _time_rounds(llm, tokens[:place], params, sizes, (cycles, tick))
    drafts = _time_drafts(llm, tokens, params, sizes, (cycles, place))
    return Profile(sizes, np.array(rounds), np.array(drafts))


class _Nonsense:
    """Drafts as many tokens as it is asked for, none of them likely; draws them if the real drafter would."""

    name = "nonsense"
    needs = Needs()

    def __init__(self, vocab: int, device: str, sampled: bool) -> None:
        self.device, self.token = device, vocab // 2
        self._law = torch.full((vocab,), 1.0 / vocab, device=device) if sampled else None

    def propose(self, rows: list[Sequence], budget: list[int], rngs: Rngs) -> Draft:
        if self._law is None or not budget[0]:
            return chain_draft(rows, [[self.token] * n for n in budget], device=self.device)
        q = self._law.repeat(len(rows), max(budget) + 1, 1)
        return chain_draft(
            rows, [[self.token] * n for n in budget], device=self.device, sampled=[True] * len(rows), q=q
        )

    def observe(self, rows: object, tokens: object, taps: object) -> None:
        return

    def forget(self, row: Sequence) -> None:
        return


class _Sizes:
    """The controller that asks for the sizes in turn, up and down, so that drift within a cycle evens out."""

    def __init__(self, sizes: Seq[int]) -> None:
        self.order = [*range(len(sizes)), *reversed(range(len(sizes)))]
        self._sizes, self.calls = sizes, 0

    def begin(self) -> None: ...

    def budget(self, rows: list[Sequence]) -> list[int]:
        return [self._sizes[self.order[self.calls % len(self.order)]]] * len(rows)

    def record(self, rows: list[Sequence], draft: Draft, verdict: Verdict, laws: Laws) -> None:
        self.calls += 1


class _Rounds:
    """One row that goes on for as long as it is asked to: it starts again where its context ends."""

    def __init__(self, llm: LLM, prompt: list[int], params: SamplingParams, turn: _Sizes) -> None:
        from slipstream.text import Detokenizer

        plug = build.DRAFTERS.get(llm.drafter)
        target = llm.engine.target
        sampled = bool(plug and plug.draws) and not params.greedy
        nonsense = _Nonsense(target.caps.vocab, llm.opened.device, sampled)
        options = EngineOptions(max_rows=1)
        self.engine = Engine(
            target, nonsense, llm.engine.rule, turn, options, detokenizer=lambda: Detokenizer(llm.tokenizer)
        )
        self._prompt = prompt
        self._params = dataclasses.replace(
            params, max_tokens=None, min_tokens=0, ignore_eos=True, stop=(), stop_token_ids=()
        )
        self.row = self._start()

    def _start(self) -> Sequence:
        row = Sequence(-2, list(self._prompt), len(self._prompt), self._params, seed=1)
        self.engine.add(row)
        return row

    def seconds(self) -> float:
        """Run one round and return its time, drafting apart."""
        if self.row.finish_reason is not None:
            self.row = self._start()
        stats = self.row.stats
        before = stats.target_seconds + stats.other_seconds
        self.engine.step()
        return float(stats.target_seconds + stats.other_seconds - before)


def _time_rounds(
    llm: LLM, prompt: list[int], params: SamplingParams, sizes: list[int], how: tuple[int, Callable[[], object]]
) -> list[list[float]]:
    cycles, tick = how
    turn = _Sizes(sizes)
    rounds = _Rounds(llm, prompt, params, turn)
    times: list[list[float]] = []
    try:
        for _ in range(cycles + 1):
            cycle = [0.0] * len(sizes)
            for where in turn.order:
                cycle[where] += rounds.seconds() / 2
                tick()
            times.append(cycle)
    finally:
        rounds.engine.abort(rounds.row)
    return times[1:]  # the first cycle warms up


def _time_drafts(
    llm: LLM, tokens: list[int], params: SamplingParams, sizes: list[int], how: tuple[int, int]
) -> list[list[float]]:
    """Let the real drafter draft every size in turn, hearing a few tokens of the text before each."""
    cycles, place = how
    drafts = _Drafts(llm, tokens, dataclasses.replace(params, ignore_eos=True), place)
    try:
        with torch.inference_mode():
            drafts.begin()
            found = [[drafts.seconds(size) for size in sizes] for _ in range(cycles + 1)]
    finally:
        drafts.drafter.forget(drafts.row)
    return found[1:]


class _Drafts:
    """One row that hears the text, a few tokens at a time, and starts again where the text or the context ends."""

    def __init__(self, llm: LLM, tokens: list[int], params: SamplingParams, place: int) -> None:
        self.drafter: Drafter = llm.engine.drafter
        self.row = Sequence(-3, list(tokens[:place]), place, params, seed=1)
        self._tokens, self._place = tokens, place
        self._room = min(llm.max_model_len, max(len(tokens), place + STEP))

    def begin(self) -> None:
        """Forget all, and hear the beginning."""
        self.drafter.forget(self.row)
        self.row.tokens[:] = self._tokens[: self._place]
        self.drafter.observe([self.row], [self.row.tokens[:-1]], [{}])

    def seconds(self, size: int) -> float:
        """Return the time to hear `STEP` tokens and draft `size`."""
        row = self.row
        if len(row.tokens) + STEP + size > self._room:
            self.begin()
        start = len(row.tokens)
        new = [self._tokens[i % len(self._tokens)] for i in range(start, start + STEP)]
        heard = [row.tokens[-1], *new[:-1]]
        row.tokens.extend(new)
        row.rounds += 1
        rngs = RequestRngs([row])
        start_time = time.perf_counter()
        self.drafter.observe([row], [heard], [{}])
        self.drafter.propose([row], [size], rngs)
        return time.perf_counter() - start_time
