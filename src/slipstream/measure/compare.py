"""Speculation beside plain decoding: same target, same run, interleaved; a speed-up only where the outputs agree.

In: an `LLM` and prompts. Out: a `Comparison`. Plain decoding is drafter `none` in the same loop. Outputs agree if they
are equal or if every difference is a certified near-tie; without shared noise and at a temperature above 0 they are
two draws of one law and are not compared at all.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from dataclasses import dataclass
from typing import Any, Literal

from slipstream.llm import LLM, Completion
from slipstream.measure.agreement import float32_target
from slipstream.measure.certify import TAU_FLOAT32, Certificate, certify, cut_short, measured_tau
from slipstream.measure.certify_draws import certify_draws
from slipstream.measure.record import record
from slipstream.types import SamplingParams

Agreement = Literal["equal", "near-ties", "same law", "different"]

LEAST_REPEATS = 2
MOST_REPEATS = 5
ENOUGH_SECONDS = 40.0


@dataclass
class Comparison:
    """Both sides' first outputs and all speeds, in tokens per second of decoding (prefill apart)."""

    plain: list[Completion]
    drafted: list[Completion]
    plain_speeds: list[float]
    drafted_speeds: list[float]
    agreement: Agreement
    first_difference: dict[str, Any] | None
    certificate: Certificate | None
    record: dict[str, Any]

    @property
    def agrees(self) -> bool:
        """False if the outputs differ by more than rounding explains."""
        return self.agreement != "different"

    @property
    def passes_saved(self) -> float:
        """Plain target passes per drafted one: a speed-up above this is noise, since wider passes are not cheaper."""
        plain, drafted = (sum(s.stats["target_passes"] for s in side) for side in (self.plain, self.drafted))
        return plain / drafted if drafted else 1.0

    @property
    def speed_up(self) -> float | None:
        """Ratio of the median speeds; None if the outputs do not agree."""
        if not self.agrees:
            return None
        plain = statistics.median(self.plain_speeds)
        return statistics.median(self.drafted_speeds) / plain if plain else None

    def as_dict(self) -> dict[str, Any]:
        """Return the `compare` object of the JSON output."""
        return {
            "agreement": self.agreement,
            "speed_up": self.speed_up,
            "plain_tokens_per_second": statistics.median(self.plain_speeds),
            "tokens_per_second": statistics.median(self.drafted_speeds),
            "target_passes_ratio": self.passes_saved,
            "repeats": len(self.plain_speeds),
            "first_difference": self.first_difference,
            "certificate": self.certificate.as_dict() if self.certificate else None,
            "record": self.record,
        }


def compare(llm: LLM, prompts: list[Any], params: SamplingParams) -> Comparison:
    """Run both sides in turn, several times if that is cheap, and decide whether their outputs agree."""
    from slipstream.sampling import new_seed

    params = dataclasses.replace(params, seed=new_seed() if params.seed is None else params.seed)
    plain = llm.with_drafter("none")
    trace, llm.engine.trace = llm.engine.trace, None
    _warm_up(plain, llm, prompts[0], params)
    llm.engine.trace = trace
    sides = ((plain, []), (llm, []))  # type: tuple[tuple[LLM, list[tuple[list[Completion], float]]], ...]
    start, repeats = time.perf_counter(), 0
    while repeats < LEAST_REPEATS or (repeats < MOST_REPEATS and _another(start, repeats)):
        for side, runs in sides if repeats % 2 == 0 else sides[::-1]:
            runs.append(_timed(side, prompts, params))
        llm.engine.trace = None  # rounds are drawn once
        repeats += 1
    (_, plain_runs), (_, drafted_runs) = sides
    outputs = plain_runs[0][0], drafted_runs[0][0]
    agreement, certificate = _judge(llm, prompts, params, *outputs)
    return Comparison(
        *outputs,
        [speed for _, speed in plain_runs],
        [speed for _, speed in drafted_runs],
        agreement,
        _first_difference(*outputs),
        certificate,
        record(model=llm.opened.folder, drafter=llm.drafter_folder, prompts=prompts, device=llm.opened.device),
    )


def _another(start: float, repeats: int) -> bool:
    spent = time.perf_counter() - start
    return spent + spent / repeats <= ENOUGH_SECONDS


def _warm_up(plain: LLM, llm: LLM, prompt: Any, params: SamplingParams) -> None:
    short = dataclasses.replace(params, n=1, min_tokens=0, max_tokens=min(4, params.max_tokens or 4))
    for side in (plain, llm):
        side.generate(prompt, short)


def _timed(llm: LLM, prompts: list[Any], params: SamplingParams) -> tuple[list[Completion], float]:
    start = time.perf_counter()
    results = llm.generate(prompts, params)
    seconds = time.perf_counter() - start
    samples = [sample for result in results for sample in result.completions]
    seconds -= sum(s.stats["prefill_seconds"] for s in samples)
    return samples, sum(len(s.token_ids) for s in samples) / max(seconds, 1e-9)


def _judge(
    llm: LLM, prompts: list[Any], params: SamplingParams, plain: list[Completion], drafted: list[Completion]
) -> tuple[Agreement, Certificate | None]:
    if all(a.token_ids == b.token_ids for a, b in zip(plain, drafted, strict=True)):
        return "equal", None
    exact = params.greedy or llm.engine.rule.shared_noise
    if exact and any(cut_short(a.token_ids, b.token_ids) for a, b in zip(plain, drafted, strict=True)):
        return "different", None
    if not exact:
        return "same law", None
    if params.logits_processors or (params.greedy and not _bare(params)):
        return "different", None
    certificate = _certificate(llm, prompts, params, plain, drafted)
    return ("near-ties" if certificate.holds else "different"), certificate


def _bare(params: SamplingParams) -> bool:
    """Whether a greedy token is the argmax of the raw logits, which is what a certificate looks at."""
    neutral = params.repetition_penalty == 1.0 and params.presence_penalty == 0.0 and params.frequency_penalty == 0.0
    return neutral and not params.logit_bias and not params.min_tokens and not params.logits_processors


def _certificate(
    llm: LLM, prompts: list[Any], params: SamplingParams, plain: list[Completion], drafted: list[Completion]
) -> Certificate:
    import torch

    target, opened = llm.engine.target, llm.opened
    ids = [llm.encode(prompt) for prompt in prompts for _ in range(params.n)]
    pairs = [(p, d) for p, d, a in zip(ids, drafted, plain, strict=True) if a.token_ids != d.token_ids]
    exact = opened.dtype == torch.float32
    chunk = llm.draft_tokens + 1
    tau = TAU_FLOAT32 if exact else max(measured_tau(target, p, d.token_ids, chunk) for p, d in pairs)
    certificate = Certificate(tau)
    if not params.greedy:
        for prompt, found in pairs:
            certify_draws(target, prompt, found, params, certificate, chunk=1, eos_ids=tuple(llm.tokenizer.eos_ids))
        return certificate
    reference = float32_target(llm)
    for prompt, found in pairs:
        certify(reference, prompt, found.token_ids, certificate, None if exact else target)
    return certificate


def _first_difference(plain: list[Completion], drafted: list[Completion]) -> dict[str, Any] | None:
    for sample, (a, b) in enumerate(zip(plain, drafted, strict=True)):
        if a.token_ids != b.token_ids:
            pairs = enumerate(zip(a.token_ids, b.token_ids, strict=False))
            where = next((k for k, (x, y) in pairs if x != y), min(len(a.token_ids), len(b.token_ids)))
            return {
                "sample": sample,
                "position": where,
                "plain": a.token_ids[where : where + 1],
                "drafted": b.token_ids[where : where + 1],
            }
    return None
