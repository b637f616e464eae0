"""Bad and mismatched drafter files are refused; the message names the tensor or key, what was found, what is needed.

The numbers E1 to E17 group what can be wrong: widths, taps, sizes of the target, tables, vocabulary maps, mask tokens,
blocks, heads, layers, tensors, values, attention, rope, MTP, Medusa, identity.
"""

from __future__ import annotations

import json
import pickle
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from layout_files import REMOVE, make, write
from slipstream.checkpoints.drafters import TargetFacts, read_drafter
from slipstream.checkpoints.layouts import recognise
from slipstream.types import RequestError, WorkError

FACTS = TargetFacts("target", hidden=32, layers=8, vocab=40, real_vocab=40, rope_theta=10000.0)
R = torch.randn
NEST = "transformer_layer_config"
TAPS = "eagle_config.eagle_aux_hidden_state_layer_ids"
D2T = make("safeailab/eagle3").tensors["d2t"]


def with_value(layout: str, name: str, value: float) -> torch.Tensor:
    tensor = make(layout).tensors[name].clone()
    tensor.view(-1)[5] = value
    return tensor


# id, layout, config, tensors, words that the message must have
WRONG: list[tuple[str, str, dict[str, Any], dict[str, Any], list[str]]] = [
    ("E1", "specforge/eagle3", {}, {"fc.weight": R(32, 160)}, ["fc.weight", "[32, 160]", "5 layers", "DeepSpec"]),
    ("E1", "speculators/eagle3", {}, {"fc.weight": R(32, 64)}, ["fc.weight", "2 layers of width 32", "EAGLE-1"]),
    ("E1", "zlab/dflash", {}, {"fc.weight": R(32, 100)}, ["fc.weight", "[32, 100]", "no number of layers of width 32"]),
    ("E1", "safeailab/eagle", {}, {"fc.weight": R(24, 64)}, ["fc.weight", "[24, 64]"]),
    ("E2", "specforge/eagle3", {TAPS: [1, 3, 9]}, {}, [TAPS, "9", "0 to 7"]),
    ("E2", "speculators/eagle3", {"eagle_aux_hidden_state_layer_ids": [2, 4, 9]}, {}, ["layer_ids has 9", "0 to 8"]),
    ("E2", "deepspec/dspark", {"target_layer_ids": [-2, 3, 4]}, {}, ["target_layer_ids has -2", "-1 to 7"]),
    ("E2", "zlab/dflash", {"dflash_config.target_layer_ids": [1, 4, 3]}, {}, ["[1, 4, 3]", "must rise"]),
    ("E2", "zlab/dflash", {"dflash_config.target_layer_ids": [1, 3, 3]}, {}, ["[1, 3, 3]", "twice"]),
    ("E2", "zlab/dflash", {"dflash_config.target_layer_ids": [1, 3, 7]}, {}, ["7", "last layer", "final_layer"]),
    ("E2", "zlab/dflash", {"dflash_config.target_layer_ids": "all"}, {}, ["target_layer_ids", "'all'"]),
    ("E2", "deepspec/dspark", {"target_layer_ids": REMOVE}, {}, ["target_layer_ids is missing"]),
    ("E2", "deepspec/eagle3", {"target_layer_ids": [-1, 3, 4]}, {}, ["target_layer_ids has -1", "0 to 7"]),
    (
        "E3",
        "specforge/eagle3",
        {"target_hidden_size": 16},
        {"fc.weight": R(32, 48)},
        ["embed_tokens.weight", "16 wide"],
    ),
    ("E4", "safeailab/eagle3", {}, {"lm_head.weight": None}, ["lm_head.weight is missing", "40 rows", "24"]),
    ("E5", "safeailab/eagle3", {}, {"d2t": None}, ["d2t is missing", "24", "40"]),
    ("E5", "safeailab/eagle3", {}, {"d2t": D2T[:-1]}, ["d2t is [23]", "[24]"]),
    ("E5", "safeailab/eagle3", {}, {"d2t": D2T + 30, "t2d": None}, ["d2t maps drafter id", "0 to 39"]),
    (
        "E5",
        "safeailab/eagle3",
        {},
        {"d2t": torch.zeros(24, dtype=torch.int64) - torch.arange(24)},
        ["d2t", "must rise"],
    ),
    ("E5", "safeailab/eagle3", {}, {"t2d": torch.ones(40, dtype=torch.bool)}, ["t2d keeps 40", "24"]),
    ("E5", "safeailab/eagle3", {}, {"t2d": torch.ones(39, dtype=torch.bool)}, ["t2d is [39]", "[40]"]),
    ("E5", "safeailab/eagle3", {}, {"t2d": torch.arange(40) < 24}, ["d2t and t2d disagree"]),
    ("E5", "specforge/eagle3", {"draft_vocab_size": 41}, {"lm_head.weight": R(41, 32)}, ["draft_vocab_size 41", "40"]),
    ("E7", "zlab/dflash", {"dflash_config.mask_token_id": REMOVE}, {}, ["dflash_config.mask_token_id is missing"]),
    ("E7", "zlab/dflash", {"dflash_config.mask_token_id": 40}, {}, ["mask token 40", "which has 40"]),
    ("E7", "zlab/dflash", {"dflash_config.mask_token_id": -1}, {}, ["mask_token_id is -1"]),
    ("E7", "specforge/peagle", {"mask_token_id": REMOVE}, {}, ["mask_token_id is missing"]),
    ("E8", "zlab/dflash", {"block_size": 1}, {}, ["block_size is 1", "at least 2"]),
    ("E8", "zlab/dflash", {"block_size": REMOVE}, {}, ["block_size is missing"]),
    ("E8", "deepspec/dspark", {"block_size": 0}, {}, ["block_size is 0"]),
    ("E8", "deepspec/dspark", {"sample_from_anchor": False}, {}, ["sample_from_anchor", "anchor_predicts=False"]),
    ("E8", "deepspec/dspark", {"dspark_bonus_anchor": True}, {}, ["dspark_bonus_anchor", "anchor_predicts=False"]),
    ("E8", "zlab/dflash", {}, {"embed_tokens.weight": R(40, 32)}, ["embed_tokens.weight", "DeepSpec", "slots"]),
    (
        "E9",
        "deepspec/dspark",
        {"markov_head_type": "linear"},
        {},
        ["markov_head_type is 'linear'", "vanilla, gated, rnn"],
    ),
    ("E9", "deepspec/dspark", {"markov_rank": 7}, {}, ["markov_head.markov_w1.weight is [40, 6]", "markov_rank is 7"]),
    (
        "E9",
        "deepspec/dspark",
        {"markov_head_type": "gated"},
        {},
        ["'gated'", "markov_head.gate_proj.weight is missing"],
    ),
    (
        "E9",
        "deepspec/dspark",
        {"enable_confidence_head": False},
        {},
        ["enable_confidence_head", "confidence_head.proj"],
    ),
    (
        *("E9", "deepspec/dspark", {}, {"markov_head.markov_w1.weight": R(24, 6)}),
        ["markov_head.markov_w1.weight is [24, 6]", "[40, 6]"],
    ),
    ("E9", "specforge/dspark", {"dflash_config.markov_rank": 0}, {}, ["markov_rank is 0", "markov_w1.weight is there"]),
    ("E10", "zlab/dflash", {"layer_types": ["full_attention"]}, {}, ["layer_types", "2 layers"]),
    ("E10", "zlab/dflash", {"layer_types": ["full_attention", "linear"]}, {}, ["layer_types has 'linear'"]),
    ("E10", "zlab/dflash", {"layer_types": ["sliding_attention"] * 2}, {}, ["sliding_window is None"]),
    ("E10", "zlab/dflash", {"num_hidden_layers": 3}, {}, ["num_hidden_layers is 3", "2 layers"]),
    ("E11", "zlab/dflash", {}, {"norm.weight": None}, ["norm.weight [32] is missing"]),
    (
        "E11",
        "zlab/dflash",
        {},
        {"layers.1.mlp.up_proj.weight": None},
        ["layers.1.mlp.up_proj.weight [48, 32] is missing"],
    ),
    ("E11", "zlab/dflash", {}, {"extra.weight": R(2, 2)}, ["extra.weight is unknown to the layout zlab dflash"]),
    ("E11", "safeailab/eagle", {}, {"norm.weight": R(32)}, ["norm.weight is unknown to the layout safeailab eagle"]),
    ("E11", "specforge/eagle3", {}, {"midlayer.hidden_norm.weight": None}, ["midlayer.hidden_norm.weight"]),
    (
        "E11",
        "safeailab/eagle3",
        {},
        {"midlayer.mlp.up_proj.weight": R(47, 32)},
        ["midlayer.mlp.up_proj.weight is [47, 32]"],
    ),
    ("E11", "zlab/dflash", {"attention_bias": True}, {}, ["attention_bias is true", "layers.0.self_attn.q_proj.bias"]),
    ("E11", "safeailab/eagle", {"bias": False}, {}, ["bias is false", "fc.bias is there"]),
    ("E11", "specforge/eagle3", {"fc_norm": True}, {}, ["fc_norm is true", "fc_norm.0.weight"]),
    ("E11", "speculators/eagle3", {"fc_norm": True, "norm_before_fc": True}, {}, ["fc_norm and norm_before_fc"]),
    (
        *("E12", "speculators/eagle3", {}),
        *({"lm_head.weight": with_value("speculators/eagle3", "lm_head.weight", torch.nan)}, ["lm_head.weight", "NaN"]),
    ),
    ("E12", "zlab/dflash", {}, {"norm.weight": with_value("zlab/dflash", "norm.weight", torch.inf)}, ["norm.weight"]),
    ("E12", "zlab/dflash", {}, {"fc.weight": torch.zeros(32, 96)}, ["fc.weight is all zeros"]),
    ("E12", "speculators/peagle", {}, {"mask_hidden": None}, ["mask_hidden is missing"]),
    ("E12", "zlab/dflash", {}, {"norm.weight": torch.ones(32, dtype=torch.int8)}, ["norm.weight is int8"]),
    ("E13", "zlab/dflash", {"num_key_value_heads": 3}, {}, ["num_attention_heads 4", "num_key_value_heads 3"]),
    ("E13", "zlab/dflash", {"head_dim": 16}, {}, ["layers.0.self_attn.q_proj.weight has 32 rows", "64"]),
    ("E13", "zlab/dflash", {}, {"layers.0.self_attn.q_norm.weight": R(16)}, ["q_norm.weight is [16]", "head_dim is 8"]),
    ("E14", "zlab/dflash", {"rope_scaling": {"rope_type": "longrope"}}, {}, ["rope_type 'longrope'"]),
    ("E14", "safeailab/eagle", {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, {}, ["rope_type 'dynamic'"]),
    ("E14", "zlab/dflash", {"partial_rotary_factor": 0.5}, {}, ["partial_rotary_factor is 0.5"]),
    ("E16", "medusa/medusa", {}, {"2.0.linear.weight": None}, ["2.0.linear.weight", "missing"]),
    ("E16", "medusa/medusa", {}, {"1.1.weight": None}, ["1.1.weight", "missing"]),
    ("E16", "medusa/medusa", {}, {"4.0.linear.weight": R(32, 32)}, ["heads [0, 1, 2, 4]", "none left out"]),
    ("E17", "zlab/dflash", {"num_target_layers": 9}, {}, ["9 layers (num_target_layers)", "target has 8"]),
    ("E17", "zlab/dflash", {"vocab_size": 36}, {}, ["vocabulary of 36", "40 rows"]),
]
NAMES = [f"{number}-{layout}-{at}" for at, (number, layout, *_) in enumerate(WRONG)]


@pytest.mark.parametrize(("number", "layout", "config", "tensors", "words"), WRONG, ids=NAMES)
def test_wrong_files_are_refused_by_name(
    number: str, layout: str, config: dict[str, Any], tensors: dict[str, Any], words: list[str], tmp_path: Path
) -> None:
    folder = write(layout, tmp_path, config=config, tensors=tensors)
    with pytest.raises((RequestError, WorkError)) as found:
        read_drafter(folder, FACTS)
    message = str(found.value)
    assert "\n" not in message
    assert [word for word in words if word not in message] == [], message


def test_every_number_has_an_example() -> None:
    elsewhere = {"E6", "E15"}  # below
    assert {number for number, *_ in WRONG} | elsewhere == {f"E{i}" for i in range(1, 18)}


@pytest.mark.parametrize("layout", ["safeailab/eagle", "zlab/dflash", "speculators/eagle3", "medusa/medusa"])
def test_e3_another_width_of_the_target_is_refused(layout: str, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"width 32; the target target has 64"):
        read_drafter(write(layout, tmp_path), TargetFacts("target", 64, 8, 40, 40))


def test_e6_vocabularies_may_differ_by_padding_alone(tmp_path: Path) -> None:
    folder = write("zlab/dflash", tmp_path)
    found = read_drafter(folder, TargetFacts("target", 32, 8, vocab=48, real_vocab=38))
    assert any("48 are padding" in note for note in found.notes)
    for vocab, real in ((48, 44), (39, 38)):
        with pytest.raises(RequestError, match=rf"vocabulary of 40 \(vocab_size\).* {vocab} rows, {real} of them"):
            read_drafter(folder, TargetFacts("target", 32, 8, vocab=vocab, real_vocab=real))


def test_e7_a_mask_token_that_is_a_special_token_is_said(tmp_path: Path) -> None:
    found = read_drafter(write("zlab/dflash", tmp_path, config={"eos_token_id": [1, 3]}), FACTS)
    assert any("mask token 3 is eos_token_id too" in note for note in found.notes)


def test_e16_another_number_of_heads_is_said_and_the_file_is_right(tmp_path: Path) -> None:
    found = read_drafter(write("medusa/medusa", tmp_path, config={"medusa_num_heads": 2}), FACTS)
    assert found.config.heads.count == 3
    assert any("medusa_num_heads is 2; the tensors have 3 heads" in note for note in found.notes)


def test_e17_another_name_is_only_said(tmp_path: Path) -> None:
    folder = write("speculators/eagle3", tmp_path)
    other = TargetFacts("other", 32, 8, 40, 40, 10000.0)
    assert any("'some/target'" in note and "'other'" in note for note in read_drafter(folder, other).notes)
    same = TargetFacts("/elsewhere/Target", 32, 8, 40, 40, 10000.0)
    assert read_drafter(folder, same).notes == ()


REFUSED: list[tuple[str, dict[str, Any], list[str]]] = [
    ("zlab/dflash", {"architectures": ["DominoDraftModel"]}, ["Domino", "DFlash or DSpark"]),
    ("zlab/dflash", {"dflash_config.projector_type": "domino"}, ["Domino"]),
    ("deepspec/dspark", {"architectures": ["Gemma4DSparkModel"]}, ["Gemma 4"]),
    ("deepspec/eagle3", {"architectures": ["Gemma4Eagle3Model"]}, ["Gemma 4"]),
    (
        "speculators/eagle3",
        {"speculators_model_type": "mtp"},
        ["speculators", "eagle3, peagle, dflash, dflash2 and dspark"],
    ),
    ("speculators/eagle3", {"speculators_model_type": "eagle"}, ["speculators"]),
    ("specforge/dspark", {"dspark_noise_token_id": 1, "architectures": ["DeepseekV4"]}, ["DeepSeek-V4"]),
    ("zlab/dflash", {"quantization_config": {"quant_method": "fp8"}}, ["quantization_config"]),
    ("zlab/dflash", {"dflash_config.attention_sink_bias": True}, ["attention_sink_bias"]),
    ("specforge/eagle3", {"architectures": ["DFlashDraftModel"]}, ["zlab dflash", "EAGLE-3 drafter of SafeAILab"]),
]


@pytest.mark.parametrize(("layout", "config", "words"), REFUSED)
def test_what_is_recognised_and_not_read_is_named(
    layout: str, config: dict[str, Any], words: list[str], tmp_path: Path
) -> None:
    with pytest.raises(RequestError) as found:
        read_drafter(write(layout, tmp_path, config=config), FACTS)
    assert [word for word in words if word not in str(found.value)] == [], str(found.value)


def test_e15_mtp_layers_are_named(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    save_file({"mtp.fc.weight": R(32, 64), "mtp.norm.weight": R(32)}, str(tmp_path / "model.safetensors"))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen3_next", "num_nextn_predict_layers": 1}))
    with pytest.raises(RequestError, match=r"MTP layers of a target.*EAGLE-3, DFlash or DSpark"):
        read_drafter(tmp_path, FACTS)


def test_ordinary_models_and_unknown_files(tmp_path: Path) -> None:
    from tiny_model import make_model

    folder = make_model(tmp_path / "model")
    assert recognise(folder) is None
    with pytest.raises(RequestError, match="ordinary model"):
        read_drafter(folder)
    odd = write("zlab/dflash", tmp_path / "odd", config={"architectures": ["Strange"], "dflash_config": REMOVE})
    with pytest.raises(RequestError, match=re.escape("no known drafter layout (speculators, ") + ".*block_size"):
        read_drafter(odd)
    assert recognise(tmp_path / "nowhere") is None
    with pytest.raises(RequestError, match="no such folder"):
        read_drafter(tmp_path / "nowhere")


class _Runs:
    """Unpickled, it would write a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.write_text, (self.path, "ran"))


def test_a_pickled_object_is_refused_and_never_run(tmp_path: Path) -> None:
    folder, proof = write("safeailab/eagle", tmp_path / "d", kind="bin"), tmp_path / "proof"
    tensors = make("safeailab/eagle").tensors
    torch.save({**tensors, "odd": _Runs(proof)}, folder / "pytorch_model.bin")
    with pytest.raises(WorkError, match=r"pytorch_model.bin: cannot be opened as plain tensors.*safetensors"):
        read_drafter(folder, FACTS)
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(_Runs(proof)))
    with pytest.raises(WorkError, match="plain tensors"):
        read_drafter(folder, FACTS)
    assert not proof.exists()
    torch.save({**tensors, "step": 3}, folder / "pytorch_model.bin")
    with pytest.raises(WorkError, match="'step' is a int, not a tensor"):
        read_drafter(folder, FACTS)


def test_damaged_files_name_the_file(tmp_path: Path) -> None:
    folder = write("zlab/dflash", tmp_path / "1")
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(WorkError, match=r"model\.safetensors: damaged or truncated"):
        read_drafter(folder, FACTS)
    (folder / "model.safetensors").unlink()
    with pytest.raises(RequestError, match=r"holds none of model\.safetensors"):
        read_drafter(folder, FACTS)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "../x.safetensors"}}))
    with pytest.raises(WorkError, match="outside the folder"):
        read_drafter(folder, FACTS)


def test_weights_beside_those_read_are_said(tmp_path: Path) -> None:
    write("safeailab/eagle", tmp_path, kind="bin")
    found = read_drafter(write("safeailab/eagle", tmp_path), FACTS)
    assert "pytorch_model.bin is there too: not read" in found.notes
