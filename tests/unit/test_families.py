"""config.json in every dialect: defaults of the family, old and new key names, and refusals that name the key."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from slipstream.nets.families import FAMILIES, DecoderConfig, Rope, read_config
from slipstream.nets.layers import RopeTable, inverse_frequencies
from slipstream.types import RequestError

SIZES = {
    **{"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 6, "num_attention_heads": 4},
    **{"num_key_value_heads": 2, "vocab_size": 100},
}
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


def read(kind: str, **more: Any) -> DecoderConfig:
    return read_config({"model_type": kind, **SIZES, **more})


def test_llama_defaults() -> None:
    config = read("llama")
    assert config.ropes == (Rope(10000.0),) * 6
    assert config.windows == (None,) * 6
    assert (config.head_dim, config.scale, config.tied, config.biases) == (16, 0.25, False, ())
    assert read("llama", num_key_value_heads=None).kv_heads == 4


@pytest.mark.parametrize("old", [True, False])
def test_old_and_new_rope_keys_mean_the_same(old: bool) -> None:
    if old:
        config = read("llama", rope_theta=5e5, rope_scaling={"type": "llama3", **LLAMA3})
    else:
        config = read("llama", rope_parameters={"rope_type": "llama3", "rope_theta": 5e5, **LLAMA3})
    assert config.ropes[0] == Rope(5e5, "llama3", LLAMA3)


def test_layers_without_rope_and_sliding_layers_follow_each_family() -> None:
    assert [r is not None for r in read("smollm3").ropes] == [True, True, True, False, True, True]
    assert [r is not None for r in read("smollm3", no_rope_layers=[0, 1, 1, 1, 1, 0]).ropes][::5] == [False, False]
    assert read("mistral").windows == (4096,) * 6
    assert read("mistral", sliding_window=None).windows == (None,) * 6
    assert read("qwen2", sliding_window=8).windows == (None,) * 6
    used = {"use_sliding_window": True, "sliding_window": 8}
    assert read("qwen2", **used, max_window_layers=4).windows == (None,) * 4 + (8,) * 2
    assert read("qwen3", **used, layer_types=["sliding_attention"] + ["full_attention"] * 5).windows[:2] == (8, None)


def test_gemma_has_two_rope_bases_and_its_own_scale() -> None:
    config = read("gemma3_text", head_dim=16, sliding_window=32, query_pre_attn_scalar=64)
    assert config.windows == (32,) * 5 + (None,)
    assert [r.theta for r in config.ropes if r][-2:] == [1e4, 1e6]
    assert (config.scale, config.embed_scale, config.norm_offset, config.tied) == (0.125, 8.0, 1.0, True)
    assert config.activation == "gelu_tanh"
    scaled = read("gemma3_text", rope_scaling={"rope_type": "linear", "factor": 8.0})
    assert [r.kind for r in scaled.ropes if r][-2:] == ["default", "linear"]


def test_biases_are_those_of_the_family() -> None:
    assert read("qwen2").biases == ("qkv",)
    assert read("llama", attention_bias=True, mlp_bias=True).biases == ("qkv", "out", "gate_up", "down")
    assert read("qwen3", attention_bias=True).biases == ("qkv", "out")


@pytest.mark.parametrize(
    "kind, more, named",
    [
        ("mixtral", {}, "model_type 'mixtral'.*--target hf"),
        ("llama", {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "rope_type 'dynamic'.*--target hf"),
        ("llama", {"rope_scaling": {"rope_type": "longrope", "factor": 2.0}}, "rope_type 'longrope'"),
        ("llama", {"rope_scaling": {"rope_type": "linear", "factor": 2.0, "twist": 3}}, "'twist'"),
        ("llama", {"rope_scaling": {"rope_type": "linear"}}, "needs a number for 'factor'"),
        ("llama", {"rope_scaling": {"rope_type": "yarn", "factor": "4"}}, "'factor', not '4'"),
        ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5"),
        ("llama", {"hidden_act": "relu"}, "hidden_act 'relu'"),
        ("llama", {"quantization_config": {"bits": 4}}, "quantization_config"),
        ("llama", {"num_key_value_heads": 3}, "multiple of num_key_value_heads 3"),
        ("llama", {"hidden_size": None}, "hidden_size is None"),
        ("gemma3_text", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping 50.0"),
        ("gemma3_text", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ("gemma3_text", {"rope_parameters": {"other": {}}}, "'other'"),
        ("qwen3", {"layer_types": ["chunked_attention"] * 6}, "layer_types"),
        ("qwen3", {"layer_types": ["full_attention"]}, "layer_types"),
        ("qwen3", {"layer_types": ["sliding_attention"] * 6}, "use_sliding_window"),
        ("smollm3", {"no_rope_layers": [1]}, "no_rope_layers has 1 entries for 6"),
    ],
)
def test_what_the_decoder_does_not_have_is_refused_by_name(kind: str, more: dict[str, Any], named: str) -> None:
    with pytest.raises(RequestError, match=named):
        read(kind, **more)


def test_every_family_is_read() -> None:
    for kind in FAMILIES:
        assert read(kind).family == kind


def test_llama3_keeps_short_wavelengths_and_stretches_long_ones() -> None:
    plain, _ = inverse_frequencies(Rope(5e5), 128)
    scaled, factor = inverse_frequencies(Rope(5e5, "llama3", LLAMA3), 128)
    assert factor == 1.0
    ratio = plain / scaled
    assert torch.equal(ratio[:20], torch.ones(20))
    torch.testing.assert_close(ratio[-20:], torch.full((20,), 8.0))
    assert ((ratio > 1.01) & (ratio < 7.9)).any()
    assert (ratio.diff() >= -1e-6).all()


def test_rope_table_grows_without_changing_what_it_had() -> None:
    table = RopeTable(Rope(10000.0), 16, torch.float32, torch.device("cpu"))
    at = torch.tensor([0, 3, 900])
    before = table.rows(at, 900)
    far, _ = table.rows(torch.tensor([50_000]), 50_000)
    torch.testing.assert_close(far[0, 0, 0], torch.tensor(50_000.0).cos())
    assert all(torch.equal(a, b) for a, b in zip(before, table.rows(at, 900), strict=True))
