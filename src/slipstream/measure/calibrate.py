"""Fit a DSpark drafter's confidence to what its target accepts, and say how much that mends.

In: an opened `LLM`, a checkpoint, prompts. Out: a `Calibration` fitted to every round, and errors measured on rounds
it was not fitted to: one half of the prompts judges temperatures fitted to the other. The target decodes as it always
does, with whole blocks drafted, so that nothing is cut off before it is known to stand.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, cast

from slipstream import learned
from slipstream.drafters.calibration import Calibration, Outcome, fit, prefix_errors
from slipstream.types import RequestError, SamplingParams, WorkError

if TYPE_CHECKING:
    from slipstream.drafters.dspark import DSpark
    from slipstream.llm import LLM
    from slipstream.nets.draft_config import DraftCheckpoint

LEAST = 200  # rounds that must have reached a depth
ROWS = 4  # prompts decoded at once
Tick = Callable[[int, int], object]  # (prompts done, of how many)


@dataclass(frozen=True)
class Depth:
    """One depth: how often a draft stood that far, what confidence said of it, and by how much it was wrong.

    The errors are expected calibration errors of rounds not fitted to, with temperature 1 and with fitted ones.
    """

    rounds: int
    stood: float
    said: float
    temperature: float
    before: float
    after: float


@dataclass(frozen=True)
class Fitted:
    """The calibration and how good it is; `enough` rounds had to reach a depth for it to be fitted."""

    calibration: Calibration
    depths: list[Depth]
    rounds: int
    tokens: int
    enough: int

    @property
    def kept(self) -> list[int]:
        """The depths, from 1, that too few rounds reached: their temperature stays 1."""
        return [d for d, depth in enumerate(self.depths, 1) if depth.rounds < self.enough]

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {"rounds": self.rounds, "tokens": self.tokens, "depths": [asdict(depth) for depth in self.depths]}


def calibrate(
    llm: LLM,
    found: DraftCheckpoint,
    prompts: Seq[list[int]],
    params: SamplingParams,
    *,
    least: int = LEAST,
    tick: Tick | None = None,
) -> Fitted:
    """Let the target answer prompts (token ids, two or more) and fit temperatures to what it accepted.

    Raises `RequestError` for a drafter without a confidence head, `WorkError` when there were too few rounds.
    """
    check(found)
    if len(prompts) < 2:
        raise RequestError(f"{len(prompts)} prompts: at least 2 are needed, one half judges what the other fitted")
    options = {"schedule": "off"}
    drafter, net = learned.assemble(found, llm.opened, rows=llm.config.max_rows, options=options)
    halves, tokens = _collect(llm, cast("DSpark", drafter), prompts, params, tick)
    outcomes = halves[0] + halves[1]
    made = fit(outcomes, least=least, drafter=net.fingerprint, target=llm.opened.name)
    if max(made.counts, default=0) < least:
        raise WorkError(
            f"only {len(outcomes)} rounds in {tokens} tokens; at least {least} are needed: "
            f"use more prompts or a larger max_tokens"
        )
    return Fitted(made, _depths(halves, made, least), len(outcomes), tokens, least)


def check(found: DraftCheckpoint) -> None:
    """Refuse a drafter that has no confidence to calibrate."""
    kind, heads = found.config.algorithm, found.config.markov
    if kind != "dspark":
        raise RequestError(f"a drafter of kind {kind} says no confidence; only dspark has one to calibrate")
    if heads is None or heads.confidence == "none":
        raise RequestError("this dspark drafter has no confidence head: there is nothing to calibrate")


def _collect(
    llm: LLM, drafter: DSpark, prompts: Seq[list[int]], params: SamplingParams, tick: Tick | None
) -> tuple[tuple[list[Outcome], list[Outcome]], int]:
    """Decode the prompts a few at a time; return the outcomes of every other batch, and the tokens written."""
    drafting = llm.with_drafter(drafter, draft_tokens=learned.suggested(drafter.net.config))
    size = max(1, min(ROWS, llm.config.max_rows, len(prompts) // 2))
    halves: tuple[list[Outcome], list[Outcome]] = ([], [])
    tokens = 0
    for batch, at in enumerate(range(0, len(prompts), size)):
        drafter.collect = halves[batch % 2]
        done = drafting.generate(prompts[at : at + size], params)
        failed = next((c.error for c in done if c.error), None)
        if failed:
            raise WorkError(f"a prompt could not be answered: {failed}")
        tokens += sum(len(c.token_ids) for c in done)
        if tick is not None:
            tick(min(at + size, len(prompts)), len(prompts))
    return halves, tokens


def _depths(halves: tuple[list[Outcome], list[Outcome]], made: Calibration, least: int) -> list[Depth]:
    crossed = [fit(half, least=max(1, least // 2)).temperatures for half in reversed(halves)]
    before = _pooled(halves, [(), ()])
    after = _pooled(halves, crossed)
    outcomes, depths = halves[0] + halves[1], []
    for d, temperature in enumerate(made.temperatures):
        full = [o for o in outcomes if len(o.logits) > d]
        stood = sum(o.accepted > d for o in full) / len(full)
        said = sum(math.prod(_sigmoid(x) for x in o.logits[: d + 1]) for o in full) / len(full)
        depths.append(Depth(made.counts[d], stood, said, temperature, before[d], after[d]))
    return depths


def _pooled(halves: Seq[list[Outcome]], temperatures: Seq[Seq[float]]) -> list[float]:
    """Return the errors at each depth, each half under its temperatures, weighted by the rounds that got there."""
    total: list[float] = []
    weight: list[int] = []
    for half, heat in zip(halves, temperatures, strict=True):
        for d, error in enumerate(prefix_errors(half, heat)):
            if d == len(total):
                total.append(0.0)
                weight.append(0)
            n = sum(len(o.logits) > d for o in half)
            total[d] += n * error
            weight[d] += n
    return [t / n for t, n in zip(total, weight, strict=True)]


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))
