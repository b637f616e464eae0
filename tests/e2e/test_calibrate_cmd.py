"""`slipstream calibrate`: a file that `--drafter` takes, a table, and wrong requests in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import layout_files
from tiny_model import CONFIG, make_model

# random weights: nothing it drafts stands, and a warning says so
pytestmark = pytest.mark.filterwarnings("ignore:drafter 'dspark' had a token accepted")
WORDS = ("the cat", "on the mat", "one two", "the dog", "log", "three", "sat on", "five")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("target"), layers=8)


@pytest.fixture(scope="module")
def made(model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Drafters and prompts for the tiny model."""
    vocab = json.loads((model / "config.json").read_text())["vocab_size"]
    sizes = layout_files.Sizes(hidden=CONFIG["hidden_size"], vocab=vocab, draft_vocab=vocab, target_layers=8)
    root = tmp_path_factory.mktemp("drafters")
    (root / "words.jsonl").write_text("\n".join(json.dumps({"prompt": word}) for word in WORDS))
    names = {"dspark": "deepspec/dspark", "dflash": "speculators/dflash"}
    return {k: layout_files.write(name, root / k, sizes=sizes) for k, name in names.items()} | {"root": root}


@pytest.fixture
def calibrate(cli, model: Path, made: dict[str, Path]):
    """Run the command on a drafter."""

    def run(drafter: str, out: Path, *argv: str):
        suite = str(made["root"] / "words.jsonl")
        options = ("--model", str(model), "--dtype", "float32", "--suite", suite, "--max-tokens", "48")
        return cli("calibrate", drafter, "--out", str(out), *options, *argv)

    return run


def test_the_file_it_writes_is_one_that_generate_takes(calibrate, cli, made, model: Path, tmp_path) -> None:
    out = tmp_path / "t.json"
    done = calibrate(str(made["dspark"]), out)
    assert done.status == 0, done.err
    use = f"dspark:{made['dspark']}?temperatures={out}"
    assert f'use it: --drafter "{use}"' in done.out
    assert f"written: {out}" in done.out
    rows = [line.split() for line in done.out.splitlines() if line[:1].isdigit() and "rounds," not in line]
    written = json.loads(out.read_text())
    assert [int(row[0]) for row in rows] == list(range(1, len(written["temperatures"]) + 1))
    assert [float(row[4]) for row in rows] == pytest.approx(written["temperatures"], abs=0.005)
    assert written["target"] == str(model)
    again = cli("generate", "one", "--model", str(model), "--dtype", "float32", "--max-tokens", "8", "--drafter", use)
    assert again.status == 0, again.err
    # of this drafter alone
    written["drafter"] = "another"
    out.write_text(json.dumps(written))
    assert cli("generate", "one", "--model", str(model), "--dtype", "float32", "--drafter", use).status == 2


def test_json_is_alone_on_stdout_and_sampled_text_will_do(calibrate, made, tmp_path) -> None:
    done = calibrate(f"dspark:{made['dspark']}", tmp_path / "t.json", "--temperature", "0.8", "--json")
    assert done.status == 0, done.err
    assert done.json["use"].startswith(f"dspark:{made['dspark']}?temperatures=")
    assert done.json["rounds"] == max(d["rounds"] for d in done.json["depths"])
    assert all(0 <= d["after"] <= 1 for d in done.json["depths"])


def test_wrong_requests_are_one_line_and_write_nothing(calibrate, made, model: Path, tmp_path) -> None:
    out, drafter = tmp_path / "t.json", str(made["dspark"])
    wrong = {
        "only dspark": (str(made["dflash"]), out),
        "must be at least 2": (drafter, out, "--prompts", "1"),
        "--max-tokens 0 cannot be used": (drafter, out, "--max-tokens", "0"),
        "is a folder": (drafter, tmp_path),
        "no folder": (drafter, tmp_path / "nowhere" / "t.json"),
        "suite": (drafter, out, "--suite", "nothing"),
        "temperature": (drafter, out, "--temperature", "-1"),
    }
    for words, argv in wrong.items():
        done = calibrate(*argv)
        assert done.status == 2, words
        assert words in done.err
        assert done.err.count("\n") == 1
    done = calibrate(drafter, out, "--prompts", "2")
    assert done.status == 3
    assert "use more prompts or a larger max_tokens" in done.err
    assert not out.exists()
