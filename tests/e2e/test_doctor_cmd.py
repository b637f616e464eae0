"""`slipstream doctor` on files: eight broken ones, each told apart, and whole again once the named line is changed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from oracles import Kit, kit
from slipstream.checkpoints.target_folder import TargetFolder
from slipstream.checkpoints.writing import write_drafter

Edit = Callable[[dict[str, Any]], None]


@pytest.fixture(scope="session")
def made() -> Kit:
    return kit()


@pytest.fixture(scope="session")
def files(made: Kit, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The oracles as files of public layouts."""
    root, base = tmp_path_factory.mktemp("oracle-files"), TargetFolder(made.folder, "target")
    wanted = {"eagle3": ("eagle3", "speculators"), "zlab": ("dflash", "zlab"), "dflash": ("dflash", "speculators")}
    wanted["medusa"] = ("medusa", "medusa")
    for name, (algorithm, layout) in wanted.items():
        write_drafter(made.oracle(algorithm), layout, root / name, base=base)
    lines = [json.dumps({"id": p.id, "messages": p.messages}) for p in made.prompts]
    (root / "words.jsonl").write_text("\n".join(lines))
    return {name: root / name for name in wanted} | {"suite": root / "words.jsonl"}


@pytest.fixture
def doctor(cli, made: Kit, files: dict[str, Path]):
    """Run the command on a drafter's folder."""

    def run(folder: Path, *argv: str):
        options = ("--model", str(made.folder), "--dtype", "float32", "--suite", str(files["suite"]))
        return cli("doctor", str(folder), *options, "--max-tokens", "18", *argv)

    return run


def put(key: str, value: Any) -> Edit:
    """Set a key of config.json, dots into inner objects."""

    def edit(config: dict[str, Any]) -> None:
        *outer, last = key.split(".")
        for name in outer:
            config = config[name]
        config[last] = value

    return edit


def edited(folder: Path, out: Path, edit: Edit) -> Path:
    """Copy a drafter with another config.json."""
    out.mkdir()
    config = json.loads((folder / "config.json").read_text())
    edit(config)
    (out / "config.json").write_text(json.dumps(config))
    (out / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    return out


TAPS, BLOCK_TAPS = "eagle_aux_hidden_state_layer_ids", "dflash_config.target_layer_ids"
ROPE = "transformer_layer_config.rope_parameters.rope_theta"
BROKEN = {
    "taps one too high": ("eagle3", TAPS, [2, 4, 6], "taps -1", [1, 3, 5]),
    "taps one too low": ("eagle3", TAPS, [0, 2, 4], "taps +1", [1, 3, 5]),
    "feedback": ("eagle3", "norm_output", True, "fed back before the norm", False),
    "residual": ("eagle3", "norm_before_residual", True, "residual from the raw feature", False),
    "rope": ("eagle3", ROPE, 10000.0, "rotary base 50", 50.0),
    "block taps": ("zlab", BLOCK_TAPS, [1, 4], "taps -1", [0, 3]),
    "anchor": ("dflash", "sample_from_anchor", True, "the anchor's slot predicts nothing", False),
}


@pytest.mark.parametrize("name", ["eagle3", "zlab", "dflash", "medusa"])
def test_a_right_file_is_healthy(doctor, files: dict[str, Path], name: str) -> None:
    done = doctor(files[name])
    assert done.status == 0, done.out + done.err
    assert "the file's own reading stands" in done.out
    assert "* as the file says" in done.out


def test_a_target_run_by_transformers_says_the_same(doctor, files: dict[str, Path], tmp_path) -> None:
    assert doctor(files["eagle3"], "--target", "hf").status == 0
    broken = edited(files["eagle3"], tmp_path / "broken", put(TAPS, [2, 4, 6]))
    done = doctor(broken, "--target", "hf", "--json")
    assert done.status == 1, done.out + done.err
    assert done.json["fix"]["reading"] == "taps -1"


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_file_is_told_and_the_named_line_mends_it(doctor, files: dict[str, Path], case: str, tmp_path) -> None:
    name, key, wrong, fix, right = BROKEN[case]
    broken = edited(files[name], tmp_path / "broken", put(key, wrong))
    done = doctor(broken, "--json")
    assert done.status == 1, done.out + done.err
    assert done.json["fix"] == {"reading": fix, "change": [f"{key}: {json.dumps(wrong)} -> {json.dumps(right)}"]}
    assert done.json["readings"][0]["reading"] == fix
    assert done.json["readings"][0]["accepted"] > 0.95 * done.json["draft_tokens"]
    mended = edited(broken, tmp_path / "mended", put(key, right))
    assert (mended / "config.json").read_text() == json.dumps(json.loads((files[name] / "config.json").read_text()))


def test_a_map_of_ids_in_place_of_offsets_is_told(doctor, files: dict[str, Path], tmp_path) -> None:
    broken = edited(files["eagle3"], tmp_path / "broken", lambda config: None)
    tensors = load_file(broken / "model.safetensors")
    del tensors["t2d"]  # with it the reader would see for itself
    tensors["d2t"] = tensors["d2t"] + torch.arange(len(tensors["d2t"]))
    save_file(tensors, broken / "model.safetensors")
    done = doctor(broken)
    assert done.status == 1, done.out + done.err
    assert "read differently this drafter is better: vocabulary map read as ids" in done.out
    assert "change tensor d2t: subtract from each entry its own index" in done.out


def test_wrong_requests_are_one_line_and_status_2(doctor, cli, files: dict[str, Path], made: Kit, tmp_path) -> None:
    for argv in (("--prompts", "0"), ("--max-tokens", "0"), ("--suite", "nothing")):
        done = doctor(files["zlab"], *argv)
        assert done.status == 2, argv
        assert done.err.count("\n") == 1
    done = doctor(made.folder)
    assert done.status == 2
    assert "--json" not in done.err
    assert doctor(tmp_path / "nowhere").status == 2


def test_json_is_alone_on_stdout(doctor, files: dict[str, Path]) -> None:
    done = doctor(files["zlab"], "--json")
    assert done.status == 0
    assert done.json["healthy"] is True
    assert done.json["fix"] is None
    own = next(r for r in done.json["readings"] if r["own"])
    assert own["first_token"]["low"] < own["first_token"]["value"]
    assert own["gain"] is None
