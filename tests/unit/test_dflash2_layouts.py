"""DFlash 2's files in both public layouts: what is read, from where, and what is refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from layout_files import REMOVE, make, write
from slipstream.checkpoints.drafters import TargetFacts, read_drafter
from slipstream.nets.draft_config import DraftConfig, Paths
from slipstream.types import RequestError, WorkError

FACTS = TargetFacts("target", hidden=32, layers=8, vocab=40, real_vocab=40, rope_theta=10000.0)
ZLAB, SPECULATORS = "zlab/dflash2", "speculators/dflash2"
CODEBOOK = "candidate_selector.predecessor_codebook"


def read(layout: str, folder: Path, **changes: Any) -> DraftConfig:
    return read_drafter(write(layout, folder, **changes), FACTS).config


def test_what_z_lab_publishes(tmp_path: Path) -> None:
    """Its keys: the block's size and all sizes nested, causality at the top, scales for a target that has its own."""
    nested = {"input_embedding_scale": 2.0, "output_multiplier": 0.196, "final_logit_softcapping": 20.0}
    config = read(ZLAB, tmp_path, config={f"dflash_config.{k}": v for k, v in nested.items()})
    assert config.paths == Paths(2, 16, 6, 5, 2.0, 0.196, 20.0)
    assert config.block is not None
    assert config.body is not None
    assert (config.block.size, config.block.anchor_predicts, config.block.causal) == (4, False, (False, False))
    assert config.body.windows == (16, 16)
    assert config.claims.layers == 8


@pytest.mark.parametrize(
    ("changes", "causal"),
    [
        ({"is_causal": False}, False),
        ({"is_causal": True}, True),
        ({"is_causal": REMOVE}, True),  # sliding layers are, where nothing is said
        ({"is_causal": REMOVE, "dflash_config.causal": False}, False),
        ({"is_causal": False, "dflash_config.causal": True}, False),
    ],
)
def test_causality_is_told_in_several_places(changes: dict[str, Any], causal: bool, tmp_path: Path) -> None:
    config = read(ZLAB, tmp_path, config=changes)
    assert config.block is not None
    assert config.block.causal == (causal, causal)


def test_dflash_files_may_say_it_at_the_top_too(tmp_path: Path) -> None:
    kinds = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 9}
    for n, (said, causal) in enumerate([(None, (True, False)), (True, (True, True)), (False, (False, False))]):
        config = read("zlab/dflash", tmp_path / str(n), config={**kinds, "is_causal": said})
        assert config.block is not None
        assert config.block.causal == causal


def test_sizes_may_stand_at_the_top_and_a_cap_of_nothing_is_none(tmp_path: Path) -> None:
    moved = {"dflash_config.selector_top_k": REMOVE, "selector_top_k": 3, "dflash_config.final_logit_softcapping": 0}
    assert read(ZLAB, tmp_path, config=moved).paths == Paths(2, 16, 6, 3)


def test_speculators_have_defaults(tmp_path: Path) -> None:
    kept = {"conv_kernel_size": REMOVE, "conv_group_size": REMOVE, "sliding_window_non_causal": REMOVE}
    kinds = {
        "transformer_layer_config.layer_types": ["sliding_attention", "full_attention"],
        "transformer_layer_config.sliding_window": 9,
    }
    config = read(SPECULATORS, tmp_path, config={**kept, **kinds})
    assert config.paths == Paths(2, 16, 6, 5)
    assert config.block is not None
    assert config.block.causal == (False, False), "unlike DFlash's, its sliding layers see both ways"


def test_codebooks_that_their_own_class_saved_again(tmp_path: Path) -> None:
    stored = make(ZLAB).tensors[CODEBOOK]
    found = read_drafter(write(ZLAB, tmp_path, tensors={CODEBOOK: None, f"{CODEBOOK}.weight": stored}), FACTS)
    assert torch.equal(found.tensors["paths.before.weight"], stored)


@pytest.mark.parametrize(
    ("layout", "changes", "says"),
    [
        (ZLAB, {"config": {"dflash_config.selector_rank": REMOVE}}, "selector_rank is missing"),
        (ZLAB, {"config": {"dflash_config.conv_group_size": 12}}, "conv_group_size is 12; it must divide hidden_size"),
        (ZLAB, {"config": {"dflash_config.conv_kernel_size": 5}}, "conv_kernel_size is 5; a block has 4 slots"),
        (ZLAB, {"config": {"dflash_config.selector_top_k": 41}}, "selector_top_k is 41; the vocabulary has 40 ids"),
        (ZLAB, {"config": {"dflash_config.selector_top_k": 2.5}}, "selector_top_k is 2.5"),
        (ZLAB, {"config": {"dflash_config.output_multiplier": -1}}, "output_multiplier is -1"),
        (
            ZLAB,
            {"config": {"dflash_config.conv_kernel_size": 3}},
            r"layers.0.attention_conv.base_kernel is \[2, 2, 32\]",
        ),
        (ZLAB, {"tensors": {CODEBOOK: torch.ones(39, 6)}}, rf"{CODEBOOK} is \[39, 6\]; config.json asks for \[40, 6\]"),
        (SPECULATORS, {"config": {"selector_rank": 7}}, rf"{CODEBOOK} is \[40, 6\]; config.json asks for \[40, 7\]"),
        (SPECULATORS, {"tensors": {CODEBOOK: None}}, f"{CODEBOOK} .* is missing"),
        (ZLAB, {"config": {"architectures": ["DFlashDraftModel"]}}, "is unknown to the layout zlab dflash"),
        ("zlab/dflash", {"config": {"architectures": ["DFlash2DraftModel"]}}, "candidate_selector.* is missing"),
        (
            "zlab/dflash",
            {"config": {"dflash_config.output_multiplier": 0.5}},
            "output_multiplier is 0.5; only DFlash 2",
        ),
    ],
)
def test_what_does_not_fit_is_refused_by_name(layout: str, changes: dict[str, Any], says: str, tmp_path: Path) -> None:
    with pytest.raises((RequestError, WorkError), match=says):
        read(layout, tmp_path, **changes)


def test_scales_that_change_nothing_are_no_obstacle(tmp_path: Path) -> None:
    config = read("zlab/dflash", tmp_path, config={"dflash_config.input_embedding_scale": 1.0})
    assert config.paths is None
