"""Case 22: log-probabilities are the target's, one entry for every emitted token, whoever proposed it."""

from __future__ import annotations

import math

import pytest
from cases_kit import finish, make_engine, output, request

from slipstream.sampling import RequestRngs
from slipstream.testing import RandomLaw, SampledToy, ToyTarget, every_toy, greedy_toy, never_toy

VOCAB = 12
LAW = RandomLaw(VOCAB, 3)


def drafters() -> dict:
    return {
        "full": greedy_toy(LAW, VOCAB),
        "partial": every_toy(LAW, VOCAB, 3),
        "none": never_toy(LAW, VOCAB),
        "sampled": SampledToy(RandomLaw(VOCAB, 4), VOCAB),
    }


@pytest.mark.parametrize("kind", ["full", "partial", "none", "sampled"])
@pytest.mark.parametrize("temperature", [0.0, 1.0, 0.5])
@pytest.mark.parametrize("mode", ["raw_logprobs", "processed_logprobs"])
def test_case_22_every_token_has_the_targets_logprob(kind: str, temperature: float, mode: str) -> None:
    row = request(max_tokens=25, temperature=temperature, top_k=6 if temperature else 0, logprobs=3, seed=1)
    target = ToyTarget(LAW, VOCAB)
    finish(make_engine(target, drafters()[kind], 4, logprobs_mode=mode), row)
    prefix = tuple(row.tokens[: row.prompt_len])
    assert len(row.emitted) == 25
    for token in row.emitted:
        law = _law(prefix, temperature, mode)
        assert token.logprob == pytest.approx(math.log(law[token.id]), abs=1e-4)
        best = sorted(law, reverse=True)[:3]
        found = sorted((math.exp(v) for v in token.top_logprobs.values()), reverse=True)
        assert found[:3] == pytest.approx([b for b in best if b > 0], abs=1e-4) or len(found) < 3
        assert token.id in token.top_logprobs
        assert (token.logprob == 0.0) == (law[token.id] == 1.0)
        prefix += (token.id,)


def _law(prefix: tuple[int, ...], temperature: float, mode: str) -> list[float]:
    raw = list(LAW(prefix))
    if mode == "raw_logprobs":
        return raw
    if temperature == 0.0:
        best = max(range(VOCAB), key=lambda t: (raw[t], -t))
        return [float(t == best) for t in range(VOCAB)]
    kept = sorted(range(VOCAB), key=lambda t: -raw[t])[:6]
    powers = [raw[t] ** (1 / temperature) if t in kept else 0.0 for t in range(VOCAB)]
    return [p / sum(powers) for p in powers]


def test_case_22_a_stop_in_mid_block_has_no_entry_behind_it() -> None:
    target = ToyTarget(LAW, VOCAB)
    plain = request(max_tokens=10)
    finish(make_engine(target), plain)
    row = request(max_tokens=10, logprobs=0, stop_token_ids=[output(plain)[4]])
    finish(make_engine(ToyTarget(LAW, VOCAB), greedy_toy(LAW, VOCAB), 8), row)
    assert len(row.emitted) == len(output(row)) <= 5
    assert all(list(t.top_logprobs) == [t.id] for t in row.emitted)


def test_case_22_nothing_is_recorded_unless_asked() -> None:
    row = request(max_tokens=5)
    finish(make_engine(ToyTarget(LAW, VOCAB), make_rngs=RequestRngs), row)
    assert all(t.logprob is None and t.top_logprobs is None for t in row.emitted)
