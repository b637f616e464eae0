"""Greedy decoding on the real model: every token is the float32 argmax or a certified near-tie, at every position.

In: an `LLM` and prompts. Out: `Check`s. Checks every position of the drafted output against a pass that never saw a
draft, so a wrong cache or a wrong row shows even after the first difference.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from slipstream import build
from slipstream.config import TargetConfig
from slipstream.measure.audit.findings import Check
from slipstream.measure.audit.real import Ran, decode
from slipstream.measure.certify import TAU_FLOAT32, Certificate, certify, measured_tau
from slipstream.types import SamplingParams, Target

if TYPE_CHECKING:
    from slipstream.llm import LLM

NAME = "greedy tokens are the model's argmax, or certified near-ties"


def greedy(llm: LLM, prompts: list[Any], tokens: int, tick: Any = lambda n: None) -> list[Check]:
    """Decode greedily and certify; then plant one wrong token, which must be refused."""
    params = SamplingParams(temperature=0.0, max_tokens=tokens)
    runs = decode(llm, prompts, [params] * len(prompts), lambda work: tick(len(work.rows)))
    reference = _reference(llm)
    certificate = certificate_of(llm, reference, runs)
    return [_check(certificate), _control(llm, reference, runs[0], certificate.tau)]


def certificate_of(llm: LLM, reference: Target, runs: list[Ran]) -> Certificate:
    """Certify every position of finished greedy outputs."""
    exact = llm.opened.dtype == torch.float32
    target = llm.engine.target
    chunk = llm.draft_tokens + 1
    tau = TAU_FLOAT32 if exact else max(measured_tau(target, r.prompt, r.done.token_ids, chunk) for r in runs[:2])
    certificate = Certificate(tau)
    for ran in runs:
        certify(reference, ran.prompt, ran.done.token_ids, certificate, None if exact else target)
    return certificate


def _reference(llm: LLM) -> Target:
    opened = llm.opened
    if opened.dtype == torch.float32:
        return opened.target
    config = TargetConfig(
        model=str(opened.folder), kind=opened.kind, dtype="float32", device=opened.device, max_len=llm.max_model_len
    )
    return build.open_target(config, rows=1).target


def _check(found: Certificate) -> Check:
    said = (
        f"{found.exact} tokens exact, {found.near_ties} near-ties, {len(found.refused)} refused, "
        f"largest gap {found.largest_gap:.2g}, tau {found.tau:.2g}"
    )
    return Check(NAME, "tested", said, passed=found.holds, numbers=found.as_dict())


def _control(llm: LLM, reference: Target, ran: Ran, tau: float) -> Check:
    """One token replaced by another must be refused at its place."""
    output = list(ran.done.token_ids)
    at = len(output) // 2
    output[at] = (output[at] + 1) % llm.engine.target.caps.vocab
    found = Certificate(tau)
    certify(reference, ran.prompt, output, found)
    flagged = at in [position for position, _, _ in found.refused]
    said = f"token {at} of {len(output)} replaced: " + ("refused" if flagged else "NOT refused")
    return Check("planted: one wrong token in a greedy output", "control", said, passed=flagged)
