"""`convert` and `info` on drafters, as commands: what they print, their exit status, and what is left on disk."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from draft_files_kit import LAYERS, drafter, make_target
from slipstream.checkpoints.writing import write_drafter
from slipstream.nets.draft_config import Features, Vocab


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target and drafters for it, each in one layout."""
    root = tmp_path_factory.mktemp("drafters")
    target = make_target(root / "target")
    write_drafter(drafter("eagle3", vocab=Vocab(14, 8, own_head=True)), "specforge", root / "eagle3")
    write_drafter(drafter("dflash"), "zlab", root / "dflash")
    write_drafter(drafter("dspark"), "deepspec", root / "dspark", base=target)
    write_drafter(drafter("eagle"), "safeailab", root / "eagle")
    return root


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def test_convert_and_read_what_came_out(cli, folders: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = cli("convert", str(folders / "dflash"), "--to", "speculators", str(out), "--model", str(folders / "target"))
    assert done.status == 0, done.err
    assert "dflash drafter, zlab -> speculators" in done.out
    assert "embed.weight: copied from" in done.out
    told = cli("info", str(out), "--json").json
    assert (told["algorithm"], told["layout"]) == ("dflash", "speculators")
    back = cli(
        "convert", str(out), "--to", "zlab", str(tmp_path / "back"), "--model", str(folders / "target"), "--json"
    )
    assert back.json["left_out"] == ["embed.weight", "head.weight"]
    assert back.json["source"] == "speculators"
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / "back" / name).read_bytes() == (folders / "dflash" / name).read_bytes()


@pytest.mark.parametrize(
    ("argv", "status", "word"),
    [
        (["{dflash}", "--to", "deepspec", "{out}", "--model", "{target}"], 2, "an anchor slot that predicts"),
        (["{dflash}", "--to", "speculators", "{out}"], 2, "--model"),
        (["{dflash}", "--to", "safeailab", "{out}"], 2, "has no dflash drafters"),
        (["{dflash}", "--to", "speculator", "{out}"], 2, "did you mean 'speculators'"),
        (["{eagle3}", "--to", "zlab", "{out}"], 2, "has no eagle3 drafters"),
        (["{target}", "--to", "zlab", "{out}"], 2, "target"),
        (["{nowhere}", "--to", "zlab", "{out}"], 2, "nowhere"),
        (["{dflash}", "--to", "zlab", "{out}/deeper"], 2, "does not exist"),
        (["{dflash}", "--to", "zlab", "{eagle3}"], 2, "--force"),
        (["{dflash}", "--to", "zlab", "{dflash}", "--force"], 2, "is the source itself"),
    ],
)
def test_what_is_refused_writes_nothing(cli, folders: Path, tmp_path: Path, argv, status: int, word: str) -> None:
    places = {n: folders / n for n in ("dflash", "eagle3", "target", "nowhere")} | {"out": tmp_path / "out"}
    before = names(folders)
    got = cli("convert", *(a.format(**places) for a in argv))
    assert got.status == status
    assert word in got.err
    assert got.err.count("\n") == 1
    assert names(tmp_path) == []
    assert names(folders) == before


def test_a_damaged_source_is_status_3_and_keeps_the_old_folder(cli, folders: Path, tmp_path: Path) -> None:
    write_drafter(drafter("eagle"), "safeailab", tmp_path / "bad")
    write_drafter(drafter("eagle"), "safeailab", tmp_path / "old")
    old = (tmp_path / "old" / "model.safetensors").read_bytes()
    file = str(tmp_path / "bad" / "model.safetensors")
    tensors = load_file(file)
    tensors["fc.weight"][0, 0] = float("nan")
    save_file(tensors, file)
    got = cli("convert", str(tmp_path / "bad"), "--to", "safeailab", str(tmp_path / "old"), "--force")
    assert (got.status, got.out) == (3, "")
    assert "fc.weight" in got.err
    assert names(tmp_path) == ["bad", "old"]
    assert (tmp_path / "old" / "model.safetensors").read_bytes() == old
    Path(file).write_bytes(b"not a file of tensors")
    assert cli("convert", str(tmp_path / "bad"), "--to", "safeailab", str(tmp_path / "new")).status == 3
    assert names(tmp_path) == ["bad", "old"]


def test_force_replaces_a_drafter(cli, folders: Path, tmp_path: Path) -> None:
    write_drafter(drafter("eagle"), "safeailab", tmp_path / "out")
    got = cli("convert", str(folders / "dflash"), "--to", "zlab", str(tmp_path / "out"), "--force")
    assert got.status == 0, got.err
    assert json.loads((tmp_path / "out" / "config.json").read_text())["architectures"] == ["DFlashDraftModel"]
    assert names(tmp_path) == ["out"]


def test_a_mask_token_the_source_does_not_say(cli, tmp_path: Path) -> None:
    write_drafter(drafter("peagle"), "specforge", tmp_path / "a")
    config = tmp_path / "a" / "config.json"
    raw = json.loads(config.read_text())
    config.write_text(json.dumps({k: v for k, v in raw.items() if k not in ("mask_token_id", "pard_token")}))
    got = cli("convert", str(tmp_path / "a"), "--to", "speculators", str(tmp_path / "b"))
    assert got.status == 2
    assert "mask_token" in got.err
    got = cli("convert", str(tmp_path / "a"), "--to", "speculators", str(tmp_path / "b"), "--mask-token", "13")
    assert got.status == 0, got.err
    assert json.loads((tmp_path / "b" / "config.json").read_text())["mask_token_id"] == 13


def test_info_of_a_drafter(cli, folders: Path) -> None:
    told = cli("info", str(folders / "eagle3"), "--json", "--max-model-len", "1000").json
    assert told["algorithm"] == "eagle3"
    assert told["layout"] == "specforge"
    assert told["tap_ids"] == [2, 4, 5]
    assert (told["draft_vocabulary"], told["target_vocabulary"]) == (8, 14)
    assert told["target_layers"] == LAYERS
    per_token = 2 * 2 * 1 * 2 * 4  # keys and values, 16 bits, one layer of 2 heads of 4
    assert told["bytes"]["cache_per_token"] == per_token
    assert told["bytes"]["cache_per_row"] == 1000 * per_token
    stored = load_file(str(folders / "eagle3" / "model.safetensors"))
    assert told["parameters"] == sum(t.numel() for n, t in stored.items() if n not in ("d2t", "t2d"))
    assert told["tables"] == "the target's embedding, own head"
    assert told["draft_tokens"] == 12


def test_info_says_what_a_block_is(cli, folders: Path) -> None:
    told = cli("info", str(folders / "dspark"), "--json").json
    assert (told["block_size"], told["block_drafts"], told["draft_tokens"], told["mask_token"]) == (4, 4, 4, 13)
    assert told["tables"] == "own embedding, own head"
    shown = cli("info", str(folders / "dflash")).out
    for line in ("DFlash: a block of tokens in one pass", "the state after layers 2, 6 (of 1..8)", "block drafts"):
        assert line in shown
    assert "tap ids" not in shown


def test_info_of_a_model_is_what_it_was(cli, tiny: Path) -> None:
    told = cli("info", str(tiny), "--json").json
    assert (told["family"], told["layers"], told["hidden"]) == ("llama", 2, 32)
    assert cli("info", str(tiny), "--max-model-len", "5").status == 2
    assert cli("info", str(tiny), "--model", str(tiny)).status == 2


def test_info_asks_the_target_where_the_files_do_not_say_enough(cli, folders: Path, tmp_path: Path) -> None:
    write_drafter(drafter("eagle3", features=Features((2, 4, 5), 16)), "specforge", tmp_path / "a")
    config = tmp_path / "a" / "config.json"
    raw = json.loads(config.read_text())
    said = ("eagle_config", "eagle_aux_hidden_state_layer_ids", "num_target_layers")
    config.write_text(json.dumps({key: value for key, value in raw.items() if key not in said}))
    alone = cli("info", str(tmp_path / "a"))
    assert alone.status == 2
    assert "--model" in alone.err
    told = cli("info", str(tmp_path / "a"), "--model", str(folders / "target"), "--json")
    assert told.status == 0, told.err
    assert told.json["tap_ids"] == [2, LAYERS // 2, LAYERS - 3]
    assert told.json["drafter"] == str(tmp_path / "a")


def test_info_names_what_is_wrong_with_a_drafter(cli, tmp_path: Path) -> None:
    write_drafter(drafter("eagle3", features=Features((2, 4, 5), 16)), "specforge", tmp_path / "a")
    config = tmp_path / "a" / "config.json"
    raw = json.loads(config.read_text())
    config.write_text(json.dumps(raw | {"architectures": ["DominoDraftModel"]}))
    got = cli("info", str(tmp_path / "a"))
    assert got.status == 2
    assert "a Domino drafter" in got.err
