"""Teacher forcing against the truth: production rules enumerated, and the engine's own counts on a tiny model."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from slipstream import LLM, SamplingParams
from slipstream.measure.predict_model import answered, check, forecast, segments
from slipstream.measure.predict_offline import _block, _chances, walker
from slipstream.measure.predict_walk import Profile, round_counts, starts
from slipstream.sampling import RequestRngs
from slipstream.testing import SampledToy, make_round, mean_emitted, memoryless
from slipstream.types import RequestError, Sequence
from slipstream.verify import RULES
from tiny_model import make_model

P, Q, DEPTH = (0.1, 0.6, 0.3), (0.6, 0.25, 0.15), 3
PROMPTS = ["the cat sat on the mat and the cat", "one two three four five one two", "the dog sat on the log"]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("other"), seed=1)


def flat(longest: int) -> Profile:
    ones = np.ones((3, 2))
    return Profile([0, longest], ones, ones * 0)


@pytest.mark.parametrize("rule", ["chain", "block"])
def test_given_the_text_survival_is_what_the_production_rule_keeps(rule):
    """Average over all texts, weighted by p, the chance that k tokens were drafted ones: 1 + its sum is what the rule
    emits on average, by enumeration of the rule itself."""
    ratio = np.log(np.array(Q) / np.array(P))
    total = 1.0
    for k in range(1, DEPTH + 1):
        for text in itertools.product(range(3), repeat=k):
            weight = math.prod(P[x] for x in text)
            logs = ratio[list(text)]
            kept = _block(logs) if rule == "block" else np.cumprod(np.exp(np.minimum(logs, 0)))
            total += weight * kept[-1]
    one_round = make_round(memoryless(*P), SampledToy(memoryless(*Q), 3), RULES[rule], DEPTH)
    assert total == pytest.approx(mean_emitted(one_round((0,))), abs=1e-12)


def test_shared_noise_meets_as_often_as_the_formula_says():
    p, q = torch.tensor([P], dtype=torch.float64), torch.tensor([Q], dtype=torch.float64)
    together = sum(P[x] * float(_chances(p, q, torch.tensor([x]))[2]) for x in range(3))
    met, count = 0, 4000
    for seed in range(count):
        row = Sequence(0, [0], 1, SamplingParams(temperature=1.0), seed=seed)
        rngs = RequestRngs([row], shared_noise=True)
        met += int(rngs.shared(p, 1)[0]) == int(rngs.shared(q, 1)[0])
    assert met / count == pytest.approx(together, abs=0.025)


@pytest.mark.parametrize("drafter", ["lookup", "draft_model"])
def test_greedy_walks_count_the_very_rounds_the_engine_needs(tiny, other, drafter):
    spec = drafter if drafter == "lookup" else f"draft_model:{other}"
    llm = LLM(str(tiny), spec, dtype="float32", draft_tokens=4, max_rows=1)
    params = SamplingParams(max_tokens=40, ignore_eos=True)
    texts = answered(llm, PROMPTS, params)
    walk = walker(llm, params, 4)
    for text in texts:
        done = llm.generate(text.prompt, params)
        assert done.token_ids == text.output
        counts = round_counts(walk(text))
        assert counts.sum() == pytest.approx(done.stats["target_passes"])
        assert counts @ np.arange(5) == pytest.approx(done.stats["num_draft_tokens"])


def test_sampled_walks_agree_with_rounds_that_were_run(tiny, other):
    llm = LLM(str(tiny), f"draft_model:{other}", dtype="float32", draft_tokens=3, max_rows=1)
    params = [SamplingParams(max_tokens=40, ignore_eos=True, temperature=1.5, seed=s) for s in range(16)]
    walk = walker(llm, params[0], 3)
    predicted = [starts(walk(answered(llm, [PROMPTS[0]], p)[0])).sum() for p in params]
    passes = [llm.generate(PROMPTS[0], p).stats["target_passes"] for p in params]
    error = math.hypot(np.std(predicted), np.std(passes)) / math.sqrt(len(params))
    assert abs(np.mean(predicted) - np.mean(passes)) < 3.5 * error + 1e-9
    assert np.std(predicted) < np.std(passes) + 1.0  # no coins: less noise than running it


def test_a_draft_model_equal_to_the_target_is_always_right(tiny):
    llm = LLM(str(tiny), f"draft_model:{tiny}", dtype="float32", draft_tokens=4, max_rows=1)
    found = forecast(
        llm, answered(llm, PROMPTS, SamplingParams(max_tokens=41, ignore_eos=True)), SamplingParams(), timed=flat(12)
    )
    assert found.prediction.curve[4].tokens_per_round == pytest.approx(41 / 9)  # 8 rounds of 5, and one token
    assert found.tokens == 123


def test_a_given_text_is_walked_in_segments_with_what_precedes_them(tiny):
    llm = LLM(str(tiny), "lookup", dtype="float32", max_rows=1)
    content = "the cat sat on the mat and the dog sat on the log. " * 30
    texts = segments(llm, "file", content)
    ids = llm.tokenizer.encode(content)
    assert sum(len(t.output) for t in texts) in (len(ids) - 32, len(ids) - 33)
    assert all(len(t.prompt) + len(t.output) < llm.max_model_len for t in texts)
    found = forecast(llm, texts, SamplingParams(), timed=flat(12)).prediction
    assert found.curve[10].tokens_per_round > 5  # it repeats
    assert found.low <= found.speedup <= found.high
    with pytest.raises(RequestError, match="at least 34"):
        segments(llm, "short", "the cat")


def test_the_profile_times_every_size_and_leaves_target_and_drafter_empty(tiny, other):
    llm = LLM(str(tiny), f"draft_model:{other}", dtype="float32", draft_tokens=2, max_rows=1)
    params = SamplingParams(temperature=1.0, seed=1, max_tokens=20)
    before = llm.generate(PROMPTS[0], params).token_ids
    texts = answered(llm, PROMPTS, params)
    found = forecast(llm, texts, params, draft_tokens=2)
    assert found.profile.sizes == [0, 1, 2]
    assert (found.profile.rounds > 0).all()
    assert np.median(found.profile.drafts[:, 2]) > np.median(found.profile.drafts[:, 0])
    assert llm.generate(PROMPTS[0], params).token_ids == before
    assert check(llm, texts, params, repeats=1).value > 0


def test_what_cannot_be_predicted_is_refused(tiny):
    llm = LLM(str(tiny), "none", dtype="float32", max_rows=1)
    texts = answered(llm, PROMPTS[:1], SamplingParams(max_tokens=8, ignore_eos=True))
    with pytest.raises(RequestError, match="drafter none"):
        forecast(llm, texts, SamplingParams(), timed=flat(12))
    with pytest.raises(RequestError, match="draft_tokens=0"):
        forecast(llm.with_drafter("lookup"), texts, SamplingParams(), draft_tokens=0, timed=flat(12))
