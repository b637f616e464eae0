"""The Python face: shapes in and out, streams that can be left, several callers, wrong requests."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from slipstream import LLM, Completion, RequestError, SamplingParams, WorkError, load
from slipstream.drafters.none import NoDraft
from tiny_model import make_model

TEXT = "the cat sat on the mat"
SHORT = SamplingParams(max_tokens=6, ignore_eos=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("llm"))


@pytest.fixture(scope="module")
def llm(folder: Path) -> LLM:
    return LLM(str(folder), "lookup", dtype="float32", max_rows=3)


@pytest.fixture(autouse=True)
def _left_clean(llm: LLM):
    yield
    assert llm.engine.idle, "a test left a request behind"


def test_one_in_one_out_and_list_in_list_out(llm):
    one = llm.generate(TEXT, SHORT)
    assert isinstance(one, Completion)
    assert len(one.token_ids) == 6
    assert one.text == llm.tokenizer.decode(one.token_ids)
    assert one.completions == [one]
    (same,) = llm.generate([TEXT], SHORT)
    assert same.token_ids == one.token_ids


def test_every_kind_of_prompt(llm):
    ids = llm.tokenizer.encode(TEXT)
    messages = [{"role": "user", "content": TEXT}]
    text, by_ids = llm.generate(TEXT, SHORT), llm.generate(ids, SHORT)
    assert by_ids.token_ids == text.token_ids
    assert by_ids.prompt_tokens == len(ids)
    chat = llm.generate(messages, SHORT)
    assert chat.prompt_tokens == len(ids) + 3
    assert llm.chat(messages, SHORT).token_ids == chat.token_ids
    mixed = llm.generate([TEXT, ids, messages], SHORT)
    assert [c.token_ids for c in mixed] == [text.token_ids, by_ids.token_ids, chat.token_ids]


def test_params_per_prompt_and_as_a_dictionary(llm):
    found = llm.generate([TEXT, TEXT], [{"max_tokens": 2, "ignore_eos": True}, SHORT])
    assert [len(c.token_ids) for c in found] == [2, 6]
    with pytest.raises(RequestError, match="1 sampling_params for 2 prompts"):
        llm.generate([TEXT, TEXT], [SHORT])
    with pytest.raises(RequestError, match="max_tokens"):
        llm.generate(TEXT, {"max_tokns": 2})


def test_more_requests_than_rows_equal_one_by_one(llm):
    prompts = [f"{TEXT} {k}" for k in range(7)]
    together = llm.generate(prompts, SHORT)
    assert [c.token_ids for c in together] == [llm.generate(p, SHORT).token_ids for p in prompts]


def test_n_samples_differ_and_repeat_with_the_seed(llm):
    params = SamplingParams(n=3, temperature=1.0, seed=5, max_tokens=8, ignore_eos=True)
    first, again = llm.generate(TEXT, params), llm.generate(TEXT, params)
    assert [c.index for c in first.completions] == [0, 1, 2]
    assert len({tuple(c.token_ids) for c in first.completions}) == 3
    assert [c.token_ids for c in first.completions] == [c.token_ids for c in again.completions]


def test_seed_of_the_llm_serves_requests_without_one(folder):
    params = SamplingParams(temperature=1.0, max_tokens=8, ignore_eos=True)
    a, b = (LLM(str(folder), "none", dtype="float32", seed=0).generate(TEXT, params) for _ in range(2))
    assert a.token_ids == b.token_ids
    assert a.seed == 0
    unseeded = LLM(str(folder), "none", dtype="float32")
    assert unseeded.generate(TEXT, params).seed != unseeded.generate(TEXT, params).seed


def test_stream_adds_up_to_generate(llm):
    whole = llm.generate(TEXT, SHORT)
    deltas = list(llm.stream(TEXT, SHORT))
    assert "".join(d.text for d in deltas) == whole.text
    assert [i for d in deltas for i in d.token_ids] == whole.token_ids
    assert [d.finish_reason for d in deltas][-1] == "length"
    assert deltas[-1].completion.token_ids == whole.token_ids
    assert all(d.completion is None for d in deltas[:-1])


def test_leaving_a_stream_frees_its_row_and_the_engine_goes_on(llm):
    before = llm.generate(TEXT, SHORT).token_ids
    for _ in range(5):  # more often than there are rows
        stream = llm.stream(TEXT, SamplingParams(max_tokens=100, ignore_eos=True))
        next(stream)
        assert not llm.engine.idle
        stream.close()
        assert llm.engine.idle
    assert llm.generate(TEXT, SHORT).token_ids == before


def test_two_streams_in_turn(llm):
    other = "one two three"
    alone = [llm.generate(p, SHORT).token_ids for p in (TEXT, other)]
    streams = llm.stream(TEXT, SHORT), llm.stream(other, SHORT)
    ids: list[list[int]] = [[], []]
    for pair in itertools.zip_longest(*streams):
        for k, delta in enumerate(pair):
            ids[k] += delta.token_ids if delta else []
    assert ids == alone


def test_a_round_run_by_another_caller_is_not_taken_for_a_lost_request(llm, monkeypatch):
    """Another thread may run the last round between any two looks at the engine."""
    before = llm.generate(TEXT, SHORT).token_ids

    def idle(engine):
        while not engine.scheduler.idle:
            for delta in engine.step():
                delta.sequence.request.append(delta)
        return True

    monkeypatch.setattr(type(llm.engine), "idle", property(idle))
    assert llm.generate(TEXT, SHORT).token_ids == before


def test_threads_share_an_llm(llm):
    prompts = [f"{TEXT} {k}" for k in range(8)]
    alone = [llm.generate(p, SHORT).token_ids for p in prompts]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(5):
            together = list(pool.map(lambda p: llm.generate(p, SHORT).token_ids, prompts))
            assert together == alone


def test_a_request_ended_by_somebody_else_says_so(llm):
    stream = llm.stream(TEXT, SamplingParams(max_tokens=50, ignore_eos=True))
    next(stream)
    llm.engine.abort(llm.engine.scheduler.rows[0])
    with pytest.raises(WorkError, match="ended by somebody else"):
        next(stream)


def test_an_exception_in_the_middle_leaves_the_engine_usable(llm, monkeypatch):
    before = llm.generate(TEXT, SHORT).token_ids
    score, calls = llm.engine.target.score, itertools.count()

    def failing(slots, draft):
        if next(calls) == 2:
            raise MemoryError
        return score(slots, draft)

    monkeypatch.setattr(llm.engine.target, "score", failing)
    with pytest.raises(Exception, match="out of memory while decoding"):
        llm.generate(TEXT, SHORT)
    assert llm.engine.idle
    assert llm.generate(TEXT, SHORT).token_ids == before


def test_nothing_is_admitted_if_one_prompt_of_a_list_is_wrong(llm):
    with pytest.raises(RequestError, match="prompt is empty"):
        llm.generate([TEXT, ""], SHORT)
    assert llm.engine.idle


@pytest.mark.parametrize(
    ("prompts", "words"),
    [
        ([], "prompts is empty"),
        ("", "prompt is empty"),
        ([[]], "prompt is empty"),
        (None, "prompts must be text"),
        ([1.5], "a prompt must be text"),
        ([True, False], "a prompt must be text"),
        ([-1], "prompt token -1"),
        ([10**6], "prompt token 1000000"),
        ([1] * 128, "128 tokens, which leaves no room in a context of 128"),
    ],
)
def test_wrong_prompts(llm, prompts, words):
    with pytest.raises(RequestError, match=words):
        llm.generate(prompts, SHORT)


def test_the_longest_prompt_that_fits_gives_one_token(llm):
    found = llm.generate([1] * 127, SamplingParams(max_tokens=50, ignore_eos=True))
    assert len(found.token_ids) == 1
    assert found.finish_reason == "length"


def test_constructor_refuses_before_loading_anything(folder):
    for wrong, words in (
        ({"drafter": "lokup"}, "lookup"),
        ({"verify": "fast"}, "unknown verify"),
        ({"quantize": "int7"}, "int4, w8a8"),
        ({"draft_tokens": 2.5}, "whole number"),
        ({"drafter": "none", "speculative_config": {"method": "ngram"}}, "say the same thing"),
        ({"drafter": object()}, "propose, observe and forget"),
        ({"logprobs_mode": "raw"}, "raw_logprobs"),
    ):
        with pytest.raises(RequestError, match=words):
            LLM("/no/such/model", **wrong)
    with pytest.raises(RequestError, match="target 'hff'"):
        LLM(str(folder), target="hff")


def test_drafter_object_and_vllm_dictionary(folder, llm):
    plain = LLM(str(folder), NoDraft(), dtype="float32")
    assert plain.drafter == "none"
    assert plain.generate(TEXT, SHORT).token_ids == llm.generate(TEXT, SHORT).token_ids
    config = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4}
    by_config = load(str(folder), dtype="float32", speculative_config=config)
    assert (by_config.drafter, by_config.draft_tokens) == ("lookup", 3)
    assert by_config.engine.drafter.options.max_ngram == 4
    off = load(str(folder), dtype="float32", speculative_config={"method": "ngram", "num_speculative_tokens": 0})
    assert off.drafter == "none"


def test_with_drafter_shares_the_target(llm, folder):
    other = llm.with_drafter(str(folder), draft_tokens=3)
    assert other.engine.target is llm.engine.target
    found = other.generate(TEXT, SHORT)
    assert found.token_ids == llm.generate(TEXT, SHORT).token_ids
    assert found.stats["num_accepted_tokens"] > 0


def test_two_llms_on_one_target_take_turns(llm):
    before = llm.generate(TEXT, SHORT).token_ids
    other = llm.with_drafter("none")
    stream = llm.stream(TEXT, SHORT)
    ids = next(stream).token_ids
    with pytest.raises(RequestError, match="still decoding"):
        other.generate("one two three", SHORT)
    assert ids + [i for delta in stream for i in delta.token_ids] == before
    assert other.generate(TEXT, SHORT).token_ids == before


def test_progress_goes_to_stderr(llm, capsys):
    llm.generate([TEXT, TEXT], SHORT, progress=True)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "2/2" in captured.err


def test_importing_the_package_does_not_import_torch():
    import subprocess
    import sys

    code = "import sys, slipstream; slipstream.LLM, slipstream.SamplingParams(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
