"""Case 28: n samples of one request: own index, own end, own stream, the target's law, and nobody else harmed."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path

import pytest
from cases_kit import finish, make_engine, output, request, total_variation

from slipstream import LLM, RequestError, SamplingParams
from slipstream.cli import main
from slipstream.testing import RandomLaw, SampledToy, ToyTarget
from slipstream.types import Sequence
from tiny_model import make_model

VOCAB = 6
LAW, GUESS = RandomLaw(VOCAB, 4), RandomLaw(VOCAB, 5)
PROMPT = "the cat sat on the mat and the cat sat on"
HOT = SamplingParams(n=3, temperature=1.0, seed=5, max_tokens=24)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("case28")
    return make_model(root / "target"), make_model(root / "draft", seed=1)


@pytest.fixture(scope="module", params=["none", "lookup", "draft_model"])
def llm(request: pytest.FixtureRequest, folders: tuple[Path, Path]) -> LLM:
    spec = f"draft_model:{folders[1]}" if request.param == "draft_model" else request.param
    return LLM(str(folders[0]), spec, dtype="float32", max_rows=2)  # fewer rows than samples


def samples(n: int, seed: int, **params: object) -> list[Sequence]:
    rows = [request(k, seed=seed, temperature=1.0, n=n, **params) for k in range(n)]
    for k, row in enumerate(rows):
        row.sample = k
    return rows


def test_case_28_three_warm_samples_differ_and_repeat_with_the_seed(llm: LLM) -> None:
    first, again = llm.generate(PROMPT, HOT).completions, llm.generate(PROMPT, HOT).completions
    assert [s.index for s in first] == [0, 1, 2]
    assert len({tuple(s.token_ids) for s in first}) == 3
    assert [s.token_ids for s in first] == [s.token_ids for s in again]


def test_case_28_three_greedy_samples_are_one_text(llm: LLM) -> None:
    cold = SamplingParams(n=3, max_tokens=16, ignore_eos=True)
    found, alone = llm.generate(PROMPT, cold).completions, llm.generate(PROMPT, {"max_tokens": 16, "ignore_eos": True})
    assert [s.token_ids for s in found] == [alone.token_ids] * 3
    assert [s.text for s in found] == [alone.text] * 3


def test_case_28_a_sample_does_not_depend_on_how_many_there_are(llm: LLM) -> None:
    whole = llm.generate(PROMPT, HOT).completions
    fewer = llm.generate(PROMPT, {"n": 2, "temperature": 1.0, "seed": 5, "max_tokens": 24}).completions
    assert [s.token_ids for s in fewer] == [s.token_ids for s in whole[:2]]


def test_case_28_samples_end_where_they_end(llm: LLM) -> None:
    """The end-of-text id is likely enough that each sample meets it somewhere else, if at all."""
    likely_end = {"n": 3, "temperature": 1.0, "seed": 5, "max_tokens": 24, "logit_bias": {0: 3.0}}
    found = llm.generate(PROMPT, likely_end).completions
    assert len({len(s.token_ids) for s in found}) > 1
    for sample in found:
        stopped = sample.finish_reason == "stop"
        assert stopped == (sample.token_ids[-1] == 0)
        assert stopped or len(sample.token_ids) == 24
        assert 0 not in sample.token_ids[:-1]


def test_case_28_two_samples_streamed_with_logprobs(llm: LLM) -> None:
    params = SamplingParams(n=2, temperature=1.0, seed=5, max_tokens=10, logprobs=2, ignore_eos=True)
    whole = llm.generate(PROMPT, params).completions
    deltas = list(llm.stream(PROMPT, params))
    assert {d.index for d in deltas} == {0, 1}
    for k, sample in enumerate(whole):
        own = [d for d in deltas if d.index == k]
        assert [i for d in own for i in d.token_ids] == sample.token_ids
        assert "".join(d.text for d in own) == sample.text
        assert [d.finish_reason for d in own if d.finish_reason] == ["length"]
        tokens = [t for d in own for t in d.tokens]
        assert [entry["token"] for entry in sample.logprobs] == sample.token_ids == [t.id for t in tokens]
        assert all(t.logprob <= 0 and len(t.top_logprobs) in (2, 3) for t in tokens)


def test_case_28_usage_of_all_samples_is_there(folders: tuple[Path, Path]) -> None:
    out = io.StringIO()
    args = ["generate", PROMPT, "--model", str(folders[0]), "--json", "--n", "3", "--temperature", "1", "--seed", "5"]
    with contextlib.redirect_stdout(out):
        assert main([*args, "--max-tokens", "6"]) == 0
    found = json.loads(out.getvalue())["completions"]
    assert len(found) == 3
    assert all(c["usage"]["completion_tokens"] == len(c["token_ids"]) == c["stats_tokens"] for c in with_sums(found))


def with_sums(found: list[dict]) -> list[dict]:
    """Tokens as the counters have them: passes times the mean length."""
    for one in found:
        one["stats_tokens"] = round(one["stats"]["target_passes"] * one["stats"]["mean_acceptance_length"])
    return found


@pytest.mark.parametrize("rule", ["chain", "block", "coupled"])
def test_case_28_every_sample_has_the_targets_law(rule: str) -> None:
    """800 requests of three samples through the engine: each index alone follows the law, and so do pairs of them."""
    runs, counts, equal = 800, [{} for _ in range(3)], 0
    engine = make_engine(ToyTarget(LAW, VOCAB), SampledToy(GUESS, VOCAB), 2, rule)
    for seed in range(runs):
        rows = samples(3, seed, max_tokens=2)
        finish(engine, *rows)
        for k, row in enumerate(rows):
            counts[k][output(row)[1]] = counts[k].get(output(row)[1], 0) + 1
        equal += output(rows[0]) == output(rows[1])
    first = LAW((1, 2))
    law = [sum(first[a] * LAW((1, 2, a))[b] for a in range(VOCAB)) for b in range(VOCAB)]
    for one in counts:
        assert total_variation(one, law) < 0.05
    same = sum((first[a] * LAW((1, 2, a))[b]) ** 2 for a in range(VOCAB) for b in range(VOCAB))
    assert abs(equal / runs - same) < 0.05  # as often alike as two independent draws are


def test_case_28_samples_that_share_a_stream_are_told_apart() -> None:
    """Negative control: with one sample number for all, the samples are copies of each other."""
    rows = samples(3, 5, max_tokens=12)
    for row in rows:
        row.sample = 0
    finish(make_engine(ToyTarget(LAW, VOCAB), SampledToy(GUESS, VOCAB), 2), *rows)
    assert output(rows[0]) == output(rows[1]) == output(rows[2])


def test_case_28_a_failing_sample_leaves_the_others_alone() -> None:
    """One sample walks into logits that are not finite; its siblings end as they do without it."""
    calm = samples(3, 7, max_tokens=8)
    finish(make_engine(ToyTarget(LAW, VOCAB)), *calm)
    expected = [output(row) for row in calm]
    target = ToyTarget(LAW, VOCAB)
    broken = (1, 2, *expected[1][:3])
    assert all(tuple(ids[:3]) != broken[2:] for ids in (expected[0], expected[2]))
    target.poison = lambda prefix: tuple(prefix[: len(broken)]) == broken
    rows = samples(3, 7, max_tokens=8)
    finish(make_engine(target), *rows)
    assert [row.finish_reason for row in rows] == ["length", "error", "length"]
    assert [output(rows[0]), output(rows[2])] == [expected[0], expected[2]]


@pytest.mark.parametrize("n", [0, -1, 1.5, True, "3"])
def test_case_28_an_impossible_n_is_refused_at_admission(llm: LLM, n: object) -> None:
    with pytest.raises(RequestError, match=r"n=.* cannot be used: give a whole number, 1 or more"):
        llm.stream(PROMPT, {"n": n})
    assert llm.engine.idle
