"""Where implementations disagree about a file, the layout decides; each choice is pinned here.

One test per disagreement that concerns loading: layer numbers, vocabulary maps, norms, tables, slots, masks, positions.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from layout_files import REMOVE, Sizes, make, write
from slipstream.checkpoints.drafters import TargetFacts, read_drafter
from slipstream.nets.draft_config import DraftCheckpoint
from slipstream.nets.families import Rope
from slipstream.nets.layers import RopeTable, rotate

FACTS = TargetFacts("target", hidden=32, layers=8, vocab=40, real_vocab=40, rope_theta=10000.0)
NESTED = "eagle_config.eagle_aux_hidden_state_layer_ids"
TOP = "eagle_aux_hidden_state_layer_ids"


def read(layout: str, folder: Path, facts: TargetFacts = FACTS, **changes: Any) -> DraftCheckpoint:
    return read_drafter(write(layout, folder, **changes), facts)


@pytest.mark.parametrize(
    ("layout", "key", "ids", "taps"),
    [
        ("speculators/eagle3", TOP, [1, 3, 6], (1, 3, 6)),  # states before these layers
        ("speculators/dflash", "aux_hidden_state_layer_ids", [1, 3, 6], (1, 3, 6)),
        ("zlab/dflash", "dflash_config.target_layer_ids", [1, 3, 6], (2, 4, 7)),  # outputs
        ("specforge/dspark", "dflash_config.target_layer_ids", [1, 3, 6], (2, 4, 7)),
        ("transformers/dflash", "target_layer_ids", [1, 3, 6], (2, 4, 7)),
        ("deepspec/eagle3", "target_layer_ids", [1, 3, 6], (2, 4, 7)),
        ("deepspec/dspark", "target_layer_ids", [-1, 3, 6], (0, 4, 7)),  # -1 is the embedding
        ("specforge/eagle3", NESTED, [0, 2, 6], (1, 3, 7)),
        ("specforge/peagle", NESTED, [0, 2, 6], (1, 3, 7)),
    ],
)
def test_layer_numbers_count_outputs_or_inputs(
    layout: str, key: str, ids: list[int], taps: tuple[int, ...], tmp_path: Path
) -> None:
    assert read(layout, tmp_path, config={key: ids}).config.features.taps == taps


def test_specforges_nested_numbers_in_either_spelling(tmp_path: Path) -> None:
    facts = TargetFacts("target", 32, 36, 40, 40, 10000.0)
    for at, (ids, taps, said) in enumerate(
        (
            ([1, 17, 32], (2, 18, 33), ""),  # the default set, as outputs
            ([2, 18, 33], (2, 18, 33), "before their input"),  # the same states, the other way
            ([1, 17, 33], (2, 18, 34), "doctor"),  # neither: honoured, never corrected to the default
        )
    ):
        found = read("specforge/eagle3", tmp_path / str(at), facts, config={NESTED: ids})
        assert found.config.features.taps == taps
        assert any(said in note for note in found.notes) if said else found.notes == ()


def test_vllms_key_at_the_top_comes_first_and_counts_inputs(tmp_path: Path) -> None:
    found = read("specforge/eagle3", tmp_path, config={TOP: [2, 5, 6], NESTED: [0, 1, 2]})
    assert found.config.features.taps == (2, 5, 6)


@pytest.mark.parametrize("layout", ["deepspec/eagle3", "deepspec/dspark"])
def test_five_taps_are_as_good_as_three(layout: str, tmp_path: Path) -> None:
    sizes = Sizes(taps=(2, 3, 4, 5, 6))
    assert read(layout, tmp_path, sizes=sizes).config.features.taps == (2, 3, 4, 5, 6)


@pytest.mark.parametrize("layout", ["specforge/eagle3", "speculators/eagle3", "zlab/dflash"])
def test_the_last_layer_is_taken_raw_and_only_when_asked_for(layout: str, tmp_path: Path) -> None:
    key = {"specforge/eagle3": NESTED, "speculators/eagle3": TOP, "zlab/dflash": "dflash_config.target_layer_ids"}
    ids = [1, 3, 8] if layout == "speculators/eagle3" else [1, 3, 7]
    folder = write(layout, tmp_path, config={key[layout]: ids})
    assert read_drafter(folder, FACTS, final_layer=True).config.features.taps[-1] == 8


def test_norm_output_is_the_heads_norm_for_specforge_and_the_feedback_elsewhere(tmp_path: Path) -> None:
    ours = read("specforge/eagle3", tmp_path / "1", config={"norm_output": True})
    assert (ours.config.rows.feedback, ours.config.rows.logit_norm) == ("pre", True)
    assert any("norm_output" in note for note in ours.notes)
    off = read("specforge/eagle3", tmp_path / "2", config={"norm_output": False}).config.rows
    assert (off.feedback, off.logit_norm) == ("pre", False)
    theirs = read("speculators/eagle3", tmp_path / "3", config={"norm_output": True}).config.rows
    assert (theirs.feedback, theirs.logit_norm) == ("post", True)
    absent = read("speculators/eagle3", tmp_path / "4", config={"norm_output": REMOVE}).config.rows
    assert absent.feedback == "pre"


def test_norm_before_residual_is_false_where_speculators_says_nothing(tmp_path: Path) -> None:
    found = read("speculators/eagle3", tmp_path, config={"norm_before_residual": REMOVE})
    assert not found.config.rows.residual_norm
    assert any("norm_before_residual is missing" in note and "vLLM reads true" in note for note in found.notes)


def test_the_bias_of_fc_is_true_by_default_and_then_what_the_tensors_say(tmp_path: Path) -> None:
    found = read("safeailab/eagle", tmp_path / "1", config={"bias": REMOVE})
    assert found.config.features.bias
    assert found.notes == ()
    found = read("safeailab/eagle", tmp_path / "2", config={"bias": REMOVE}, tensors={"fc.bias": None})
    assert not found.config.features.bias
    assert any("bias is missing" in note for note in found.notes)


def test_attention_bias_is_ignored_by_specforge_and_honoured_by_speculators(tmp_path: Path) -> None:
    assert read("specforge/eagle3", tmp_path / "1", config={"attention_bias": True}).config.body.biases == ()
    biased = {
        f"layers.0.self_attn.{n}_proj.bias": torch.randn(r) for n, r in zip("qkvo", (32, 16, 16, 32), strict=True)
    }
    config = {"transformer_layer_config.attention_bias": True}
    found = read("speculators/eagle3", tmp_path / "2", config=config, tensors=biased)
    assert found.config.body.biases == ("qkv", "out")


def test_head_dim_is_a_key_for_specforge_and_not_for_safeailab(tmp_path: Path) -> None:
    sizes = Sizes(head_dim=16)
    assert read("specforge/eagle3", tmp_path / "1", sizes=sizes).config.body.head_dim == 16
    with pytest.raises(Exception, match="hidden_size / num_attention_heads 8"):
        read("safeailab/eagle3", tmp_path / "2", sizes=sizes, config={"head_dim": 16})


def test_embeddings_in_the_file_are_the_drafters_own(tmp_path: Path) -> None:
    table = torch.randn(40, 32)
    found = read("specforge/eagle3", tmp_path / "1", tensors={"embed_tokens.weight": table})
    assert found.config.vocab.own_embed
    assert torch.equal(found.tensors["embed.weight"], table)
    assert not read("specforge/eagle3", tmp_path / "2").config.vocab.own_embed


def test_positions_are_counted_from_zero_whatever_a_layout_trained_with(tmp_path: Path) -> None:
    # speculators counts EAGLE-3 rows from 1: no rotary table here can tell, angles enter by their differences
    assert read("speculators/eagle3", tmp_path).config.rows.offset == 0
    q, k = torch.randn(2, 1, 2, 8, dtype=torch.float64)
    for rope in (Rope(1e4), Rope(1e4, "linear", {"factor": 2.0})):
        table = RopeTable(rope, 8, torch.float64, torch.device("cpu"))
        scores = []
        for base in (0, 1):
            cos, sin = table.rows(torch.tensor([base + 9, base + 4]), base + 9)
            scores.append((rotate(q, cos[:1], sin[:1]) * rotate(k, cos[1:], sin[1:])).sum(-1))
        assert torch.allclose(*scores, atol=1e-6)


def test_the_anchors_slot_predicts_or_not(tmp_path: Path) -> None:
    drafts = {}
    for layout in ("zlab/dflash", "speculators/dflash", "transformers/dflash", "deepspec/dflash", "deepspec/dspark"):
        block = read(layout, tmp_path / layout).config.block
        drafts[layout] = (block.anchor_predicts, block.drafts)
    assert drafts == {
        "zlab/dflash": (False, 3),
        "speculators/dflash": (False, 3),
        "transformers/dflash": (False, 3),
        "deepspec/dflash": (True, 4),
        "deepspec/dspark": (True, 4),
    }


def test_dsparks_slots_all_draft_unless_speculators_says_otherwise(tmp_path: Path) -> None:
    assert read("specforge/dspark", tmp_path / "1").config.block.anchor_predicts
    assert read("speculators/dspark", tmp_path / "2").config.block.anchor_predicts
    assert read(
        "speculators/dspark", tmp_path / "3", config={"sample_from_anchor": REMOVE}
    ).config.block.anchor_predicts
    off = read("speculators/dspark", tmp_path / "4", config={"sample_from_anchor": False}).config.block
    assert (off.anchor_predicts, off.drafts) == (False, 3)
    on = read("speculators/dflash", tmp_path / "5", config={"sample_from_anchor": True}).config.block
    assert (on.anchor_predicts, on.drafts) == (True, 4)


def test_a_variant_with_deepspecs_name_is_read_only_when_told_how(tmp_path: Path) -> None:
    folder = write("deepspec/dspark", tmp_path, config={"sample_from_anchor": False})
    block = read_drafter(folder, FACTS, anchor_predicts=False).config.block
    assert (block.anchor_predicts, block.drafts) == (False, 3)


MIXED = {"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 16}


def test_sliding_layers_are_causal_inside_a_block_except_where_said(tmp_path: Path) -> None:
    nested = {f"transformer_layer_config.{key}": value for key, value in MIXED.items()}
    seen = {
        "zlab": read("zlab/dflash", tmp_path / "1", config=MIXED),
        "zlab causal false": read("zlab/dflash", tmp_path / "2", config=MIXED | {"dflash_config.causal": False}),
        "zlab causal true": read("zlab/dflash", tmp_path / "3", config={"dflash_config.causal": True}),
        "speculators": read("speculators/dflash", tmp_path / "4", config=nested),
        "speculators free": read(
            "speculators/dflash", tmp_path / "5", config=nested | {"sliding_window_non_causal": True}
        ),
        "transformers": read("transformers/dflash", tmp_path / "6", config=MIXED),
    }
    assert {name: (f.config.body.windows, f.config.block.causal) for name, f in seen.items()} == {
        "zlab": ((None, 16), (False, True)),
        "zlab causal false": ((None, 16), (False, False)),
        "zlab causal true": ((None, None), (True, True)),
        "speculators": ((None, 16), (False, True)),
        "speculators free": ((None, 16), (False, False)),
        "transformers": ((None, 17), (False, False)),
    }


def test_a_window_by_its_own_keys_is_not_causal(tmp_path: Path) -> None:
    config = {"layer_types": REMOVE, "dflash_config.use_swa": True, "dflash_config.swa_window_size": 12}
    found = read("zlab/dflash", tmp_path, config=config).config
    assert (found.body.windows, found.block.causal) == ((12, 12), (False, False))


def test_full_layers_of_speculators_see_the_whole_block_whatever_its_flag_says(tmp_path: Path) -> None:
    # vLLM 0.32 makes ALL layers causal from the flag's default, against what was trained
    assert read("speculators/dflash", tmp_path).config.block.causal == (False, False)


@pytest.mark.parametrize("key", ["mask_token_id", "pard_token", "ptd_token_id", "dflash_config.mask_token_id"])
def test_the_mask_token_of_p_eagle_has_four_homes(key: str, tmp_path: Path) -> None:
    assert read("specforge/peagle", tmp_path, config={"mask_token_id": REMOVE, key: 9}).config.block.mask_token == 9


def test_the_mask_token_of_z_lab_is_nested_first_and_flat_for_others(tmp_path: Path) -> None:
    both = read("zlab/dflash", tmp_path / "1", config={"mask_token_id": 8, "dflash_config.mask_token_id": 9})
    assert both.config.block.mask_token == 9
    flat = read("zlab/dflash", tmp_path / "2", config={"mask_token_id": 8, "dflash_config.mask_token_id": REMOVE})
    assert flat.config.block.mask_token == 8
    given = write("specforge/peagle", tmp_path / "3", config={"mask_token_id": REMOVE})
    assert read_drafter(given, FACTS, mask_token=7).config.block.mask_token == 7


def test_newer_z_lab_files_nest_the_block_size(tmp_path: Path) -> None:
    config = {"block_size": REMOVE, "dflash_config.block_size": 6}
    assert read("zlab/dflash", tmp_path, config=config).config.block.size == 6


def test_absolute_maps_are_told_from_offsets(tmp_path: Path) -> None:
    ids = make("safeailab/eagle3").tensors["t2d"].nonzero().flatten()
    sure = read("safeailab/eagle3", tmp_path / "1", tensors={"d2t": ids})  # t2d settles it
    alone = read("safeailab/eagle3", tmp_path / "2", tensors={"d2t": ids, "t2d": None})  # as offsets: out of range
    for found in (sure, alone):
        assert torch.equal(found.tensors["vocab_map"], ids)
        assert any("not offsets: converted" in note for note in found.notes)


def test_a_map_that_can_be_either_is_offsets_and_the_caller_may_say_otherwise(tmp_path: Path) -> None:
    d2t = torch.arange(16)
    changes = {
        "config": {"draft_vocab_size": 16},
        "tensors": {"d2t": d2t, "t2d": None, "lm_head.weight": torch.randn(16, 32)},
    }
    folder = write("safeailab/eagle3", tmp_path, **changes)
    assert torch.equal(read_drafter(folder, FACTS).tensors["vocab_map"], 2 * d2t)
    assert torch.equal(read_drafter(folder, FACTS, vocab_map="absolute").tensors["vocab_map"], d2t)


def test_medusas_head_count_is_the_files(tmp_path: Path) -> None:
    assert read("medusa/medusa", tmp_path, config={"medusa_num_heads": 2}).config.heads.count == 3


def test_p_eagle_of_specforge_ignores_scalings_of_rope(tmp_path: Path) -> None:
    scaled = {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}
    found = read("specforge/peagle", tmp_path / "1", config=scaled)
    assert found.config.body.rope == Rope(10000.0)
    assert any("rope scaling is ignored" in note for note in found.notes)
    assert read("specforge/eagle3", tmp_path / "2", config=scaled).config.body.rope.kind == "linear"


def test_a_first_eagle_layer_has_no_input_norm_and_a_second_one_has(tmp_path: Path) -> None:
    first = make("safeailab/eagle").tensors
    second = {n.replace("layers.0", "layers.1"): t for n, t in first.items() if n.startswith("layers.0")}
    second["layers.1.input_layernorm.weight"] = torch.ones(32)
    assert read("safeailab/eagle", tmp_path, tensors=second).config.body.layers == 2
