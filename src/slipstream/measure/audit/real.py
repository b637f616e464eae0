"""The real model under the user's sampling parameters: watch every round, and judge the laws the rounds used.

In: an `LLM`, prompts, parameters. Out: watched tokens and `Check`s. At some positions the logits of the verify pass are
kept: they must be those of a fresh pass over the finished text (else the cache is wrong), and the law made of them must
be the one that the definitions of the parameters give (else the shaping is wrong, a frozen penalty for one).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from slipstream.engine import Round
from slipstream.measure.audit.findings import Check, skipped
from slipstream.measure.audit.watch import Watch, visited
from slipstream.measure.certify import measured_tau, replay
from slipstream.testing.reference import MET, next_law

if TYPE_CHECKING:
    from slipstream.llm import LLM, Completion
    from slipstream.types import Draft, SamplingParams

TAU_FLOAT32 = 2e-3  # a wrong cache moves logits by tenths at least
SAME_LAW = 1e-4
_METS = (MET, 0.0, 3 * MET, -3 * MET, 10 * MET, -10 * MET)  # the law may be cut on either side of a boundary just met


@dataclass
class Kept:
    """One watched position: whose, how many tokens came before it, and the logits [V] used."""

    row: int
    place: int
    logits: Tensor


@dataclass
class Spy:
    """Watches rounds of the real model; keeps one position in `every`, `most` at the most.

    `errors` are those of the laws at these positions, and after the last node of their drafts, accepted or not: the
    deeper a node the more its prefix differs from what is committed.
    """

    watch: Watch
    every: int = 4
    most: int = 256
    tick: Callable[[int], object] = lambda n: None
    kept: list[Kept] = field(default_factory=list)
    errors: list[float] = field(default_factory=list)
    _seen: int = 0

    def __call__(self, work: Round) -> None:
        """Take in a round."""
        self.watch(work)
        assert work.verdict is not None
        rows, nodes, _ = (t.tolist() for t in visited(work.draft, work.verdict))
        self.tick(len(rows))
        for b, node in zip(rows, nodes, strict=True):
            self._seen += 1
            if self._seen % self.every == 0 and len(self.kept) < self.most:
                self._keep(work, b, node)

    def _keep(self, work: Round, b: int, node: int) -> None:
        assert work.scores is not None
        row, out = work.rows[b], self._judge(work, b, node)
        self.kept.append(Kept(row.id, len(out), work.scores.logits[b, node].float().cpu().clone()))
        last = int(work.draft.length[b]) - 1
        if last != node:
            self._judge(work, b, last)

    def _judge(self, work: Round, b: int, node: int) -> list[int]:
        """Note the error of the law after a node; return the output up to and with it."""
        assert work.scores is not None
        row, path = work.rows[b], path_to(work.draft, b, node)
        out = [*row.tokens[row.prompt_len :], *path]
        if work.laws.probs is not None:
            used = work.laws.probs[b, node].double().cpu().numpy()
            logits = work.scores.logits[b, node].float().cpu()
            self.errors.append(law_error(used, logits, row.tokens[: row.prompt_len], out, row))
        return out


def path_to(draft: Draft, b: int, node: int) -> list[int]:
    """Return the drafted tokens from below the root to a node."""
    path: list[int] = []
    while node > 0:
        path.append(int(draft.tokens[b, node]))
        node = int(draft.parents[b, node])
    return path[::-1]


def law_error(used: Any, logits: Tensor, prompt: list[int], out: list[int], row: Any) -> float:
    """Return the total variation between the law a round used and the one the definitions give."""
    errors = []
    for met in _METS:
        want = next_law(logits.numpy(), prompt, out, row.params, row.eos_ids, met=met)
        errors.append(0.5 * float(np.abs(want - used).sum()))
        if errors[-1] < SAME_LAW:
            break
    return min(errors)


@dataclass
class Ran:
    """One finished request: its prompt's ids and what came of it, by the id of its sequence."""

    prompt: list[int]
    done: Completion
    row: int


def decode(
    llm: LLM, prompts: list[Any], params: list[SamplingParams], spy: Callable[[Round], None] | None
) -> list[Ran]:
    """Decode prompts as one batch, each round shown to `spy`."""
    ids: dict[tuple[int, ...], int] = {}

    def seen(work: Round) -> None:
        for row in work.rows:
            ids[(row.seed, *row.tokens[: row.prompt_len])] = row.id
        if spy is not None:
            spy(work)

    before, llm.engine.watch = llm.engine.watch, seen
    try:
        done = llm.generate(prompts, params)
    finally:
        llm.engine.watch = before
    encoded = [llm.encode(prompt) for prompt in prompts]
    return [Ran(e, d, ids[(d.seed, *e)]) for e, d in zip(encoded, done, strict=True)]


def seeded(params: SamplingParams, count: int, seed: int, **changes: Any) -> list[SamplingParams]:
    """Return the parameters once per prompt, each with a seed of its own: equal seeds would share numbers."""
    return [dataclasses.replace(params, seed=(seed + 7919 * k) % 2**63, **changes) for k in range(count)]


def shaping(spy: Spy) -> Check:
    """Check that the laws used are those of the definitions."""
    name = "the laws verified against are the target's, all parameters applied"
    if not spy.errors:
        return skipped(name, "no position was kept")
    worst = max(spy.errors)
    said = f"{len(spy.errors)} positions against the definitions in float64, largest total variation {worst:.1e}"
    return Check(name, "tested", said, passed=worst < SAME_LAW, numbers={"total_variation": worst})


def cache(llm: LLM, spy: Spy, runs: list[Ran]) -> Check:
    """Check that the verify passes saw the right cache: their logits are those of a fresh pass over the text."""
    name = "logits of the verify passes are those of a fresh pass"
    gaps = []
    for ran in runs:
        places = {k.place: k.logits for k in spy.kept if k.row == ran.row and k.place < len(ran.done.token_ids)}
        gaps += _gaps(llm, ran, places)
    if not gaps:
        return skipped(name, "no position was kept")
    exact = llm.opened.dtype == torch.float32
    longest = max(runs, key=lambda ran: len(ran.done.token_ids))
    chunk = llm.draft_tokens + 1
    tau = TAU_FLOAT32
    if not exact:
        tau = measured_tau(llm.engine.target, longest.prompt, longest.done.token_ids[:64], max(chunk, 16))
    # low precision: the measured tau is the largest of one text, so that one position in a hundred may exceed it
    beyond = sum(gap > tau for gap in gaps)
    passed = beyond <= (0 if exact else len(gaps) // 100)
    said = f"{len(gaps)} positions, largest difference {max(gaps):.2g}, tau {tau:.2g}, {beyond} beyond it"
    return Check(name, "tested", said, passed=passed, numbers={"largest": max(gaps), "tau": tau, "beyond": beyond})


def _gaps(llm: LLM, ran: Ran, places: dict[int, Tensor]) -> list[float]:
    found, done = [], 0
    if not places:
        return []
    for logits in replay(llm.engine.target, ran.prompt, ran.done.token_ids[: max(places) + 1], 32):
        rows = logits.cpu()
        found += [float((places[done + k] - row).abs().max()) for k, row in enumerate(rows) if done + k in places]
        done += len(rows)
    return found
