"""Drafters in every layout that can hold them, there and back; what a layout cannot say is refused by name."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
import torch

from draft_files_kit import DRAFTERS, MASK, ROWS, drafter, make_target, plain
from slipstream.checkpoints.drafters import read_drafter
from slipstream.checkpoints.layout_limits import LIMITS, layouts_of
from slipstream.checkpoints.layouts import LAYOUTS
from slipstream.checkpoints.target_folder import TargetFolder
from slipstream.checkpoints.writing import write_drafter
from slipstream.measure.convert import convert
from slipstream.nets.draft_config import Block, DraftCheckpoint, Features, Vocab
from slipstream.types import RequestError

WRITABLE = [(name, layout) for name, (_, layouts, _) in DRAFTERS.items() for layout in layouts]
PAIRS = [(name, a, b) for name, (_, ls, _) in DRAFTERS.items() for a, b in itertools.permutations(ls, 2)]
REFUSED = [(name, layout, word) for name, (_, _, words) in DRAFTERS.items() for layout, word in words.items()]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> TargetFolder:
    return make_target(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> TargetFolder:
    """A target half as wide again as the drafters."""
    return make_target(tmp_path_factory.mktemp("wide"), hidden_size=24)


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted(folder.iterdir())}


def raw_of(folder: Path) -> dict:
    return json.loads((folder / "config.json").read_text())


def same(a: DraftCheckpoint, b: DraftCheckpoint) -> bool:
    return set(a.tensors) == set(b.tensors) and all(torch.equal(a.tensors[n], b.tensors[n]) for n in a.tensors)


def test_limits_and_layouts_are_the_same_pairs() -> None:
    assert set(LIMITS) == {(layout.name, layout.algorithm) for layout in LAYOUTS}


def test_every_drafter_says_what_each_layout_makes_of_it() -> None:
    for found, able, unable in DRAFTERS.values():
        assert sorted([*able, *unable]) == sorted(layouts_of(found.config.algorithm))


@pytest.mark.parametrize(("name", "layout"), WRITABLE)
def test_what_is_written_is_what_is_read(name: str, layout: str, target: TargetFolder, tmp_path: Path) -> None:
    found = DRAFTERS[name][0]
    write_drafter(found, layout, tmp_path / "a", base=target)
    back = read_drafter(tmp_path / "a")
    assert back.config.layout == layout
    for n in found.tensors:
        assert torch.equal(back.tensors[n], found.tensors[n])
        assert back.tensors[n].dtype == found.tensors[n].dtype
    tables = {"embed.weight": target.table("embed"), "head.weight": target.table("head")}
    for n in set(back.tensors) - set(found.tensors):
        assert torch.equal(back.tensors[n], tables[n])
    assert back.config.claims.layers in (None, 8)
    assert back.config.body == found.config.body


@pytest.mark.parametrize(("name", "a", "b"), PAIRS)
def test_there_and_back(name: str, a: str, b: str, target: TargetFolder, wide: TargetFolder, tmp_path: Path) -> None:
    target = wide if DRAFTERS[name][0].config.features.width == 24 else target
    write_drafter(DRAFTERS[name][0], a, tmp_path / "a", base=target)
    first = read_drafter(tmp_path / "a")
    convert(tmp_path / "a", b, tmp_path / "b", target=target)
    assert read_drafter(tmp_path / "b").config.layout == b
    convert(tmp_path / "b", a, tmp_path / "again", target=target)
    last = read_drafter(tmp_path / "again")
    assert plain(last) == plain(first)
    assert same(first, last)


@pytest.mark.parametrize(("name", "layout", "word"), REFUSED)
def test_what_a_layout_cannot_say_is_refused_by_name(
    name: str, layout: str, word: str, target: TargetFolder, tmp_path: Path
) -> None:
    with pytest.raises(RequestError, match=word) as e:
        write_drafter(DRAFTERS[name][0], layout, tmp_path / "out", base=target)
    assert repr(layout) in str(e.value)
    assert "\n" not in str(e.value)
    assert not list(tmp_path.iterdir())


def test_an_algorithm_the_layout_does_not_have(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="'zlab' has no medusa drafters; medusa can be written as medusa"):
        write_drafter(drafter("medusa"), "zlab", tmp_path / "out")
    with pytest.raises(RequestError, match="'nowhere' is not one of"):
        write_drafter(drafter("medusa"), "nowhere", tmp_path / "out")


def test_fixed_taps_are_checked_against_the_targets_layers(target: TargetFolder, tmp_path: Path) -> None:
    found = drafter("eagle3", features=Features((2, 4, 6), 16))
    with pytest.raises(RequestError, match=r"taps \[2, 4, 6\]: there they are always \[2, 4, 5\]"):
        write_drafter(found, "safeailab", tmp_path / "out", base=target)


def test_taps_that_read_back_as_others_are_refused(target: TargetFolder, tmp_path: Path) -> None:
    # as outputs these are [2, 4, 5], which under the nested key alone is another file's spelling of taps 2, 4, 5
    found = drafter("eagle3", features=Features((3, 5, 6), 16))
    write_drafter(found, "specforge", tmp_path / "out", base=target)
    assert read_drafter(tmp_path / "out").config.features.taps == (3, 5, 6)
    raw = raw_of(tmp_path / "out")
    assert raw["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [2, 4, 5]
    assert raw["eagle_aux_hidden_state_layer_ids"] == [3, 5, 6]


@pytest.mark.parametrize("layout", ["speculators", "deepspec"])
def test_tables_come_from_the_target_or_not_at_all(layout: str, target: TargetFolder, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"holds the table embed.weight.*--model"):
        write_drafter(drafter("dspark"), layout, tmp_path / "out")
    wrong = drafter("dspark", vocab=Vocab(ROWS + 1, ROWS + 1))
    with pytest.raises(RequestError, match=r"embed.weight \[14, 16\]; the drafter asks for \[15, 16\]"):
        write_drafter(wrong, layout, tmp_path / "out", base=target)


def test_a_tied_head_is_the_embedding(tmp_path: Path) -> None:
    tied = make_target(tmp_path / "tied", tied=True)
    write_drafter(drafter("dflash"), "speculators", tmp_path / "out", base=tied)
    back = read_drafter(tmp_path / "out")
    assert torch.equal(back.tensors["head.weight"], back.tensors["embed.weight"])


@pytest.mark.parametrize(("algorithm", "layout"), [("dflash", "speculators"), ("eagle3", "specforge")])
@pytest.mark.parametrize("size", [ROWS, 8])
def test_a_shared_head_is_written_as_the_rows_that_can_be_drafted(
    algorithm: str, layout: str, size: int, target: TargetFolder, tmp_path: Path
) -> None:
    from slipstream.measure.convert import tables_of
    from slipstream.measure.draft_proof import same_answers

    found = drafter(algorithm, vocab=Vocab(ROWS, size))
    write_drafter(found, layout, tmp_path / "out", base=target)
    back = read_drafter(tmp_path / "out")
    kept = found.tensors.get("vocab_map", torch.arange(ROWS))
    assert torch.equal(back.tensors["head.weight"], target.table("head")[kept])
    same_answers(found, back, tables_of(target))


def test_a_target_that_scales_its_embedding_is_refused(tmp_path: Path) -> None:
    gemma = make_target(tmp_path / "gemma", model_type="gemma3_text")
    with pytest.raises(RequestError, match="gemma3_text model, which scales its embedding"):
        write_drafter(drafter("dflash"), "speculators", tmp_path / "out", base=gemma)


def test_own_tables_are_left_out_only_where_they_are_the_targets(target: TargetFolder, tmp_path: Path) -> None:
    write_drafter(drafter("dflash"), "speculators", tmp_path / "spec", base=target)
    with pytest.raises(RequestError, match=r"own embed.weight; where it is a copy"):
        convert(tmp_path / "spec", "zlab", tmp_path / "out")
    stranger = make_target(tmp_path / "stranger", seed=4)
    with pytest.raises(RequestError, match=r"own embed.weight, and it is not a copy"):
        convert(tmp_path / "spec", "zlab", tmp_path / "out", target=stranger)
    done = convert(tmp_path / "spec", "zlab", tmp_path / "out", target=target)
    assert done.left_out == ("embed.weight", "head.weight")
    assert done.copied == ()


def test_the_draft_vocabulary_is_offsets_and_members(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    found = DRAFTERS["eagle3 reduced"][0]
    write_drafter(found, "specforge", tmp_path / "out")
    stored = load_file(str(tmp_path / "out" / "model.safetensors"))
    kept = found.tensors["vocab_map"]
    assert stored["d2t"].dtype == torch.int64
    assert torch.equal(stored["d2t"] + torch.arange(8), kept)
    assert stored["t2d"].dtype == torch.bool
    assert torch.equal(stored["t2d"].nonzero()[:, 0], kept)
    jumbled = DraftCheckpoint(found.config, {**found.tensors, "vocab_map": kept.flip(0)})
    with pytest.raises(RequestError, match="ascending order"):
        write_drafter(jumbled, "specforge", tmp_path / "jumbled")


def test_flags_that_engines_read_in_different_senses(target: TargetFolder, tmp_path: Path) -> None:
    write_drafter(drafter("eagle3"), "specforge", tmp_path / "sf")
    assert "norm_output" not in raw_of(tmp_path / "sf")
    for name, causal in (("dflash", False), ("dflash sliding", True)):
        write_drafter(DRAFTERS[name][0], "speculators", tmp_path / name, base=target)
        assert raw_of(tmp_path / name)["sliding_window_non_causal"] is not causal
    raw = raw_of(tmp_path / "dflash")
    assert raw["aux_hidden_state_layer_ids"] == [2, 6]
    assert raw["sample_from_anchor"] is False
    assert raw["speculators_config"]["proposal_methods"][0]["speculative_tokens"] == 3
    assert raw["speculators_config"]["verifier"]["name_or_path"] == "the/target"
    write_drafter(drafter("dflash"), "zlab", tmp_path / "zlab")
    assert raw_of(tmp_path / "zlab")["dflash_config"] == {"mask_token_id": MASK, "target_layer_ids": [1, 5]}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_stays_as_it_is(dtype: torch.dtype, target: TargetFolder, tmp_path: Path) -> None:
    found = drafter("eagle3", dtype=dtype)
    write_drafter(found, "specforge", tmp_path / "a")
    convert(tmp_path / "a", "speculators", tmp_path / "b", target=target)
    back = read_drafter(tmp_path / "b")
    assert back.tensors["fc.weight"].dtype == dtype
    assert torch.equal(back.tensors["fc.weight"], found.tensors["fc.weight"])
    assert raw_of(tmp_path / "b")["dtype"] == str(dtype).removeprefix("torch.")


def test_twice_the_same_bytes(target: TargetFolder, tmp_path: Path) -> None:
    write_drafter(drafter("dspark"), "specforge", tmp_path / "a")
    for out in ("b", "c"):
        convert(tmp_path / "a", "speculators", tmp_path / out, target=target)
    assert bytes_of(tmp_path / "b") == bytes_of(tmp_path / "c")
    convert(tmp_path / "a", "deepspec", tmp_path / "b", target=target, force=True)
    assert raw_of(tmp_path / "b")["architectures"] == ["Qwen3DSparkModel"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "b", "c"]


def test_rotary_scaling_is_written_in_the_layouts_own_spelling(target: TargetFolder, tmp_path: Path) -> None:
    from slipstream.nets.families import Rope

    linear = drafter("eagle3", body={"rope": Rope(500.0, "linear", {"factor": 2.0})})
    for layout in ("safeailab", "specforge", "speculators"):
        write_drafter(linear, layout, tmp_path / layout, base=target)
        assert read_drafter(tmp_path / layout).config.body.rope == linear.config.body.rope
    assert raw_of(tmp_path / "safeailab")["rope_scaling"] == {"type": "linear", "factor": 2.0}
    params = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
    llama3 = drafter("eagle3", body={"rope": Rope(500.0, "llama3", params)})
    with pytest.raises(RequestError, match="kind of rotary scaling: llama3; there it is default or linear"):
        write_drafter(llama3, "safeailab", tmp_path / "out", base=target)
    write_drafter(llama3, "speculators", tmp_path / "llama3", base=target)
    assert read_drafter(tmp_path / "llama3").config.body.rope.params == params


@pytest.mark.parametrize("kind", ["vanilla", "gated", "rnn"])
@pytest.mark.parametrize("confidence", ["none", "hidden", "markov"])
def test_every_head_of_dspark(kind: str, confidence: str, target: TargetFolder, tmp_path: Path) -> None:
    from slipstream.nets.draft_config import Markov

    found = drafter("dspark", markov=Markov(kind, 5, confidence))
    write_drafter(found, "specforge", tmp_path / "a")
    convert(tmp_path / "a", "deepspec", tmp_path / "b", target=target)
    convert(tmp_path / "b", "speculators", tmp_path / "c")
    assert read_drafter(tmp_path / "c").config.markov == found.config.markov


def test_medusa_heads_keep_their_blocks(tmp_path: Path) -> None:
    from slipstream.nets.draft_config import Heads

    found = drafter("medusa", heads=Heads(2, 3, True))
    write_drafter(found, "medusa", tmp_path / "out")
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["config.json", "medusa_lm_head.safetensors"]
    assert read_drafter(tmp_path / "out").config.heads == Heads(2, 3, True)
    shared = drafter("medusa", heads=Heads(2, 1, False))
    write_drafter(shared, "medusa-legacy", tmp_path / "legacy")
    for layout, out in (("medusa", "out"), ("medusa-legacy", "legacy")):
        convert(tmp_path / out, layout, tmp_path / f"{out}-again")
        assert bytes_of(tmp_path / f"{out}-again") == bytes_of(tmp_path / out)
    assert read_drafter(tmp_path / "legacy").config.heads == Heads(2, 1, False)


def test_only_a_drafters_folder_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "letters.txt").write_text("dear")
    with pytest.raises(RequestError, match="exists and is not a drafter's folder"):
        write_drafter(drafter("eagle"), "safeailab", tmp_path / "home", force=True)
    write_drafter(drafter("eagle"), "safeailab", tmp_path / "out")
    with pytest.raises(RequestError, match="--force"):
        write_drafter(drafter("eagle"), "safeailab", tmp_path / "out")
    with pytest.raises(RequestError, match="is the source itself"):
        convert(tmp_path / "out", "safeailab", tmp_path / "out", force=True)
    with pytest.raises(RequestError, match="does not exist"):
        write_drafter(drafter("eagle"), "safeailab", tmp_path / "no" / "out")


def test_a_proof_that_fails_leaves_the_old_folder(tmp_path: Path) -> None:
    write_drafter(drafter("eagle"), "safeailab", tmp_path / "out")
    before = bytes_of(tmp_path / "out")

    def never(folder: Path, ready: DraftCheckpoint) -> None:
        assert (folder / "config.json").exists()
        raise RequestError("no")

    with pytest.raises(RequestError, match=r"^no$"):
        write_drafter(drafter("eagle", seed=1), "safeailab", tmp_path / "out", check=never, force=True)
    assert bytes_of(tmp_path / "out") == before
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_a_writer_that_spells_a_key_wrongly_is_caught(
    target: TargetFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from slipstream.checkpoints import writing

    right = writing.config_out
    write_drafter(drafter("dflash"), "zlab", tmp_path / "a")

    def shifted(*args) -> dict:
        return {**right(*args), "aux_hidden_state_layer_ids": [1, 5]}

    monkeypatch.setattr(writing, "config_out", shifted)
    with pytest.raises(RequestError, match=r"features.taps is \(2, 6\) and reads back as \(1, 5\)"):
        convert(tmp_path / "a", "speculators", tmp_path / "b", target=target)
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_a_writer_that_swaps_two_tensors_is_caught(
    target: TargetFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from slipstream.checkpoints import writing
    from slipstream.types import WorkError

    right = writing.own_tensors
    write_drafter(drafter("dspark"), "specforge", tmp_path / "a")

    def swapped(*args) -> dict:
        out = right(*args)
        w1, w2 = "markov_head.markov_w1.weight", "markov_head.markov_w2.weight"
        return {**out, w1: out[w2], w2: out[w1]}

    monkeypatch.setattr(writing, "own_tensors", swapped)
    with pytest.raises(WorkError, match=r"tensor markov.w1.weight reads back as other numbers"):
        convert(tmp_path / "a", "deepspec", tmp_path / "b", target=target)
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_a_pickled_source_with_prefixes_and_fused_maps(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    write_drafter(drafter("eagle3"), "specforge", tmp_path / "a")
    tensors = load_file(str(tmp_path / "a" / "model.safetensors"))
    qkv = [tensors.pop(f"midlayer.self_attn.{n}_proj.weight") for n in "qkv"]
    tensors["midlayer.self_attn.qkv_proj.weight"] = torch.cat(qkv)
    torch.save({f"draft_model.{n}": t for n, t in tensors.items()}, tmp_path / "a" / "pytorch_model.bin")
    (tmp_path / "a" / "model.safetensors").unlink()
    done = convert(tmp_path / "a", "specforge", tmp_path / "b")
    assert any("draft_model." in note for note in done.notes)
    assert same(read_drafter(tmp_path / "b"), drafter("eagle3"))


def test_the_proof_sees_what_differs(tmp_path: Path) -> None:
    from slipstream.measure.draft_proof import same_answers, same_record, same_tensors
    from slipstream.types import WorkError

    a = drafter("dflash")
    shifted = drafter("dflash", block=Block(4, MASK - 1, False, (False, False)))
    with pytest.raises(RequestError, match=r"block.mask_token is 13 and reads back as 12"):
        same_record(a.config, shifted.config, "zlab")
    with pytest.raises(WorkError, match="answers a fixed input differently"):
        same_answers(a, DraftCheckpoint(shifted.config, a.tensors))
    off = {**a.tensors, "norm.weight": a.tensors["norm.weight"] + 1e-6}
    with pytest.raises(WorkError, match=r"tensor norm.weight reads back as other numbers"):
        same_tensors(a.tensors, off)
    with pytest.raises(WorkError, match=r"tensor fc.weight is missing"):
        same_tensors(a.tensors, {n: t for n, t in a.tensors.items() if n != "fc.weight"})


@pytest.mark.parametrize("name", ["dflash", "dflash sliding both ways"])
def test_transformers_loads_what_is_written_for_it(name: str, tmp_path: Path) -> None:
    from transformers import AutoModel

    write_drafter(DRAFTERS[name][0], "transformers", tmp_path / "out")
    model, report = AutoModel.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not any(report.values()), report
    config = DRAFTERS[name][0].config
    assert [i + 1 for i in model.config.target_layer_ids] == list(config.features.taps)
    assert model.config.layer_types.count("sliding_attention") == sum(w is not None for w in config.body.windows)
    assert (model.config.block_size, model.config.mask_token_id) == (config.block.size, config.block.mask_token)
