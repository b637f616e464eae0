"""Learned drafters beside a target on the CPU kernels: the text of plain decoding, weights in every format."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

import layout_files
from slipstream import LLM, SamplingParams, kernels
from slipstream.types import RequestError
from tiny_model import CONFIG, make_model

pytestmark = pytest.mark.skipif(not kernels.available(), reason=f"CPU kernels: {kernels.reason()}")

PROMPTS = ["the cat sat on", "one two three", "the dog"]
NAMES = {
    "safeailab/eagle": "eagle",
    "safeailab/eagle3": "eagle3",
    "speculators/peagle": "peagle",
    "zlab/dflash": "dflash",
    "zlab/dflash2": "dflash2",
    "deepspec/dspark": "dspark",
    "medusa/medusa": "medusa",
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("target"), layers=8)


@pytest.fixture(scope="module")
def plain(model: Path) -> LLM:
    return LLM(str(model), "none", dtype="bfloat16", max_rows=3, max_model_len=96)


@pytest.fixture(scope="module")
def drafters(model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    vocab = json.loads((model / "config.json").read_text())["vocab_size"]
    sizes = layout_files.Sizes(hidden=CONFIG["hidden_size"], vocab=vocab, draft_vocab=vocab // 2, target_layers=8)
    root = tmp_path_factory.mktemp("drafters")
    out = {}
    for name in NAMES:
        fit = sizes if "eagle3" in name or "peagle" in name else dataclasses.replace(sizes, draft_vocab=vocab)
        out[name] = layout_files.write(name, root / name.replace("/", "-"), sizes=fit)
    return out


def texts(llm: LLM) -> list[list[int]]:
    return [out.token_ids for out in llm.generate(PROMPTS, SamplingParams(max_tokens=24, ignore_eos=True))]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("form", ["", "none", "int4", "int8", "w8a8"])
def test_greedy_output_is_that_of_plain_decoding(name, form, drafters, plain):
    spec = f"{NAMES[name]}:{drafters[name]}" + (f"?quantize={form}" if form else "")
    llm = plain.with_drafter(spec, draft_tokens=4)
    assert texts(llm) == texts(plain)
    assert llm.engine.drafter.dropped == 0


def test_the_format_is_the_targets_unless_asked(model, drafters, plain):
    spec = f"eagle3:{drafters['safeailab/eagle3']}"
    held = {form: plain.with_drafter(spec + form).engine.drafter.net.nbytes for form in ("", "?quantize=int4")}
    four = LLM(str(model), spec, quantize="int4", max_rows=3, max_model_len=96).engine.drafter.net.nbytes
    assert held["?quantize=int4"] == four < held[""] / 2


def test_formats_are_checked(model, drafters, plain):
    spec = f"eagle3:{drafters['safeailab/eagle3']}?quantize="
    with pytest.raises(RequestError, match=r"int5.*none, int4, int8, w8a8"):
        plain.with_drafter(spec + "int5")
    with pytest.raises(RequestError, match="needs a target on the CPU kernels"):
        LLM(str(model), spec + "int4", dtype="float32", max_model_len=96)
