"""What plain decoding means, written out from the definitions: one prefix, one row of logits, float64.

In: raw logits [V] after a prefix and the sampling parameters. Out: the law of the next token, or of a whole run. It
shares no code with `sampling`, batches nothing and knows no draft: what the engine does is judged by it.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Any, TypeAlias

import numpy as np
import torch

from slipstream.testing.toys import Law, logits_of
from slipstream.types import SamplingParams

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

MET = 1e-6  # a boundary of min-p or top-p met to within this is met


def plain_run_law(
    law: Law, vocab: int, prompt: tuple[int, ...], params: SamplingParams, eos: Seq[int] = ()
) -> dict[tuple[int, ...], float]:
    """Return the exact law of a request's emitted tokens when the target's law is `law` before any parameter."""
    found: dict[tuple[int, ...], float] = {}
    open_runs: dict[tuple[int, ...], float] = {(): 1.0}
    ends = () if params.ignore_eos else eos
    for made in range(params.max_tokens or 0):
        longer: dict[tuple[int, ...], float] = {}
        for out, weight in open_runs.items():
            row = next_law(np.array(logits_of(law(prompt + out))), prompt, out, params, eos)
            for token in np.flatnonzero(row).tolist():
                done = made + 1 > params.min_tokens and (token in ends or token in params.stop_token_ids)
                (found if done else longer)[(*out, token)] = weight * float(row[token])
        open_runs = longer
    return found | open_runs


def next_law(
    logits: Array, prompt: Seq[int], out: Seq[int], params: SamplingParams, eos: Seq[int] = (), *, met: float = MET
) -> Array:
    """Return the law [V] of the token after prompt + out: bias, min_tokens, processors, penalties, heat, cuts."""
    z = np.array(logits, dtype=np.float64)
    for token, value in (params.logit_bias or {}).items():
        z[token] += value
    if len(out) < params.min_tokens:
        z[[t for t in (*eos, *params.stop_token_ids) if t < len(z)]] = -np.inf
    for processor in params.logits_processors:
        z = processor([*prompt, *out], torch.from_numpy(z.copy())).numpy()
    _penalise(z, prompt, out, params)
    if params.greedy:
        return np.asarray(np.arange(len(z)) == z.argmax(), dtype=np.float64)
    w = np.exp((z - z.max()) / params.temperature)
    return _cut(w / w.sum(), params, met)


def _penalise(z: Array, prompt: Seq[int], out: Seq[int], params: SamplingParams) -> None:
    if params.repetition_penalty != 1.0:
        for token in {*prompt, *out}:
            z[token] = z[token] / params.repetition_penalty if z[token] > 0 else z[token] * params.repetition_penalty
    if params.frequency_penalty or params.presence_penalty:
        for token in set(out):
            z[token] -= params.frequency_penalty * list(out).count(token) + params.presence_penalty


def _cut(p: Array, params: SamplingParams, met: float) -> Array:
    """Apply min-p, then top-k, then top-p: each keeps a head of the order by probability, lower id first on a tie."""
    if params.min_p <= 0.0 and params.top_k <= 0 and params.top_p >= 1.0:
        return p
    order = np.argsort(-p, kind="stable")
    kept = order[p[order] >= params.min_p * p.max() * (1.0 - met)]
    if params.top_k > 0:
        kept = kept[: params.top_k]
    if params.top_p < 1.0:
        mass = p[kept].cumsum()
        kept = kept[: 1 + int(np.count_nonzero(mass[:-1] < params.top_p * mass[-1] * (1.0 - met)))]
    out = np.zeros_like(p)
    out[kept] = p[kept] / p[kept].sum()
    return out
