"""`slipstream generate` end to end on a tiny model: JSON, text, traces, comparison, and who drafted what."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

PROMPT = "the cat sat on the mat and the cat sat on"
KEYS = ["model", "drafter", "verify", "text", "token_ids", "finish_reason", "usage", "stats", "provenance"]
STATS = [
    "num_drafts",
    "num_draft_tokens",
    "num_accepted_tokens",
    "num_accepted_tokens_per_pos",
    "target_passes",
    "mean_acceptance_length",
    "draft_acceptance_rate",
    "prefill_seconds",
    "draft_seconds",
    "target_seconds",
    "other_seconds",
    "tokens_per_second",
]


def test_json_has_exactly_the_documented_keys(generate):
    done = generate(PROMPT, "--json", "--max-tokens", "12", "--drafter", "lookup")
    assert done.status == 0, done.err
    found = done.json
    assert list(found) == KEYS
    assert list(found["stats"]) == STATS
    assert found["drafter"] == "lookup"
    assert found["verify"] == "chain"
    assert found["usage"]["completion_tokens"] == len(found["token_ids"]) == len(found["provenance"])
    assert [p["token"] for p in found["provenance"]] == found["token_ids"]
    assert all((p["by"] == "target") == (p["depth"] == 0) for p in found["provenance"])
    accepted = sum(p["by"] == "lookup" for p in found["provenance"])
    assert accepted == found["stats"]["num_accepted_tokens"]


@pytest.mark.parametrize(
    ("drafter", "verify"),
    [
        ("none", "auto"),
        ("none", "coupled"),
        *((one, rule) for one in ("lookup", "self", "other") for rule in ("auto", "chain", "block", "tree", "coupled")),
    ],
)
def test_greedy_text_is_plain_text_whatever_drafts_and_verifies(generate, tiny, other, drafter, verify):
    spec = {"self": f"draft_model:{tiny}", "other": str(other)}.get(drafter, drafter)
    count = "0" if drafter == "none" else "4"  # auto would see that a drafter of the target's size does not pay
    plain = generate(PROMPT, "--json", "--max-tokens", "24", "--ignore-eos", "--drafter", "none").json
    args = ("--json", "--max-tokens", "24", "--ignore-eos", "--drafter", spec, "--draft-tokens", count)
    found = generate(PROMPT, *args, "--verify", verify).json
    assert found["token_ids"] == plain["token_ids"]
    assert found["text"] == plain["text"]
    if drafter == "self":
        assert found["stats"]["draft_acceptance_rate"] > 0.9
        assert found["stats"]["target_passes"] < plain["stats"]["target_passes"] / 3


@pytest.mark.parametrize("spec", ["lookup", "self"])
def test_coupled_gives_the_same_text_for_the_same_seed_with_any_drafter(generate, tiny, spec):
    common = [
        PROMPT,
        "--raw",
        "--json",
        "--max-tokens",
        "20",
        "--temperature",
        "1",
        "--seed",
        "7",
        "--verify",
        "coupled",
    ]
    spec = str(tiny) if spec == "self" else spec
    plain = generate(*common, "--drafter", "none").json
    drafted = generate(*common, "--drafter", spec, "--draft-tokens", "4").json
    assert drafted["token_ids"] == plain["token_ids"]
    assert drafted["stats"]["num_draft_tokens"] > 0


def test_same_seed_same_text_and_other_seed_other_text(generate):
    common = [PROMPT, "--json", "--max-tokens", "20", "--temperature", "1"]
    first, again, other = (generate(*common, "--seed", seed).json["token_ids"] for seed in ("1", "1", "2"))
    assert first == again != other


def test_text_streams_to_stdout_and_statistics_to_stderr(generate):
    found = generate(PROMPT, "--json", "--max-tokens", "12").json
    done = generate(PROMPT, "--max-tokens", "12")
    assert done.out == found["text"] + "\n"
    assert "12 tokens" in done.err
    assert "tokens/s" in done.err


def test_n_gives_a_list_and_greedy_samples_agree(generate):
    found = generate(PROMPT, "--json", "--n", "3", "--max-tokens", "6").json
    assert list(found) == ["completions"]
    assert len(found["completions"]) == 3
    assert all(list(c) == KEYS for c in found["completions"])
    assert len({tuple(c["token_ids"]) for c in found["completions"]}) == 1


def test_several_prompts_from_argument_and_files(generate, tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).write_text(f"the dog {name}")
    files = ["--prompt-file", str(tmp_path / "a"), "--prompt-file", str(tmp_path / "b")]
    found = generate(PROMPT, *files, "--json", "--max-tokens", "4").json["completions"]
    alone = [generate(p, "--json", "--max-tokens", "4").json["token_ids"] for p in (PROMPT, "the dog a", "the dog b")]
    assert [c["token_ids"] for c in found] == alone
    shown = generate(PROMPT, *files, "--max-tokens", "4").out
    assert shown.count("---") == 3


def test_stdin_and_messages_and_chat(generate, tmp_path, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO(PROMPT))
    assert (
        generate("-", "--json", "--max-tokens", "4").json["token_ids"]
        == (generate(PROMPT, "--json", "--max-tokens", "4").json["token_ids"])
    )
    file = tmp_path / "m.json"
    file.write_text(json.dumps([{"role": "user", "content": PROMPT}]))
    by_file = generate("--messages", str(file), "--json", "--max-tokens", "4").json
    by_default = generate(PROMPT, "--json", "--max-tokens", "4").json
    raw = generate(PROMPT, "--raw", "--json", "--max-tokens", "4").json
    assert by_file["token_ids"] == by_default["token_ids"]
    assert by_file["usage"]["prompt_tokens"] == raw["usage"]["prompt_tokens"] + 3


def test_stop_string_ends_before_it(generate):
    text = generate(PROMPT, "--json", "--max-tokens", "24", "--ignore-eos").json["text"]
    stop = text[5:8]
    found = generate(PROMPT, "--json", "--max-tokens", "24", "--ignore-eos", "--stop", stop).json
    assert found["finish_reason"] == "stop"
    assert found["text"] == text[: text.index(stop)]


def test_trace_draws_every_round_and_adds_up(generate, tiny):
    done = generate(PROMPT, "--json", "--trace", "--max-tokens", "16", "--ignore-eos", "--drafter", str(tiny))
    lines = [line for line in done.err.splitlines() if line.startswith("#")]
    found = done.json
    assert len(lines) == found["stats"]["target_passes"]
    assert sum(int(line.rsplit("(", 1)[1].split()[0]) for line in lines) == 16
    assert sum(line.count("+[") for line in lines) == found["stats"]["num_accepted_tokens"]
    assert "\x1b" not in done.err  # not a terminal


def test_trace_marks_what_was_rejected(generate, other):
    args = ("--max-tokens", "12", "--ignore-eos", "--drafter", str(other), "--draft-tokens", "4")
    done = generate(PROMPT, "--trace", *args)
    assert "x[" in done.err
    assert "correction" in done.err


def test_compare_prints_a_speed_up_only_with_equal_outputs(generate, tiny):
    done = generate(PROMPT, "--compare", "--json", "--max-tokens", "16", "--ignore-eos", "--drafter", str(tiny))
    assert done.status == 0, done.err
    assert list(done.json)[:-1] == KEYS
    found = done.json["compare"]
    assert found["agreement"] == "equal"
    assert found["speed_up"] > 0
    assert found["record"]["model_hash"].startswith("sha256:")
    assert "speed-up" in done.err
    assert "equal, token for token" in done.err


def test_compare_of_two_draws_says_so(generate, other):
    args = ["--max-tokens", "16", "--temperature", "1", "--seed", "3", "--drafter", str(other), "--draft-tokens", "4"]
    done = generate(PROMPT, "--compare", *args)
    assert done.status == 0
    assert "two draws of the same law" in done.err


def test_compare_with_shared_noise_is_equal_at_temperature_above_0(generate, other):
    args = ["--compare", "--max-tokens", "16", "--temperature", "1", "--verify", "coupled", "--drafter", str(other)]
    done = generate(PROMPT, *args)
    assert done.status == 0
    assert "equal, token for token" in done.err


def test_a_wrong_rule_fails_the_comparison(generate, other, monkeypatch):
    """Negative control: a rule that accepts everything must be caught, with status 1 and no speed-up."""
    from slipstream.types import Verdict
    from slipstream.verify import ChainRule

    def accept_all(self, draft, p, rngs):
        return Verdict(draft.tokens[:, 1:] * 0 + 1 + _steps(draft), draft.length - 1, p.points[:, -1])

    def _steps(draft):
        import torch

        return torch.arange(draft.nodes - 1)[None]

    monkeypatch.setattr(ChainRule, "__call__", accept_all)
    args = ("--max-tokens", "12", "--verify", "chain", "--drafter", str(other), "--draft-tokens", "4")
    done = generate(PROMPT, "--compare", *args)
    assert done.status == 1
    assert "DIFFERENT" in done.err
    assert "speed-up:" not in done.err


def test_hf_target_gives_the_same_tokens(generate):
    native = generate(PROMPT, "--json", "--max-tokens", "12", "--target", "native").json
    hf = generate(PROMPT, "--json", "--max-tokens", "12", "--target", "hf").json
    assert hf["token_ids"] == native["token_ids"]


def test_logprobs_are_in_the_json_and_on_stderr(generate):
    found = generate(PROMPT, "--json", "--max-tokens", "3", "--logprobs", "2").json
    assert [entry["token"] for entry in found["logprobs"]] == found["token_ids"]
    assert all(len(entry["top_logprobs"]) >= 2 for entry in found["logprobs"])
    assert generate(PROMPT, "--max-tokens", "3", "--logprobs", "2").err.count("|") == 3


def test_local_folder_runs_offline_as_a_process(command, tiny: Path):
    run = command("generate", "--model", str(tiny), PROMPT, "--json", "--max-tokens", "4")
    out, err = run.communicate(timeout=120)
    assert run.returncode == 0, err
    assert list(json.loads(out)) == KEYS


def test_transformers_draws_no_bar_without_a_terminal(cli, tiny):
    from transformers.utils import logging

    done = cli("generate", "the cat", "--model", str(tiny), "--target", "hf", "--max-tokens", "2")
    assert done.status == 0
    assert "Loading weights" not in done.err
    assert logging.is_progress_bar_enabled()
