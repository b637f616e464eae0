"""The commands as people type them: numbers at once, a tiny model, pages that are written whole, errors that help."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from slipstream.measure.suites import KNOWN

TEXT = "the cat sat on the mat and the dog sat on the log. one two three four five. "

NUMBERS = ("--alpha", "0.8", "--cost-ratio", "0.1")
IDLE_BESIDE_NUMBERS = (
    "--quantize",
    "--top-k",
    "--stop",
    "--temperature",
    "--seed",
    "--max-tokens",
    "--count",
    "--drafter",
)
IDLE_BESIDE_TEXT = ("--count", "--task", "--max-tokens", "--stop", "--seed")


def test_numbers_need_no_model_and_no_torch():
    code = (
        "import sys; from slipstream.cli import main; "
        "status = main(['predict', '--alpha', '0.8', '--cost-ratio', '0.1']); "
        "assert 'torch' not in sys.modules and 'numpy' not in sys.modules; sys.exit(status)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "predicted speed-up: 2.47x with 6 tokens drafted per round" in done.stdout
    assert "<- best" in done.stdout


def test_numbers_as_json_and_as_a_page(cli, tmp_path):
    page = tmp_path / "out.html"
    argv = ("--acceptance", "0.9,0.8,0.7", "--cost-ratio", "0.1", "--draft-tokens", "2")
    found = cli("predict", *argv, "--json", "--report", str(page))
    assert found.status == 0
    assert found.json["speedup"] == pytest.approx((1 + 0.9 + 0.72) / 1.2)
    assert [p["draft_tokens"] for p in found.json["curve"]] == [0, 1, 2, 3]
    assert page.read_text().startswith("<!doctype html>")
    shorthand = cli("predict", "--tokens-per-round", "3", "--cost-ratio", "0.25", "--draft-tokens", "4", "--json")
    assert shorthand.json == {"speedup": 1.5}


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ((), "got nothing"),
        (("--alpha", "0.8"), "--cost-ratio"),
        (("--alpha", "1.8", "--cost-ratio", "0.1"), "acceptance 1.8"),
        (("--alpha", "0.8", "--cost-ratio", "0.1", "--text", "x"), "--alpha and --text"),
        (("--alpha", "0.8", "--cost-ratio", "0.1", "--check"), "--check has no effect"),
        (("--acceptance", "0.8;0.7", "--cost-ratio", "0.1"), "separated by commas"),
        (("--tokens-per-round", "0.8", "--cost-ratio", "0.1", "--draft-tokens", "2"), "below 1"),
        *(((*NUMBERS, option, "1"), f"{option} has no effect without") for option in IDLE_BESIDE_NUMBERS),
        ((*NUMBERS, "--verify", "block"), "--verify has no effect without --text or --suite"),
        ((*NUMBERS, "--model", "smollm2-135m-instruct"), "--model has no effect"),
        *((("--text", "x", option, "2"), f"{option} has no effect with --text") for option in IDLE_BESIDE_TEXT),
        (("--suite", "demo", "--logprobs", "1"), "--logprobs has no effect"),
        (("--suite", "demo", "--n", "2"), "--n has no effect"),
        (("--suite", "demo", "--count", "0"), "--count 0 must be at least 1"),
        (("--suite", "demo", "--count", "-3"), "--count -3 must be at least 1"),
        (("--text", "/no/such/file"), "cannot be read"),
        (("--text", "x", "--cost-ratio", "0.1"), "costs are measured"),
        (("--alpha", "0.8", "--cost-ratio", "0.1", "--report", "/no/such/folder/x.html"), "cannot be written"),
    ],
)
def test_wrong_requests_say_what_would_work(cli, argv, words):
    found = cli("predict", *argv)
    assert found.status == 2
    assert words in found.err
    assert found.out == ""


def test_predict_from_a_text(cli, tiny, tmp_path):
    file = tmp_path / "own.txt"
    file.write_text(TEXT * 10)
    argv = ("predict", "--model", str(tiny), "--dtype", "float32", "--drafter", "lookup", "--text", str(file))
    page = tmp_path / "out.html"
    found = cli(*argv, "--draft-tokens", "3", "--json", "--report", str(page))
    assert found.status == 0
    assert found.json["low"] <= found.json["speedup"] <= found.json["high"]
    assert found.json["curve"][3]["tokens_per_round"] > 2
    assert found.json["detail"]["own_text"] is False
    assert found.json["record"]["versions"]["slipstream"]
    assert "90 %" in page.read_text()


def test_predict_from_prompts_and_check(cli, tiny, other, tmp_path):
    file = tmp_path / "prompts.jsonl"
    file.write_text("".join(json.dumps({"prompt": TEXT[i:]}) + "\n" for i in (0, 4, 8)))
    argv = ("predict", "--model", str(tiny), "--dtype", "float32", "--drafter", str(other), "--suite", str(file))
    found = cli(*argv, "--draft-tokens", "2", "--max-tokens", "12", "--ignore-eos", "--temperature", "1", "--check")
    assert found.status == 0
    assert "measured:" in found.out
    assert "the predicted interval" in found.out
    assert "written by the model" in found.out
    assert "record: revision" in found.out
    config = json.dumps({"method": "draft_model", "model": str(other), "num_speculative_tokens": 3})
    argv = ("predict", "--model", str(tiny), "--dtype", "float32", "--suite", str(file), "--speculative-config", config)
    as_json = cli(
        *argv, "--max-tokens", "12", "--ignore-eos", "--temperature", "1", "--count", "2", "--check", "--json"
    )
    assert as_json.status == 0, as_json.err
    assert as_json.json["detail"]["texts"] == 2
    assert as_json.json["draft_tokens"] == 3
    assert {"argv", "versions", "cpu", "model_hash", "drafter_hash", "prompts_hash"} <= set(as_json.json["record"])
    assert as_json.json["record"]["drafter_hash"]
    assert as_json.json["check"]["low"] <= as_json.json["check"]["measured"]


@pytest.mark.parametrize(
    "argv",
    [("predict", "--suite", "nope"), ("predict", "--suite", "demo", "--task", "nope"), ("tune", "--suite", "nope")],
)
def test_a_wrong_suite_or_task_is_an_error_before_anything_is_loaded(cli, monkeypatch, argv):
    monkeypatch.setattr("slipstream.llm.LLM.__init__", lambda *a, **k: pytest.fail("loaded"))
    found = cli(*argv)
    assert found.status == 2
    assert f"unknown {argv[-2].removeprefix('--')} 'nope'" in found.err
    if argv[-2] == "--suite":
        assert KNOWN in found.err


def test_explain_writes_a_page_and_a_summary(cli, tiny, other, tmp_path):
    page = tmp_path / "out.html"
    argv = ("explain", TEXT, "--model", str(tiny), "--dtype", "float32", "--drafter", str(other), "--seed", "1")
    argv += ("--draft-tokens", "4")
    found = cli(*argv, "--temperature", "1", "--max-tokens", "12", "--ignore-eos", "--report", str(page))
    assert found.status == 0
    assert "12 tokens in" in found.out
    assert "Round 1" in page.read_text()
    assert not list(tmp_path.glob("*.part"))
    as_json = cli(*argv, "--max-tokens", "5", "--ignore-eos", "--json")
    assert as_json.json["summary"]["tokens"] == 5
    assert as_json.json["rounds"][0]["nodes"][0]["state"] in ("kept", "refused")


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("a", "--logprobs", "2"), "--logprobs has no effect in explain"),
        (("a", "--drafter", "none", "--verify", "chain"), "--verify chain has no effect"),
        (("a", "--n", "2"), "one generation"),
        (("a", "--max-tokens", "9999"), "512 or less"),
        ((), "no prompt given"),
    ],
)
def test_explain_refuses_what_no_page_can_hold(cli, argv, words):
    found = cli("explain", *argv)
    assert found.status == 2
    assert words in found.err
