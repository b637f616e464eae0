"""A checkpoint fits exactly or is refused with the tensor and the file by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from slipstream.nets.decoder import load_decoder
from slipstream.nets.layers import Linear, PackedLinear, linear, packable
from slipstream.nets.weights import as_dtype
from slipstream.types import RequestError, WorkError

CONFIG = {
    **{"model_type": "llama", "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1},
    **{"num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 11, "max_position_embeddings": 32},
}
Q = "model.layers.0.self_attn.q_proj.weight"


def tensors() -> dict[str, Tensor]:
    shapes = {
        **{"model.embed_tokens.weight": (11, 16), "lm_head.weight": (11, 16), "model.norm.weight": (16,)},
        **{f"model.layers.0.{n}.weight": (16,) for n in ("input_layernorm", "post_attention_layernorm")},
        **{Q: (16, 16), "model.layers.0.self_attn.k_proj.weight": (8, 16)},
        **{"model.layers.0.self_attn.v_proj.weight": (8, 16), "model.layers.0.self_attn.o_proj.weight": (16, 16)},
        **{f"model.layers.0.mlp.{n}_proj.weight": (24, 16) for n in ("gate", "up")},
        "model.layers.0.mlp.down_proj.weight": (16, 24),
    }
    return {name: torch.randn(shape) for name, shape in shapes.items()}


def write(folder: Path, change: Callable[[dict[str, Tensor]], object] | None = None, **config: object) -> Path:
    state = tensors()
    if change is not None:
        change(state)
    (folder / "config.json").write_text(json.dumps({**CONFIG, **config}))
    save_file(state, folder / "model.safetensors")
    return folder


def load(folder: Path, **options: int) -> Tensor:
    return load_decoder(folder, "float32", "cpu", **options).nodes([0], torch.tensor([[3, 4]]))[0]


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda s: s.pop(Q), rf"tensor {Q} \[16, 16\] is missing"),
        (lambda s: s.update({Q: torch.zeros(16, 15)}), rf"model.safetensors: tensor {Q} is \[16, 15\].*\[16, 16\]"),
        (lambda s: s.update({"model.extra": torch.zeros(1)}), "model.safetensors: tensor model.extra is unknown"),
        (lambda s: s.update({Q.replace("weight", "bias"): torch.zeros(16)}), "q_proj.bias is unknown"),
    ],
)
def test_misfits_are_named(change: Callable[[dict[str, Tensor]], object], message: str, tmp_path: Path) -> None:
    with pytest.raises(WorkError, match=message):
        load(write(tmp_path, change))


def test_old_rope_buffers_and_a_tied_head_may_be_left_over(tmp_path: Path) -> None:
    extra = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(4)}
    assert load(write(tmp_path, lambda s: s.update(extra), tie_word_embeddings=True)).shape == (1, 2, 11)


def test_missing_bias_is_named(tmp_path: Path) -> None:
    with pytest.raises(WorkError, match=r"q_proj\.bias \[16\] is missing"):
        load(write(tmp_path, attention_bias=True))


def test_truncated_file_is_named(tmp_path: Path) -> None:
    file = write(tmp_path) / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(WorkError, match=r"model\.safetensors: damaged or truncated"):
        load(tmp_path)


def test_missing_shard_is_named(tmp_path: Path) -> None:
    write(tmp_path)
    index = dict.fromkeys(tensors(), "part-2.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    with pytest.raises(WorkError, match=r"part-2\.safetensors: named in .*index\.json but not there"):
        load(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(WorkError, match="has no weight_map"):
        load(tmp_path)


def test_folder_without_weights_or_config_says_so(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"config\.json: no such file"):
        load(tmp_path)
    write(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(WorkError, match=r"neither model\.safetensors nor"):
        load(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(WorkError, match="not readable as JSON"):
        load(tmp_path)


@pytest.mark.parametrize("options, message", [({"vocab": 12}, r"vocab 12 .*1\.\.11"), ({"max_rows": 0}, "max_rows 0")])
def test_options_out_of_range_are_refused(options: dict[str, int], message: str, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=message):
        load(write(tmp_path), **options)


def test_weights_outlive_their_file(tmp_path: Path) -> None:
    decoder = load_decoder(write(tmp_path), "float32", "cpu")
    draft = torch.tensor([[3, 4]])
    before, _ = decoder.nodes([0], draft)
    size = (tmp_path / "model.safetensors").stat().st_size
    with open(tmp_path / "model.safetensors", "r+b") as file:
        file.write(b"\0" * size)
    assert torch.equal(decoder.nodes([0], draft)[0], before)


def test_memory_counts_a_tied_head_once(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    untied = load_decoder(write(tmp_path / "a"), torch.float64, "cpu")
    tied = load_decoder(write(tmp_path / "b", tie_word_embeddings=True), torch.float64, "cpu")
    assert untied.memory() - tied.memory() == 11 * 16 * 8
    weights = sum(t.numel() for t in tensors().values()) * 8
    assert untied.memory() == weights + 2 * (32 + 64) * 8 * 8


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 2, 3, 11, 40])
@pytest.mark.parametrize("biased", [True, False])
def test_packed_product_is_the_plain_product(dtype: torch.dtype, rows: int, biased: bool) -> None:
    if not packable(dtype):
        pytest.skip("this machine has no packed product")
    weight, bias, x = torch.randn(24, 40), torch.randn(24), torch.randn(rows, 40)
    weight, bias, x = weight.to(dtype), bias.to(dtype), x.to(dtype)
    ours = PackedLinear(weight, bias if biased else None)(x)
    exact = x.double() @ weight.double().T + (bias.double() if biased else 0)
    assert ours.dtype == dtype
    torch.testing.assert_close(ours.double(), exact, rtol=2**-7 if dtype is torch.bfloat16 else 1e-5, atol=1e-5)


def test_map_is_plain_where_packing_does_not_apply() -> None:
    assert type(linear(torch.ones(3, 3, dtype=torch.float64))) is Linear
    assert type(linear(torch.ones(3, 3, dtype=torch.float16))) is Linear
    assert type(linear(torch.ones(3, 3))) is Linear
    assert (type(linear(torch.ones(3, 3), last=True)) is PackedLinear) == packable(torch.float32)


def test_dtype_names() -> None:
    assert as_dtype("auto", "bfloat16") is torch.bfloat16
    assert as_dtype("fp16") is torch.float16
    with pytest.raises(RequestError, match="dtype 'int3'"):
        as_dtype("int3")
