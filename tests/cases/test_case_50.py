"""Case 50: a conversion that writes random weights where a name does not match, and prints success."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from draft_files_kit import drafter, make_target
from slipstream.checkpoints.drafters import read_drafter
from slipstream.checkpoints.target_folder import TargetFolder
from slipstream.checkpoints.writing import write_drafter
from slipstream.measure.convert import convert
from slipstream.measure.draft_proof import answers, stand_in
from slipstream.types import WorkError

FILE = "model.safetensors"


@pytest.fixture
def target(tmp_path: Path) -> TargetFolder:
    return make_target(tmp_path / "target", tied=True, dtype=torch.bfloat16)


@pytest.fixture
def good(tmp_path: Path) -> Path:
    """An EAGLE-3 head without tables of its own but the output head, in half precision."""
    write_drafter(drafter("eagle3", dtype=torch.bfloat16), "specforge", tmp_path / "good")
    return tmp_path / "good"


def damaged(folder: Path, change) -> None:
    tensors = load_file(str(folder / FILE))
    change(tensors)
    save_file(tensors, str(folder / FILE), metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (
            lambda t: t.update({"midlayer.self_attn.kk_proj.weight": t.pop("midlayer.self_attn.k_proj.weight")}),
            "k_proj",
        ),
        (lambda t: t.pop("midlayer.hidden_norm.weight"), "midlayer.hidden_norm.weight"),
        (lambda t: t.pop("lm_head.weight"), "lm_head.weight"),
        (lambda t: t.update({"midlayer.extra.weight": torch.ones(3)}), "midlayer.extra.weight"),
        (lambda t: t.update({"fc.weight": t["fc.weight"][:, 1:].contiguous()}), "fc.weight"),
    ],
    ids=["renamed", "removed", "head removed", "unknown", "misshapen"],
)
@pytest.mark.parametrize("layout", ["speculators", "specforge"])
def test_case_50_a_name_that_does_not_match_is_an_error_and_writes_nothing(
    change, named: str, layout: str, good: Path, target: TargetFolder, tmp_path: Path
) -> None:
    damaged(good, change)
    raw = json.loads((good / "config.json").read_text())
    raw["draft_vocab_size"] = 8 if named == "lm_head.weight" else raw["draft_vocab_size"]
    (good / "config.json").write_text(json.dumps(raw))
    before = sorted(p.name for p in tmp_path.iterdir())
    with pytest.raises(WorkError, match=named.replace(".", r"\.")):
        convert(good, layout, tmp_path / "out", target=target)
    assert sorted(p.name for p in tmp_path.iterdir()) == before


def test_case_50_a_record_without_its_tensor_is_not_written(tmp_path: Path) -> None:
    found = drafter("dflash")
    for name in ("norm.weight", "layers.1.self_attn.q_norm.weight"):
        less = {n: t for n, t in found.tensors.items() if n != name}
        with pytest.raises(WorkError, match=f"tensor {name} .* is missing"):
            write_drafter(type(found)(found.config, less), "zlab", tmp_path / "out")
    more = {**found.tensors, "gate.weight": torch.ones(2)}
    with pytest.raises(WorkError, match=r"tensor gate\.weight is unknown"):
        write_drafter(type(found)(found.config, more), "zlab", tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_case_50_a_tied_head_becomes_the_embedding(target: TargetFolder, tmp_path: Path) -> None:
    write_drafter(drafter("dspark", dtype=torch.float16), "specforge", tmp_path / "a")
    done = convert(tmp_path / "a", "deepspec", tmp_path / "out", target=target)
    tensors = load_file(str(tmp_path / "out" / FILE))
    embedding = load_file(str(target.folder / FILE))["model.embed_tokens.weight"]
    assert done.copied == ("embed.weight", "head.weight")
    for name in ("embed_tokens.weight", "lm_head.weight"):
        assert tensors[name].dtype == torch.bfloat16
        assert torch.equal(tensors[name], embedding)


def test_case_50_the_same_answers_and_the_same_bytes(good: Path, target: TargetFolder, tmp_path: Path) -> None:
    for out in ("one", "two"):
        convert(good, "speculators", tmp_path / out, target=target)
    for name in ("config.json", FILE):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    source, written = read_drafter(good), read_drafter(tmp_path / "one")
    assert written.tensors["fc.weight"].dtype == torch.bfloat16
    convert(tmp_path / "one", "specforge", tmp_path / "back", target=target)
    back = read_drafter(tmp_path / "back")
    tables = stand_in(source.config)
    for a, b in zip(answers(source, tables), answers(back, tables), strict=True):
        assert torch.equal(a, b)
