"""What plain decoding means, written out: token by token, straight from the definitions, in plain Python floats."""

import math
from collections.abc import Sequence as Seq

import torch

from slipstream.testing import logits_of
from slipstream.testing.toys import Law
from slipstream.types import SamplingParams


def plain_run_law(
    law: Law, vocab: int, prompt: tuple[int, ...], params: SamplingParams, eos: Seq[int] = ()
) -> dict[tuple[int, ...], float]:
    """Return the exact law of a request's emitted tokens."""
    found: dict[tuple[int, ...], float] = {}
    open_runs: dict[tuple[int, ...], float] = {(): 1.0}
    for made in range(params.max_tokens or 0):
        longer: dict[tuple[int, ...], float] = {}
        for out, weight in open_runs.items():
            for token, p in enumerate(shaped(law, prompt, out, params, eos)):
                if p > 0:
                    ends = token in eos and made + 1 > params.min_tokens
                    (found if ends else longer)[(*out, token)] = weight * p
        open_runs = longer
    return found | open_runs


def shaped(
    law: Law, prompt: tuple[int, ...], out: tuple[int, ...], params: SamplingParams, eos: Seq[int]
) -> list[float]:
    """Return the target's law after prompt + out: bias, min_tokens, processors, penalties, temperature, cuts."""
    z = logits_of(law(prompt + out))
    for token, bias in (params.logit_bias or {}).items():
        z[token] += bias
    if len(out) < params.min_tokens:
        z = [-math.inf if t in eos else v for t, v in enumerate(z)]
    for processor in params.logits_processors:
        z = processor([*prompt, *out], torch.tensor(z, dtype=torch.float64)).tolist()
    for token in set(prompt + out):
        z[token] = z[token] / params.repetition_penalty if z[token] > 0 else z[token] * params.repetition_penalty
    for token in set(out):
        z[token] -= params.frequency_penalty * out.count(token) + params.presence_penalty
    w = [math.exp((v - max(z)) / params.temperature) for v in z]
    return cut([v / sum(w) for v in w], params)


def cut(p: list[float], params: SamplingParams) -> list[float]:
    """Apply min-p, then top-k, then top-p."""
    kept = [t for t in sorted(range(len(p)), key=lambda t: (-p[t], t)) if p[t] >= params.min_p * max(p)]
    if params.top_k > 0:
        kept = kept[: params.top_k]
    mass, head = sum(p[t] for t in kept), []
    for t in kept:
        head.append(t)
        if sum(p[t] for t in head) >= params.top_p * mass:
            break
    return [p[t] / sum(p[t] for t in head) if t in head else 0.0 for t in range(len(p))]
