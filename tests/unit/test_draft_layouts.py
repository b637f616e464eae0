"""Drafters in every public layout are read into the record and the tensors they hold; variants of a layout too."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

from layout_files import ALL, REMOVE, Sizes, make, write
from slipstream.checkpoints.draft_shapes import expected_shapes
from slipstream.checkpoints.draft_vocab import kept_of, offsets_of
from slipstream.checkpoints.drafters import TargetFacts, read_drafter
from slipstream.checkpoints.layouts import LAYOUTS, layout_of, recognise
from slipstream.nets.draft_config import DraftConfig, Vocab
from slipstream.types import RequestError

FACTS = TargetFacts("target", hidden=32, layers=8, vocab=40, real_vocab=40, rope_theta=10000.0)
GOLDEN = json.loads((Path(__file__).parent.parent / "golden" / "drafter_layouts.json").read_text())
REDUCED = [
    name for name in ALL if name.split("/")[0] in ("safeailab", "specforge", "speculators") and "d2t" in GOLDEN[name]
]


def read(layout: str, folder: Path, **changes: object) -> DraftConfig:
    return read_drafter(write(layout, folder, **changes), FACTS).config


def test_every_layout_has_a_file() -> None:
    assert sorted(ALL) == sorted(f"{layout.name}/{layout.algorithm}" for layout in LAYOUTS) == sorted(GOLDEN)


@pytest.mark.parametrize("name", ALL)
def test_names_are_those_that_are_published(name: str) -> None:
    assert sorted(make(name).tensors) == GOLDEN[name]


@pytest.mark.parametrize("name", ALL)
def test_the_layouts_tables_hold_every_published_name_both_ways(name: str, tmp_path: Path) -> None:
    layout = layout_of(*name.split("/"))
    config = read(name, tmp_path)
    blocks = config.heads.blocks if config.heads else 0
    asked = set(expected_shapes(config)) - {"vocab_map"}
    maps = {"d2t", "t2d"} if config.vocab.reduced else set()
    assert sorted({layout.names.own(n, blocks) for n in asked} | maps) == GOLDEN[name]
    assert {layout.names.canonical(own) for own in GOLDEN[name]} - {None} == asked


@pytest.mark.parametrize("kind", ["safetensors", "bin"])
@pytest.mark.parametrize("name", ALL)
def test_every_layout_is_recognised_and_every_tensor_is_the_files(name: str, kind: str, tmp_path: Path) -> None:
    layout, algorithm = name.split("/")
    folder = write(name, tmp_path / "d", kind=kind)
    found = read_drafter(folder, FACTS)
    assert (found.config.layout, found.config.algorithm) == (layout, algorithm)
    assert recognise(folder) == algorithm
    assert {n: tuple(t.shape) for n, t in found.tensors.items()} == expected_shapes(found.config)
    stored = make(name).tensors
    names = layout_of(layout, algorithm).names
    for canonical, tensor in found.tensors.items():
        if canonical != "vocab_map":
            own = names.own(canonical, found.config.heads.blocks if found.config.heads else 0)
            assert torch.equal(tensor, stored[own].reshape(tensor.shape)), canonical


@pytest.mark.parametrize("name", [n for n in ALL if not n.startswith("medusa")])
def test_the_body_is_read(name: str, tmp_path: Path) -> None:
    config = read(name, tmp_path)
    body = config.body
    assert (body.hidden, body.heads, body.kv_heads, body.head_dim, body.mlp) == (32, 4, 2, 8, 48)
    assert body.eps == 1e-5
    assert body.rope.theta == 10000.0
    assert body.activation == "silu"
    assert body.layers == len(body.windows) == (1 if config.algorithm in ("eagle", "eagle3") else 2)
    assert body.qk_norm == (config.algorithm in ("dflash", "dflash2", "dspark") or name == "deepspec/eagle3")
    assert config.vocab.target == 40
    assert config.vocab.draft == (24 if "d2t" in GOLDEN[name] else 40)
    assert config.vocab.own_embed == ("embed_tokens.weight" in GOLDEN[name])
    assert config.vocab.own_head == ("lm_head.weight" in GOLDEN[name])


@pytest.mark.parametrize("name", ALL)
def test_taps_of_every_spelling_are_the_same_states(name: str, tmp_path: Path) -> None:
    final = name in ("safeailab/eagle", "medusa/medusa", "medusa-legacy/medusa")
    assert read(name, tmp_path).features.taps == ((-1,) if final else (2, 4, 5))


@pytest.mark.parametrize("name", REDUCED)
def test_offsets_become_absolute_ids(name: str, tmp_path: Path) -> None:
    found = read_drafter(write(name, tmp_path), FACTS)
    stored, ids = make(name).tensors, found.tensors["vocab_map"]
    assert ids.dtype == torch.int64
    assert torch.equal(ids, stored["t2d"].nonzero().flatten())
    assert torch.equal(offsets_of(ids), stored["d2t"])
    assert torch.equal(kept_of(ids, 40), stored["t2d"])


def test_rows_differ_by_layout_and_flag(tmp_path: Path) -> None:
    rows = read("safeailab/eagle", tmp_path / "1").rows
    assert (rows.feedback, rows.logit_norm, rows.residual_norm) == ("pre", False, False)
    rows = read("safeailab/eagle3", tmp_path / "2").rows
    assert (rows.feedback, rows.logit_norm, rows.residual_norm) == ("pre", True, False)
    rows = read("specforge/eagle3", tmp_path / "3", config={"norm_output": False}).rows
    assert (rows.feedback, rows.logit_norm) == ("pre", False)
    rows = read("speculators/eagle3", tmp_path / "4", config={"norm_output": True}).rows
    assert (rows.feedback, rows.logit_norm, rows.residual_norm) == ("post", True, True)


def test_tap_norms(tmp_path: Path) -> None:
    each = {f"fc_norm.{c}.weight": torch.ones(32) for c in range(3)}
    for name in ("specforge/eagle3", "speculators/eagle3"):
        config = read(name, tmp_path / name, config={"fc_norm": True}, tensors=each)
        assert config.features.norm == "each"
    whole = {"input_norm.weight": torch.ones(96)}
    config = read("speculators/eagle3", tmp_path / "w", config={"norm_before_fc": True}, tensors=whole)
    assert config.features.norm == "whole"


def test_a_single_final_tap_without_fc(tmp_path: Path) -> None:
    changes = {"eagle_config.use_aux_hidden_state": False}
    features = read("specforge/eagle3", tmp_path, config=changes, tensors={"fc.weight": None}).features
    assert (features.taps, features.fused) == ((-1,), False)


@pytest.mark.parametrize("prefix", ["model.", "module.", "draft_model.", "module.draft_model."])
def test_prefixes_are_taken_off_with_a_note(prefix: str, tmp_path: Path) -> None:
    tensors = make("specforge/eagle3").tensors
    moved = {**dict.fromkeys(tensors), **{prefix + n: t for n, t in tensors.items()}}
    found = read_drafter(write("specforge/eagle3", tmp_path / "a", tensors=moved), FACTS)
    plain = read_drafter(write("specforge/eagle3", tmp_path / "b"), FACTS)
    assert found.config == plain.config
    assert all(torch.equal(found.tensors[n], t) for n, t in plain.tensors.items())
    assert any("taken off" in note for note in found.notes)


def test_logit_head_containers_of_older_files(tmp_path: Path) -> None:
    tensors = make("specforge/dspark").tensors
    heads = {n: t for n, t in tensors.items() if n.startswith(("markov_head", "confidence_head"))}
    moved = {**dict.fromkeys(heads), **{f"logit_head.{n}": t for n, t in heads.items()}}
    assert read("specforge/dspark", tmp_path, tensors=moved).markov.kind == "vanilla"


def test_sglangs_name_of_the_layer_is_read(tmp_path: Path) -> None:
    tensors = make("specforge/eagle3").tensors
    layer = {n: t for n, t in tensors.items() if n.startswith("midlayer.")}
    moved = {**dict.fromkeys(layer), **{n.replace("midlayer", "layers.0"): t for n, t in layer.items()}}
    assert read("specforge/eagle3", tmp_path / "a", tensors=moved) == read("specforge/eagle3", tmp_path / "b")


def test_vllms_flat_eagle3_reads_a_normed_residual_when_it_says_nothing(tmp_path: Path) -> None:
    nested = make("speculators/eagle3").config["transformer_layer_config"]
    gone = dict.fromkeys(
        ("speculators_model_type", "speculators_config", "transformer_layer_config", "norm_before_residual"), REMOVE
    )
    flat = {**nested, "architectures": ["Eagle3LlamaForCausalLM"], **gone}
    config = read("speculators/eagle3", tmp_path, config=flat)
    assert config.layout == "speculators"
    assert config.rows.residual_norm


def test_fused_maps_are_cut_apart(tmp_path: Path) -> None:
    plain, fused = make("zlab/dflash").tensors, {}
    for i in range(2):
        at = f"layers.{i}.self_attn."
        fused[f"{at}qkv_proj.weight"] = torch.cat([plain[f"{at}{n}_proj.weight"] for n in "qkv"])
        fused |= {f"{at}{n}_proj.weight": None for n in "qkv"}
        at = f"layers.{i}.mlp."
        fused[f"{at}gate_up_proj.weight"] = torch.cat([plain[f"{at}{n}_proj.weight"] for n in ("gate", "up")])
        fused |= {f"{at}{n}_proj.weight": None for n in ("gate", "up")}
    found = read_drafter(write("zlab/dflash", tmp_path, tensors=fused), FACTS)
    for name in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj"):
        assert torch.equal(found.tensors[f"layers.1.{name}.weight"], plain[f"layers.1.{name}.weight"])


def test_identity_maps_are_dropped(tmp_path: Path) -> None:
    same = {"d2t": torch.zeros(40, dtype=torch.int64), "t2d": torch.ones(40, dtype=torch.bool)}
    full = {**same, "lm_head.weight": torch.randn(40, 32)}
    found = read_drafter(write("specforge/eagle3", tmp_path, config={"draft_vocab_size": 40}, tensors=full), FACTS)
    assert not found.config.vocab.reduced
    assert "vocab_map" not in found.tensors


def test_maps_of_other_types(tmp_path: Path) -> None:
    stored = make("safeailab/eagle3").tensors
    other = {"d2t": stored["d2t"].to(torch.int32), "t2d": stored["t2d"].to(torch.uint8)}
    found = read_drafter(write("safeailab/eagle3", tmp_path, tensors=other), FACTS)
    assert torch.equal(found.tensors["vocab_map"], stored["t2d"].nonzero().flatten())


def test_a_tied_drafter_has_its_table_for_a_head(tmp_path: Path) -> None:
    changes = {
        "draft_vocab_size": 40,
        "tie_word_embeddings": True,
        "transformer_layer_config.tie_word_embeddings": True,
    }
    gone = {"lm_head.weight": None, "d2t": None, "t2d": None}
    found = read_drafter(write("speculators/eagle3", tmp_path, config=changes, tensors=gone), FACTS)
    assert found.config.vocab.own_head
    assert torch.equal(found.tensors["head.weight"], found.tensors["embed.weight"])


def test_layers_are_counted_in_the_tensors(tmp_path: Path) -> None:
    found = read_drafter(write("safeailab/eagle", tmp_path, config={"num_hidden_layers": 32}), FACTS)
    assert found.config.body.layers == 1
    assert any("num_hidden_layers is 32" in note for note in found.notes)


def test_rope_of_either_spelling(tmp_path: Path) -> None:
    old = read("zlab/dflash", tmp_path / "1", config={"rope_theta": 5e5}).body.rope
    new = read("zlab/dflash", tmp_path / "2", config={"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}})
    both = {"rope_theta": 1e4, "rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}}
    assert old.theta == new.body.rope.theta == read("zlab/dflash", tmp_path / "3", config=both).body.rope.theta == 5e5
    linear = {"rope_parameters": {"rope_theta": 5e5, "rope_type": "linear", "factor": 2.0}}
    both = linear | {"rope_scaling": {"rope_type": "linear", "factor": 8.0}}
    assert read("zlab/dflash", tmp_path / "5", config=both).body.rope.params["factor"] == 2.0
    yarn = {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}}
    rope = read("zlab/dflash", tmp_path / "4", config=yarn).body.rope
    assert (rope.kind, rope.params["factor"]) == ("yarn", 4.0)


def test_a_missing_base_is_ten_thousand_never_the_targets(tmp_path: Path) -> None:
    facts = TargetFacts("target", 32, 8, 40, 40, rope_theta=5e5)
    found = read_drafter(write("safeailab/eagle3", tmp_path), facts)
    assert found.config.body.rope.theta == 10000.0
    assert any("10000" in note and "500000" in note for note in found.notes)


def test_taps_that_depend_on_the_target(tmp_path: Path) -> None:
    folder = write("safeailab/eagle3", tmp_path)
    with pytest.raises(RequestError, match="--model"):
        read_drafter(folder)
    assert read_drafter(folder, TargetFacts("t", 32, 12, 40, 40)).config.features.taps == (2, 6, 9)
    assert read_drafter(folder, taps=(1, 2, 3)).config.features.taps == (1, 2, 3)


@pytest.mark.parametrize(
    ("layers", "count", "ids"),
    [(36, 5, [1, 9, 17, 25, 33]), (28, 5, [1, 7, 13, 19, 25]), (64, 5, [1, 16, 31, 46, 61]), (24, 1, [12])],
)
def test_z_labs_own_rule_for_missing_ids(layers: int, count: int, ids: list[int], tmp_path: Path) -> None:
    sizes = Sizes(layers=count, taps=tuple(i + 1 for i in ids), target_layers=layers)
    folder = write("zlab/dflash", tmp_path, sizes=sizes, config={"dflash_config.target_layer_ids": REMOVE})
    found = read_drafter(folder)
    assert found.config.features.taps == tuple(i + 1 for i in ids)
    assert any(str(ids) in note for note in found.notes)


def test_overrides_change_the_record_only(tmp_path: Path) -> None:
    folder = write("zlab/dflash", tmp_path)
    found = read_drafter(folder, FACTS, tap_shift=1, anchor_predicts=True, rope_theta=5e5, block_size=3, mask_token=7)
    assert found.config.features.taps == (3, 5, 6)
    assert found.config.body.rope.theta == 5e5
    block = found.config.block
    assert (block.size, block.mask_token, block.anchor_predicts, block.drafts) == (3, 7, True, 3)
    eagle = read_drafter(write("speculators/eagle3", tmp_path / "e"), FACTS, feedback="post", residual_norm=False)
    assert (eagle.config.rows.feedback, eagle.config.rows.residual_norm) == ("post", False)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"gamma": 3}, "'gamma'"),
        ({"feedback": "post"}, "feedback"),
        ({"tap_shift": 9}, "0 to 8"),
        ({"taps": (1,)}, "fc"),
    ],
)
def test_overrides_that_do_not_apply_are_refused(given: dict[str, object], said: str, tmp_path: Path) -> None:
    with pytest.raises((RequestError, RuntimeError), match=re.escape(said)):
        read_drafter(write("zlab/dflash", tmp_path), FACTS, **given)


def test_several_files_with_an_index(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    whole = read_drafter(write("zlab/dflash", tmp_path / "one"), FACTS)
    folder = write("zlab/dflash", tmp_path / "two")
    tensors = make("zlab/dflash").tensors
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    where = {n: f"model-{1 + i % 2}.safetensors" for i, n in enumerate(names)}
    for file in set(where.values()):
        save_file({n: tensors[n] for n in names if where[n] == file}, str(folder / file))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    found = read_drafter(folder, FACTS)
    assert found.config == whole.config
    assert all(torch.equal(found.tensors[n], t) for n, t in whole.tensors.items())


@pytest.mark.parametrize("name", ["speculators/dflash", "speculators/dspark"])
def test_older_speculators_files_bring_both_tables(name: str, tmp_path: Path) -> None:
    older = {"embed_tokens.weight": torch.randn(40, 32), "lm_head.weight": torch.randn(24, 32)}
    assert read(name, tmp_path / "1", tensors=older).vocab == Vocab(40, 24, own_embed=True, own_head=True)
    full = Sizes(draft_vocab=40)
    assert read(name, tmp_path / "2", sizes=full).vocab == Vocab(40, 40)


def test_medusa_without_config_and_inside_a_full_checkpoint(tmp_path: Path) -> None:
    folder = write("medusa/medusa", tmp_path / "bare", kind="bin")
    (folder / "config.json").unlink()
    assert read_drafter(folder, FACTS).config.heads.count == 3
    tensors = make("medusa/medusa").tensors
    moved = {**dict.fromkeys(tensors), **{f"medusa_head.{n}": t for n, t in tensors.items()}}
    moved |= {"model.embed_tokens.weight": torch.randn(40, 32), "lm_head.weight": torch.randn(40, 32)}
    found = read_drafter(write("medusa/medusa", tmp_path / "full", tensors=moved), FACTS)
    assert found.config.heads.count == 3
    assert any("2 tensors outside" in note for note in found.notes)


def test_a_drafter_of_transformers_own_making(tmp_path: Path) -> None:
    module = pytest.importorskip("transformers.models.muse_glimmer_assistant")
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2}
    more = {"head_dim": 8, "num_hidden_layers": 2, "vocab_size": 40, "block_size": 4, "mask_token_id": 3}
    kinds = {"target_layer_ids": [1, 3, 4], "sliding_window": 16, "layer_types": ["sliding_attention"] * 2}
    model = module.MuseGlimmerAssistantModel(module.MuseGlimmerAssistantConfig(**sizes, **more, **kinds))
    model.save_pretrained(tmp_path)
    found = read_drafter(tmp_path, FACTS)
    assert (found.config.layout, found.config.features.taps) == ("transformers", (2, 4, 5))
    assert found.config.body.windows == (17, 17), "theirs reaches one token further"
    assert found.config.block.causal == (False, False)
    assert found.config.block.size == 4
    assert not found.config.block.anchor_predicts
    assert torch.equal(found.tensors["fc.weight"], model.state_dict()["encoder.fc.weight"])
