"""Case 37: every documented option has a visible effect or is refused, and a new one cannot slip past this file."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slipstream import LLM, RequestError, SamplingParams
from slipstream.cli import generate, main
from slipstream.cli.options import Parser
from tiny_model import make_model

PROMPT = "the cat sat on the mat and the cat sat on"
HOT = ["--temperature", "2", "--seed", "1"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    root = tmp_path_factory.mktemp("case37")
    made = {"TINY": str(make_model(root / "tiny")), "OTHER": str(make_model(root / "other", seed=1))}
    (root / "text").write_text("one two three")
    (root / "messages.json").write_text(json.dumps([{"role": "user", "content": "one two three"}]))
    return made | {"TEXT": str(root / "text"), "MESSAGES": str(root / "messages.json")}


def tokens(found: dict[str, Any]) -> Any:
    return [c["token_ids"] for c in found.get("completions", [found])]


def stat(name: str) -> Callable[[dict[str, Any]], Any]:
    return lambda found: found["stats"][name]


def key(name: str) -> Callable[[dict[str, Any]], Any]:
    return lambda found: found.get(name)


# option -> (arguments both runs share, arguments of the second run, what must differ)
EFFECTS: dict[str, tuple[list[str], list[str], Callable[[dict[str, Any]], Any]]] = {
    "--model": ([], ["--model", "OTHER"], tokens),
    "--dtype": (["--logprobs", "0"], ["--dtype", "bfloat16"], key("logprobs")),
    "--max-model-len": ([], ["--max-model-len", "20"], tokens),
    "--drafter": (["--draft-tokens", "4"], ["--drafter", "OTHER"], stat("num_draft_tokens")),
    "--draft-tokens": (["--drafter", "OTHER"], ["--draft-tokens", "1"], stat("num_draft_tokens")),
    "--verify": (["--drafter", "OTHER", *HOT], ["--verify", "coupled"], tokens),
    "--speculative-config": (
        [],
        ["--speculative-config", '{"method": "draft_model", "model": "OTHER", "num_speculative_tokens": 2}'],
        stat("num_draft_tokens"),
    ),
    "--temperature": (["--seed", "1"], ["--temperature", "2"], tokens),
    "--top-p": (HOT, ["--top-p", "0.1"], tokens),
    "--top-k": (HOT, ["--top-k", "1"], tokens),
    "--min-p": (HOT, ["--min-p", "0.9"], tokens),
    "--repetition-penalty": ([], ["--repetition-penalty", "1.8"], tokens),
    "--presence-penalty": ([], ["--presence-penalty", "2"], tokens),
    "--frequency-penalty": ([], ["--frequency-penalty", "2"], tokens),
    "--logit-bias": ([], ["--logit-bias", "70:100"], tokens),
    "--min-tokens": (["--logit-bias", "0:100"], ["--min-tokens", "3"], tokens),
    "--ignore-eos": (["--logit-bias", "0:100"], ["--ignore-eos"], tokens),
    "--max-tokens": ([], ["--max-tokens", "2"], tokens),
    "--n": ([], ["--n", "2"], tokens),
    "--seed": (["--temperature", "2", "--seed", "1"], ["--seed", "2"], tokens),
    "--logprobs": ([], ["--logprobs", "1"], key("logprobs")),
    "--prompt-file": ([], ["--prompt-file", "TEXT"], tokens),
    "--messages": ([], ["--messages", "MESSAGES"], tokens),
    "--raw": ([], ["--raw"], tokens),
    "--compare": ([], ["--compare"], key("compare")),
}
ELSEWHERE = {
    "--help": "prints help",
    "--json": "the observer of this file",
    "--stop": "test_a_stop_string_cuts",
    "--trace": "test_trace_draws",
    "--device": "test_options_with_one_choice_here",
    "--quantize": "test_options_with_one_choice_here",
    "--target": "test_options_with_one_choice_here",
}


def run(capsys: pytest.CaptureFixture[str], folders: dict[str, str], args: list[str]) -> tuple[dict[str, Any], str]:
    def fill(text: str) -> str:
        for name, path in folders.items():
            text = text.replace(name, path)
        return text

    base = ["generate", PROMPT, "--json", "--model", "TINY", "--dtype", "float32", "--max-tokens", "12"]
    status = main([fill(a) for a in [*base, *args]])
    captured = capsys.readouterr()
    assert status == 0, captured.err
    return json.loads(captured.out), captured.err


@pytest.mark.parametrize("option", EFFECTS)
def test_case_37_option_has_an_effect(option, folders, capsys):
    shared, changed, observe = EFFECTS[option]
    before, _ = run(capsys, folders, shared)
    again, _ = run(capsys, folders, shared)
    after, _ = run(capsys, folders, [*shared, *changed])
    if option != "--compare":
        assert observe(before) == observe(again), "the observation is not repeatable, so it proves nothing"
    assert observe(before) != observe(after)


def test_case_37_no_option_is_left_out():
    parser = Parser(prog="generate")
    generate.declare(parser)
    options = {s for a in parser._actions for s in a.option_strings if s.startswith("--")}
    assert options == set(EFFECTS) | set(ELSEWHERE)


def test_case_37_a_stop_string_cuts(folders, capsys):
    whole, _ = run(capsys, folders, [])
    stop = whole["text"][3:5]
    cut, _ = run(capsys, folders, ["--stop", stop])
    assert cut["text"] == whole["text"][: whole["text"].index(stop)]
    assert cut["finish_reason"] == "stop"


def test_case_37_trace_draws(folders, capsys):
    quiet, without = run(capsys, folders, [])
    traced, drawn = run(capsys, folders, ["--trace"])
    assert tokens(quiet) == tokens(traced)
    assert "#1" in drawn
    assert "#1" not in without


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--device", "cuda:99"], "cuda:99"),
        (["--device", "tpu"], "tpu"),
        (["--quantize", "int7"], "int7"),
        (["--target", "mlx"], "mlx"),
    ],
)
def test_case_37_options_with_one_choice_here(folders, capsys, args, words):
    assert main(["generate", PROMPT, "--model", folders["TINY"], *args]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("value", [-1, 2.5, "3", True, None, float("nan"), [3]])
def test_case_37_a_count_is_one_clear_error(value):
    config = {"method": "ngram", "num_speculative_tokens": value}
    with pytest.raises(RequestError, match=r"num_speculative_tokens=.* must be a whole number, 0 to 256") as caught:
        LLM("/never/loaded", speculative_config=config)
    assert "\n" not in str(caught.value)


def test_case_37_zero_means_off(folders):
    llm = LLM(folders["TINY"], speculative_config={"method": "ngram", "num_speculative_tokens": 0})
    assert llm.drafter == "none"
    assert llm.generate(PROMPT, SamplingParams(max_tokens=4)).stats["num_draft_tokens"] == 0


@pytest.mark.parametrize("config", [{"method": "ngram", "modle": "x"}, {"method": "draft_model", "model": ""}])
def test_case_37_unknown_keys_and_empty_paths_are_refused(config):
    with pytest.raises(RequestError, match="model"):
        LLM("/never/loaded", speculative_config=config)


def test_case_37_a_request_wins_over_the_default(folders):
    llm = LLM(folders["TINY"], "none", dtype="float32", seed=1)
    hot = {"temperature": 2.0, "max_tokens": 12, "ignore_eos": True}
    default, own = llm.generate(PROMPT, hot), llm.generate(PROMPT, hot | {"seed": 2})
    assert (default.seed, own.seed) == (1, 2)
    assert default.token_ids != own.token_ids


def test_case_37_a_wrong_parameter_is_refused_before_a_stream_begins(folders):
    llm = LLM(folders["TINY"], "lookup")
    with pytest.raises(RequestError, match="best_of"):
        llm.stream(PROMPT, {"best_of": 3})
    with pytest.raises(RequestError, match="no room"):
        llm.stream([1] * 500)
    assert llm.engine.idle


def test_case_37_parser_knows_no_abbreviations():
    """An abbreviated flag would change its meaning when an option is added."""
    parser = Parser(prog="generate")
    generate.declare(parser)
    with pytest.raises(RequestError, match="--temp"):
        parser.parse_args(["x", "--temp", "1"])
    assert isinstance(parser.parse_args(["x", "--temperature", "-1"]), argparse.Namespace)


def test_case_37_files_are_read_as_given(folders, capsys):
    by_file, _ = run(capsys, folders, ["--raw", "--prompt-file", "TEXT"])
    assert by_file["completions"][1]["usage"]["prompt_tokens"] == len(
        LLM(folders["TINY"]).encode(Path(folders["TEXT"]).read_text())
    )
