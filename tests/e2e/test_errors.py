"""Every wrong request is one line on stderr, status 2 (or 3), nothing on stdout, never a traceback."""

from __future__ import annotations

import json
import shutil
import signal

import pytest

PROMPT = "the cat sat on the mat"


def one_line(done, status: int, *words: str) -> None:
    assert done.status == status, done.err
    assert done.out == ""
    lines = done.err.strip().splitlines()
    assert len(lines) == 1, done.err
    for word in words:
        assert word in lines[0]


WRONG = {
    "unknown flag": (["--temprature", "1"], ["--temprature", "--temperature"]),
    "unknown drafter": (["--drafter", "lokup"], ["lokup", "lookup"]),
    "planned drafter": (["--drafter", "mtp:/x"], ["mtp", "not available yet", "lookup"]),
    "mixed drafter": (["--drafter", "lookup+suffix"], ["not available yet"]),
    "drafter without a path": (["--drafter", "draft_model"], ["draft_model:PATH"]),
    "drafter with an empty path": (["--drafter", "draft_model:"], ["draft_model:PATH"]),
    "drafter folder missing": (["--drafter", "draft_model:/no/such"], ["/no/such"]),
    "bare path missing": (["--drafter", "/no/such"], ["/no/such"]),
    "negative temperature": (["--temperature", "-1"], ["temperature", "-1"]),
    "top_p above 1": (["--top-p", "1.5"], ["--top-p", "1.5"]),
    "top_p not a number": (["--top-p", "x"], ["--top-p", "x"]),
    "n 0": (["--n", "0"], ["n", "0"]),
    "max_tokens 0": (["--max-tokens", "0"], ["--max-tokens 0", "1 or more"]),
    "verify": (["--verify", "fast"], ["--verify", "fast", "chain"]),
    "dtype": (["--dtype", "float8"], ["--dtype", "float8"]),
    "device": (["--device", "abacus"], ["device", "abacus"]),
    "device not here": (["--device", "cuda:77"], ["cuda:77"]),
    "quantize": (["--quantize", "int8", "--target", "hf"], ["int8", "not available with target hf"]),
    "quantize unknown": (["--quantize", "int7"], ["int7"]),
    "draft tokens": (["--draft-tokens", "2.5"], ["--draft-tokens", "2.5"]),
    "negative draft tokens": (["--draft-tokens", "-1"], ["--draft-tokens", "-1"]),
    "draft tokens without a drafter": (["--drafter", "none", "--draft-tokens", "4"], ["no effect"]),
    "context of 0": (["--max-model-len", "0"], ["max_model_len", "0"]),
    "context beyond the model": (["--max-model-len", "100000"], ["100000", "128"]),
    "prompt too long": (["--max-model-len", "3"], ["3"]),
    "stop empty": (["--stop", ""], ["stop"]),
    "logit bias": (["--logit-bias", "x"], ["--logit-bias", "x"]),
    "logit bias beyond the vocabulary": (["--logit-bias", "99999:1"], ["99999"]),
    "speculative config not JSON": (["--speculative-config", "{"], ["--speculative-config", "JSON"]),
    "speculative config key": (["--speculative-config", '{"metod": "ngram"}'], ["metod", "method"]),
    "speculative config twice": (["--speculative-config", '{"method": "ngram"}', "--drafter", "none"], ["--drafter"]),
    "prompt file": (["--prompt-file", "/no/such"], ["/no/such"]),
    "messages file": (["--messages", "/no/such"], ["/no/such"]),
    "empty drafter": (["--drafter", ""], ["drafter ''", "lookup"]),
    "options of a drafter without": (["--drafter", "none?x=1"], ["none has no options", "x=1"]),
    "option of a drafter": (["--drafter", "lookup?max_ngrm=4"], ["max_ngrm", "did you mean 'max_ngram'"]),
    "learned drafter missing": (["--drafter", "eagle3:/no/such"], ["no such drafter folder: /no/such"]),
    "part of a mix missing": (["--drafter", "lookup+dflash:/no/such"], ["no such drafter folder: /no/such"]),
    "speculative config without a model": (["--speculative-config", '{"method": "eagle3"}'], ['add "model": PATH']),
    "speculative config with a missing model": (
        ["--speculative-config", '{"method": "eagle3", "model": "/no/such"}'],
        ["no such drafter folder: /no/such"],
    ),
    "rule without drafts": (["--drafter", "none", "--verify", "block"], ["--verify block has no effect"]),
    "rule without draft tokens": (["--draft-tokens", "0", "--verify", "tree"], ["--verify tree has no effect"]),
    "second argument": (["more"], ["more"]),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_option_is_one_line(cli, tiny, name):
    extra, words = WRONG[name]
    one_line(cli("generate", "--model", str(tiny), PROMPT, *extra), 2, *words)


@pytest.mark.parametrize("option", ["--max-tokens", "--logprobs", "--seed"])
def test_what_only_python_has_is_not_named(cli, tiny, option):
    value = str(-(2**70))
    done = cli("generate", "--model", str(tiny), PROMPT, option, value)
    one_line(done, 2, f"{option} {value} cannot be used")
    assert "None" not in done.err
    one_line(cli("tune", "--max-tokens", "-1"), 2, "--max-tokens -1 cannot be used: give a whole number, 1 or more")


def test_a_greedy_request_may_name_what_greedy_ignores_and_plain_decoding_its_noise(generate):
    assert generate(PROMPT, "--top-p", "0.5", "--max-tokens", "2").status == 0
    assert generate(PROMPT, "--drafter", "none", "--verify", "coupled", "--max-tokens", "2").status == 0


@pytest.mark.parametrize("value", ["-1", "2.5", '"3"', "true", "null"])
def test_speculative_count_must_be_a_whole_number(generate, value):
    config = f'{{"method": "ngram", "num_speculative_tokens": {value}}}'
    one_line(generate(PROMPT, "--speculative-config", config), 2, "num_speculative_tokens", "whole number")


def test_commands(cli):
    one_line(cli(), 2, "generate")
    one_line(cli("genrate"), 2, "genrate", "did you mean 'generate'")
    one_line(cli("--modle"), 2, "--modle")
    one_line(cli("models"), 2, "list|pull|path")
    one_line(cli("models", "pull", "smolm2-135m-instruct"), 2, "smollm2-135m-instruct")


def test_unknown_model(cli):
    one_line(cli("generate", "--model", "smollm2-135m-instuct", "hi"), 2, "smollm2-135m-instruct")
    one_line(cli("generate", "--model", "/no/such/folder", "hi"), 2, "/no/such/folder")


def test_empty_prompt_and_no_prompt(generate):
    one_line(generate(""), 2, "prompt is empty")
    one_line(generate(), 2, "no prompt")
    one_line(generate("--raw"), 2, "--raw")


def test_messages_that_are_none(generate, tmp_path):
    file = tmp_path / "m.json"
    for text, word in (("[", "JSON"), ("[]", "role"), ('[{"content": "x"}]', "role"), ('["x"]', "role")):
        file.write_text(text)
        one_line(generate("--messages", str(file)), 2, "m.json", word)
    file.write_bytes(b"\xff\xfe")
    one_line(generate("--prompt-file", str(file)), 2, "UTF-8")


def test_vocabularies_that_differ_are_refused(generate, stranger):
    one_line(generate(PROMPT, "--drafter", str(stranger)), 2, str(stranger))


def test_truncated_weights(cli, tiny, tmp_path):
    broken = shutil.copytree(tiny, tmp_path / "broken")
    data = (broken / "model.safetensors").read_bytes()
    (broken / "model.safetensors").write_bytes(data[: len(data) // 2])
    one_line(cli("generate", "--model", str(broken), PROMPT), 3, "model.safetensors")
    (broken / "model.safetensors").unlink()
    one_line(cli("generate", "--model", str(broken), PROMPT), 3, "safetensors")
    (broken / "config.json").write_text("{")
    one_line(cli("generate", "--model", str(broken), PROMPT), 3, "config.json")


def test_a_damaged_config_is_named_whatever_else_is_missing(cli, tiny, tmp_path):
    broken = shutil.copytree(tiny, tmp_path / "broken")
    (broken / "tokenizer.json").unlink()
    for text, words in (("{", "is not valid JSON"), ("[]", "must hold a JSON object"), ("\xff", "is not valid")):
        (broken / "config.json").write_bytes(text.encode("latin-1"))
        one_line(cli("generate", "--model", str(broken), PROMPT), 3, "broken/config.json", words)
    one_line(cli("generate", "--model", str(tiny), "--drafter", f"draft_model:{broken}", PROMPT), 3, "config.json")


@pytest.mark.parametrize("tokenizer", [True, False])
def test_an_unknown_model_type_is_one_line(cli, tiny, tmp_path, tokenizer):
    other = shutil.copytree(tiny, tmp_path / "other")
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(config | {"model_type": "foo"}))
    if not tokenizer:
        (other / "tokenizer.json").unlink()
    for target in ("auto", "hf", "native"):
        done = cli("generate", "--model", str(other), "--target", target, PROMPT)
        one_line(done, 2, "model_type 'foo' is not known; known: llama")
    shown = cli("info", str(other))
    assert shown.status == 0
    assert "model_type 'foo' is not known" in shown.out


@pytest.mark.parametrize("below", ["", "/models"])
def test_a_home_that_is_a_file_names_the_variable(cli, tmp_path, monkeypatch, below):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SLIPSTREAM_HOME", f"{tmp_path}/file{below}")
    one_line(cli("generate", "hi"), 2, f"SLIPSTREAM_HOME={tmp_path}/file{below}", "is a file")


def test_a_drafter_that_is_not_there_is_called_one(cli, tiny):
    one_line(cli("doctor", "/no/such", "--model", str(tiny)), 2, "drafter '/no/such'")
    one_line(cli("convert", "/no/such", "out", "--to", "zlab"), 2, "drafter '/no/such'")


def test_debug_shows_the_traceback(cli):
    done = cli("generate", "hi", "--model", "/no/such", "--debug")
    assert done.status == 2
    assert "Traceback" in done.err


def test_a_bug_is_one_line_too(cli, monkeypatch):
    monkeypatch.setattr("slipstream.cli.info.machine_facts", lambda: 1 // 0)
    one_line(cli("info"), 3, "ZeroDivisionError", "--debug")
    with pytest.raises(ZeroDivisionError):
        cli("info", "--debug")


def test_ctrl_c_ends_with_130_and_no_traceback(command, tiny):
    run = command("generate", "--model", str(tiny), PROMPT, "--max-tokens", "100", "--ignore-eos", "--n", "8000")
    try:
        assert any("drafter auto" in run.stderr.readline() for _ in range(2))  # the model is loaded: decoding starts
        run.send_signal(signal.SIGINT)
        _, err = run.communicate(timeout=60)
    finally:
        run.kill()
        run.wait()
    assert run.returncode == 130
    assert "Traceback" not in err
    assert "interrupted" in err


def test_a_closed_pipe_is_quiet(command, tiny):
    run = command("generate", "--model", str(tiny), PROMPT, "--max-tokens", "100", "--ignore-eos")
    run.stdout.close()
    err = run.stderr.read()
    run.wait(timeout=60)
    run.stderr.close()
    run.stdin.close()
    assert run.returncode == 0
    assert "Traceback" not in err
    assert "Broken" not in err
