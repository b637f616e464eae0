"""`slipstream tune`: the table, the stored profile, the flags for other engines."""

import json

import pytest

from slipstream.control.profile import flat
from slipstream.measure.tune import _difference, _fitted
from slipstream.measure.tune_text import flags
from slipstream.types import SamplingParams


@pytest.fixture
def suite(tmp_path):
    path = tmp_path / "mine.jsonl"
    lines = ["the cat sat on the mat and the cat sat on the mat and the cat", "one two three four five one two"]
    path.write_text("\n".join(json.dumps({"prompt": line}) for line in lines))
    return path


def test_tune_prints_a_table_and_stores_what_it_found(cli, tiny, other, suite, tmp_path, monkeypatch):
    monkeypatch.setattr("slipstream.profiles.profiles_dir", lambda: tmp_path / "profiles")
    argv = ("tune", "--model", str(tiny), "--dtype", "float32", "--suite", str(suite), "--seconds", "2")
    argv += ("--max-tokens", "20", "--drafter", f"lookup+draft_model:{other}")
    found = cli(*argv)
    assert found.status == 0, found.err
    for words in ("plain", "lookup", "draft_model", "auto", "predicted", "measured", "record: revision"):
        assert words in found.out
    (file,) = (tmp_path / "profiles").iterdir()
    rates = json.loads(file.read_text())["profile"]["rates"]
    assert any(name.startswith("draft_model@") for name in rates)
    as_json = cli(*argv, "--json").json
    assert {line["drafter"] for line in as_json["lines"]} == {"lookup", "draft_model"}
    assert as_json["plain_tokens_per_second"] > 0
    assert as_json["auto"]["speed_up"]["low"] <= as_json["auto"]["speed_up"]["value"]
    assert all(line["predicted"] > 0 for line in as_json["lines"])
    assert as_json["same_texts"]
    assert {"argv", "revision", "versions", "cpu", "model_hash", "drafter_hash", "prompts_hash"} <= set(
        as_json["record"]
    )


def test_nothing_to_tune(cli, tiny):
    found = cli("tune", "--model", str(tiny), "--drafter", "none")
    assert found.status == 2
    assert "nothing to tune" in found.err


def test_a_least_number_of_tokens_gives_way_to_the_time_there_is():
    params = SamplingParams(max_tokens=500, min_tokens=400)
    _, fitted = _fitted(flat(0.01), [[1, 2, 3]], params, seconds=2.0, runs=2)
    assert fitted.min_tokens <= fitted.max_tokens < 400
    _, same = _fitted(flat(0.01), [[1, 2, 3]], SamplingParams(max_tokens=40, min_tokens=4), seconds=2.0, runs=2)
    assert (same.max_tokens, same.min_tokens) == (40, 4)


def test_where_time_is_short_a_long_prompt_gives_way_to_short_ones_after_it():
    long, short = [0] * 1600, [0] * 32  # 5.0 and 0.1 seconds to read, and 0.1 seconds for each token
    kept, fitted = _fitted(flat(0.1), [short, long, short, short], SamplingParams(max_tokens=64), seconds=20.0, runs=2)
    assert [len(ids) for ids in kept] == [32, 32, 32]
    assert fitted.max_tokens == 32  # 10 seconds a run: 0.3 to read and 9.7 for 96 tokens
    kept, fitted = _fitted(flat(0.1), [short, long, short, short], SamplingParams(max_tokens=64), seconds=80.0, runs=2)
    assert [len(ids) for ids in kept] == [32, 1600, 32, 32]
    assert fitted.max_tokens == 64
    assert _fitted(flat(0.1), [long, short], SamplingParams(), seconds=0.1, runs=2)[0] == [long]


def test_flags_of_other_engines():
    vllm = flags("lookup", 8, "")["vllm"]
    assert json.loads(vllm.partition("'")[2].rstrip("'"))["method"] == "ngram"
    assert flags("eagle3", 4, "/x")["sglang"].startswith("--speculative-algorithm EAGLE3")
    assert "--speculative-num-draft-tokens 5" in flags("draft_model", 4, "/x")["sglang"]
    assert "--speculative-num-draft-tokens 16" in flags("dflash", 15, "/x")["sglang"]
    assert "sglang" not in flags("medusa", 4, "/x")


def test_two_drafters_of_a_kind_are_told_apart(cli, tiny, other, suite, tmp_path, monkeypatch):
    monkeypatch.setattr("slipstream.profiles.profiles_dir", lambda: tmp_path / "profiles")
    argv = ("tune", "--model", str(tiny), "--dtype", "float32", "--suite", str(suite), "--seconds", "1")
    argv += ("--max-tokens", "16", "--drafter", f"draft_model:{tiny}+draft_model:{other}", "--json")
    found = cli(*argv).json
    names = {line["drafter"]: line for line in found["lines"]}
    assert set(names) == {f"draft_model:{tiny.name}", f"draft_model:{other.name}"}
    own, others = (max(n["predicted_tokens"] for n in found["lines"] if n["folder"] == str(f)) for f in (tiny, other))
    assert own > 4 > others  # the target itself is always right
    measured = {n["drafter"]: n["tokens_per_pass"] for n in found["lines"] if n["draft_tokens"] == 8}
    assert measured[f"draft_model:{tiny.name}"] > 4 > measured[f"draft_model:{other.name}"]


def test_a_text_that_differs_is_named():
    assert _difference("lookup 4", [[1, 2], [3, 4]], [[1, 2], [3, 5]]) == ["lookup 4 (prompt 2, token 2)"]
    assert not _difference("lookup 4", [[1, 2]], [[1, 2]])
