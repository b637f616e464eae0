"""The round: the only decode loop in the project.

`Engine.step` is one round for all running rows: plan, draft, score, shape, verify, commit, emit. Plain decoding is the
same round with an empty draft. The engine knows roles only; it holds no algorithm, no model and no plug-in name.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch

from slipstream.devices import AtWork, Faults, Stopwatch, moved
from slipstream.engine.commit import Found, Round, RoundTrace, add_logprobs, grow, to_host, trace_of
from slipstream.engine.finish import Detokenizer, Ending
from slipstream.engine.guard import checked
from slipstream.engine.scheduler import Scheduler
from slipstream.engine.stats import Hits, Stats
from slipstream.sampling import RequestRngs, laws, new_seed
from slipstream.types import (
    Controller,
    Delta,
    Drafter,
    RequestError,
    Rngs,
    Scores,
    Sequence,
    Status,
    Target,
    VerifyRule,
)


@dataclass(frozen=True)
class EngineOptions:
    """How the engine runs. `logprobs_mode` as in vLLM: raw (before) or processed (after all sampling parameters)."""

    max_rows: int = 1
    prefill_chunk: int = 512
    logprobs_mode: Literal["raw_logprobs", "processed_logprobs"] = "raw_logprobs"


class Engine:
    """Decode many sequences at once, one round at a time. Not thread-safe: one thread owns it.

    `trace` hears of each row's round; `watch` is given each whole round, with its draft, scores, laws and verdict,
    before anything of it is committed. `at_work` is what a round runs in; a caller of many may open it around them.
    """

    _laws = staticmethod(laws)  # a copy with planted errors replaces it (negative controls)

    def __init__(
        self,
        target: Target,
        drafter: Drafter,
        rule: VerifyRule,
        controller: Controller,
        options: EngineOptions | None = None,
        *,
        detokenizer: Callable[[], Detokenizer] | None = None,
        make_rngs: Callable[[list[Sequence]], Rngs] | None = None,
        trace: Callable[[RoundTrace], None] | None = None,
    ) -> None:
        """Bind the parts; refuse a tree drafter on a target or rule that handles chains only."""
        if drafter.needs.tree and not (target.caps.tree and rule.tree):
            who = "rule" if target.caps.tree else "target"
            raise RequestError(f"drafter {drafter.name!r} drafts trees, which this {who} does not handle")
        lacking = set(drafter.needs.taps) - set(getattr(target, "taps", ()))
        if lacking:
            raise RequestError(
                f"drafter {drafter.name!r} reads taps {sorted(lacking)}, which this target was not opened to give"
            )
        self.options = options or EngineOptions()
        self.target, self.drafter, self.rule, self.controller = target, drafter, rule, controller
        self.trace = trace
        self.watch: Callable[[Round], None] | None = None
        self._detokenizer = detokenizer
        self.make_rngs = make_rngs or (lambda rows: RequestRngs(rows, shared_noise=rule.shared_noise))
        self._hits = Hits(drafter.name) if drafter.needs.taps else None
        self.at_work = AtWork(target.caps.own_threads)
        self._in_round = False
        self._doomed: list[Sequence] = []  # aborted in the middle of a round
        rows = min(self.options.max_rows, target.caps.max_rows)
        self.scheduler = Scheduler(target, drafter, rows, self.options.prefill_chunk)

    @property
    def idle(self) -> bool:
        """True when every request has ended."""
        return self.scheduler.idle

    def add(self, row: Sequence) -> None:
        """Admit a request; it starts as soon as a row is free. Sequences of one engine need distinct ids."""
        limit = self.target.caps.max_len
        if not row.tokens:
            raise RequestError("the prompt is empty; at least one token is needed to start from")
        if len(row.tokens) >= limit:
            raise RequestError(
                f"the prompt has {len(row.tokens)} tokens and the context {limit}; "
                f"shorten the prompt to {limit - 1} tokens or raise max_model_len"
            )
        row.seed = row.params.seed if row.params.seed is not None else (row.seed or new_seed())
        detokenizer = self._detokenizer() if self._detokenizer else None
        row.ending = Ending(row.params, row.eos_ids, room=limit - len(row.tokens), detokenizer=detokenizer)
        row.stats = Stats()
        self.scheduler.add(row)

    def abort(self, row: Sequence) -> None:
        """End a request now, wherever it is; its row is free for another at once, or after the round that is under way
        (a callback may abort, and so may a generator that is collected in the middle of one)."""
        if self._in_round:
            self._doomed.append(row)
        elif row.status is not Status.FINISHED:
            row.finish_reason = "abort"
            self.scheduler.leave(row)

    def step(self) -> list[Delta]:
        """Run one round. An exception before the commit leaves every sequence as it was: the round may be retried.

        One in the commit ends the sequences of the round with an error: their caches and texts may disagree.
        """
        if self._in_round:
            raise RequestError("a round is under way: its callbacks cannot run another on the same engine")
        self._in_round = True
        try:
            with self.at_work:
                self.controller.begin()
                rows = self.scheduler.plan()
                if not rows:
                    return []
                start = time.perf_counter()
                with Faults() as faults:
                    work = self._draft(rows)
                    scores, watch = self._score(work)
                    work.laws = self._laws(rows, scores.logits, work.draft, scores.peaks)
                    work.verdict = self.rule(work.draft, work.laws, work.rngs)
                if self.watch is not None:
                    self.watch(work)
                found = to_host(work, faults)  # the one time a round waits for an accelerator
                work.clock.target = watch.seconds
                deltas = self._commit(work, found)
                work.clock.total = time.perf_counter() - start
                return self._emit(work, deltas)
        finally:
            self._in_round = False
            while self._doomed:
                self.abort(self._doomed.pop())

    def _draft(self, rows: list[Sequence]) -> Round:
        rngs = self.make_rngs(rows)
        wanted = self.controller.budget(rows)
        budget = [self._fit(row, n) for row, n in zip(rows, wanted, strict=True)]
        start = time.perf_counter()
        draft = self.drafter.propose(rows, budget, rngs)
        seconds = time.perf_counter() - start
        work = Round(rows, rngs, checked(draft, budget, self.target.caps.vocab, self.drafter.name))
        work.clock.draft = seconds
        return work

    def _fit(self, row: Sequence, budget: int) -> int:
        """Drafting past the last token that may be emitted is pointless: the round itself adds one."""
        room: int | None = row.ending.room()
        if room is not None:
            budget = min(budget, room - 1)
        return max(0, min(budget, self.target.caps.max_nodes - 1))

    def _score(self, work: Round) -> tuple[Scores, Stopwatch]:
        watch = Stopwatch(work.draft.tokens)
        work.scores = scores = self.target.score([row.slot for row in work.rows], work.draft)
        watch.stop()
        return scores, watch

    def _commit(self, work: Round, found: list[Found]) -> list[Delta]:
        try:
            deltas, paths = self._grown(work, found)
            self.target.commit([row.slot for row in work.rows], paths)
            self._tell(work, paths)
        except BaseException as error:  # caches and texts may disagree: the rows cannot go on
            for row in work.rows:
                row.finish_reason, row.error = "error", f"the round broke off while it was committed ({error!r})"
                self.scheduler.leave(row)
            raise
        return deltas

    def _grown(self, work: Round, verdicts: list[Found]) -> tuple[list[Delta], list[list[int]]]:
        """Let each row take what its verdict gives; return the deltas and the paths to keep."""
        deltas, paths = [], []
        processed = self.options.logprobs_mode == "processed_logprobs"
        for b, found in enumerate(verdicts):
            row = work.rows[b]
            delta, path = grow(row, found, self._by(row) if found.path else "")
            if self._hits is not None:
                self._hits.record(found.drafted, len(found.path))
            if row.params.logprobs is not None:
                add_logprobs(work, b, delta.tokens, path, processed)
            if self.trace is not None:
                self.trace(trace_of(work, b, found, len(delta.tokens)))
            deltas.append(delta)
            paths.append(path)
        return deltas, paths

    def _by(self, row: Sequence) -> str:
        """Who drafted for the row: a mix of drafters knows."""
        by = getattr(self.drafter, "by", None)
        return str(by(row)) if by is not None else self.drafter.name

    def _tell(self, work: Round, paths: list[list[int]]) -> None:
        """Law 7: what is now in the cache, and what the target felt there."""
        assert work.scores is not None
        assert work.verdict is not None
        start = time.perf_counter()
        cached = [r.tokens[r.cached - 1 - len(p) : r.cached] for r, p in zip(work.rows, paths, strict=True)]
        taps: list[Mapping[int, torch.Tensor]] = [{} for _ in paths]
        if work.scores.taps:
            taps = [_felt(work.scores, b, path) for b, path in enumerate(paths)]
        self.drafter.observe(work.rows, cached, taps)
        work.clock.draft += time.perf_counter() - start
        self.controller.record(work.rows, work.draft, work.verdict, work.laws)

    def _emit(self, work: Round, deltas: list[Delta]) -> list[Delta]:
        for row in work.rows:
            row.stats.record_clock(work.clock)
            if row.finish_reason is not None:
                self.scheduler.leave(row)
        if self._hits is not None:
            self._hits.judge()
        return deltas


def _felt(scores: Scores, b: int, path: list[int]) -> dict[int, torch.Tensor]:
    """Pick the taps of row b's root and accepted nodes."""
    at = moved(torch.tensor([0, *path]), scores.logits.device)
    return {k: t[b, at] for k, t in scores.taps.items()}
