"""Every public layout through `generate --drafter` on a tiny model: the same text as plain decoding."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

import layout_files
from slipstream import LLM, SamplingParams, build
from slipstream.cli import main
from slipstream.types import RequestError
from tiny_model import CONFIG, make_model

PROMPTS = ["the cat sat on", "one two three", "the dog"]
SHAPES = dict.fromkeys(("eagle", "eagle3", "dflash", "medusa"), ("chain", "tree"))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("target"), layers=8)


@pytest.fixture(scope="module")
def drafters(model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One folder per public layout, made for the tiny model."""
    vocab = json.loads((model / "config.json").read_text())["vocab_size"]
    sizes = layout_files.Sizes(hidden=CONFIG["hidden_size"], vocab=vocab, draft_vocab=vocab // 2, target_layers=8)
    root = tmp_path_factory.mktemp("drafters")
    out = {}
    for name in layout_files.ALL:
        fit = sizes if "eagle3" in name or "peagle" in name else dataclasses.replace(sizes, draft_vocab=vocab)
        out[name] = layout_files.write(name, root / name.replace("/", "-"), sizes=fit)
    return out


@pytest.fixture(scope="module")
def plain(model: Path) -> LLM:
    return LLM(str(model), "none", dtype="float32", max_rows=3, max_model_len=96)


def texts(llm: LLM, **params: Any) -> list[list[int]]:
    return [out.token_ids for out in llm.generate(PROMPTS, SamplingParams(max_tokens=24, ignore_eos=True, **params))]


@pytest.mark.parametrize("name", layout_files.ALL)
def test_greedy_output_is_that_of_plain_decoding(name, drafters, plain):
    kind = name.split("/")[1]
    wanted = texts(plain)
    for shape in SHAPES.get(kind, ("",)):
        spec = f"{kind}:{drafters[name]}" + (f"?shape={shape}" if shape else "")
        llm = plain.with_drafter(spec)
        assert texts(llm) == wanted
        assert llm.engine.drafter.dropped == 0


@pytest.mark.parametrize("name", layout_files.ALL)
def test_sampled_requests_run_in_a_batch_and_repeat_with_their_seed(name, drafters, plain):
    kind = name.split("/")[1]
    for shape in SHAPES.get(kind, ("",)):
        spec = f"{kind}:{drafters[name]}" + (f"?shape={shape}" if shape else "")
        llm = plain.with_drafter(spec)
        first = texts(llm, temperature=0.9, top_p=0.95, repetition_penalty=1.1, seed=3)
        assert first == texts(llm, temperature=0.9, top_p=0.95, repetition_penalty=1.1, seed=3)


@pytest.mark.parametrize("name", ["safeailab/eagle3", "zlab/dflash", "deepspec/dspark", "medusa/medusa"])
def test_the_command_runs_it(name, model, drafters, capsys):
    kind = name.split("/")[1]
    spec = f"{kind}:{drafters[name]}"
    spec += "?schedule=off" if kind == "dspark" else ""  # its scheduler drafts nothing that does not pay
    argv = ["generate", "the cat", "--raw", "--model", str(model), "--drafter", spec, "--draft-tokens", "3"]
    assert main([*argv, "--max-tokens", "8", "--dtype", "float32", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["drafter"] == kind
    assert found["stats"]["num_draft_tokens"] > 0


def test_a_bare_folder_is_recognised(drafters):
    for name, folder in drafters.items():
        assert build.parse_drafter(str(folder)).name == name.split("/")[1]


def test_the_wrong_name_for_a_checkpoint_says_the_right_one(drafters, plain):
    with pytest.raises(RequestError, match="use dflash:"):
        plain.with_drafter(f"eagle3:{drafters['zlab/dflash']}")


def test_options_of_a_spec_are_checked(drafters, plain):
    folder = drafters["zlab/dflash"]
    with pytest.raises(RequestError, match="did you mean 'shape'"):
        plain.with_drafter(f"dflash:{folder}?shap=tree")
    with pytest.raises(RequestError, match="key=value"):
        plain.with_drafter(f"dflash:{folder}?tree")
    with pytest.raises(RequestError, match="star"):
        plain.with_drafter(f"dflash:{folder}?shape=star")


def test_a_chain_rule_refuses_trees_and_takes_chains(model, drafters):
    folder = drafters["safeailab/eagle3"]
    with pytest.raises(RequestError, match="trees"):
        LLM(str(model), f"eagle3:{folder}?shape=tree", verify="chain", dtype="float32", max_model_len=96)
    llm = LLM(str(model), f"eagle3:{folder}", verify="block", dtype="float32", max_rows=3, max_model_len=96)
    assert texts(llm)


@pytest.mark.parametrize("name", ["specforge/eagle3", "zlab/dflash", "medusa/medusa", "safeailab/eagle"])
def test_the_transformers_target_feeds_them_too(name, model, drafters, plain):
    kind = name.split("/")[1]
    llm = LLM(str(model), f"{kind}:{drafters[name]}", target="hf", dtype="float32", max_rows=3, max_model_len=96)
    assert texts(llm) == texts(plain)


def test_what_a_file_notes_is_said_of_its_own_drafter_only(drafters, plain):
    noted = plain.with_drafter(f"eagle3:{drafters['speculators/eagle3']}")
    assert any("some/target" in note for note in noted.notes)
    assert not any("some/target" in note for note in plain.with_drafter("lookup").notes)
