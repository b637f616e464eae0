"""Near-tie certificates under shared noise (rule `coupled`): every token wins its position's race, up to rounding.

In: an idle target, a finished output, its parameters and its noise (seed, sample). The race is run again on the
target's law at each position; a token that does not win it passes as a near-tie if it wins with its weight multiplied
by exp(tau / temperature), which is what a difference of tau between two logits is worth.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from slipstream.measure.certify import Certificate, chain_of, replay
from slipstream.types import SamplingParams, Sequence, Target

if TYPE_CHECKING:
    from torch import Tensor

    from slipstream.llm import Completion


def certify_draws(
    target: Target,
    prompt: list[int],
    found: Completion,
    params: SamplingParams,
    certificate: Certificate,
    *,
    chunk: int,
    eos_ids: tuple[int, ...],
) -> None:
    """Add every position of a sampled output to a certificate."""
    done, output = 0, found.token_ids
    for logits in replay(target, prompt, output, chunk):
        tokens = output[done : done + len(logits)]
        before = [*prompt, *output[:done]]
        row = Sequence(-1, before, len(prompt), params, found.seed, found.index, eos_ids)
        _judge_chunk(certificate, row, logits, tokens, done)
        done += len(tokens)


def _judge_chunk(certificate: Certificate, row: Sequence, logits: Tensor, tokens: list[int], start: int) -> None:
    """Judge tokens [T] by logits [T, V], the first of them at output position `start`."""
    from slipstream.sampling import RequestRngs, laws

    probs = laws([row], logits[None], chain_of([row.tokens[-1], *tokens[:-1]])).probs  # [1, T, V]
    assert probs is not None
    rngs = RequestRngs([row], shared_noise=True)
    boost = math.exp(min(certificate.tau / row.params.temperature, 80.0))
    for k, token in enumerate(tokens):
        weights = probs[:, k].double()
        if int(rngs.shared(weights, k + 1)) == token:
            certificate.exact += 1
            continue
        weights = weights.clone()
        weights[0, token] *= boost
        if int(rngs.shared(weights, k + 1)) == token:
            certificate.near_ties += 1
        else:
            certificate.refused.append((start + k, token, math.inf))
