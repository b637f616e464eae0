"""GGUF to Hugging Face folder: weights, config and tokenizer against independent readings of the same file."""

from __future__ import annotations

import json
from pathlib import Path

import gguf_kit as kit
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFReader, quants

from slipstream.checkpoints import gguf, gguf_file
from slipstream.text import load_tokenizer
from slipstream.types import RequestError, WorkError

TEXTS = [
    "hello he llama",
    "  two  spaces\n\n\nlines\t",
    "Zoë's naïve café — 한국어 日本語 👩‍👩‍👧 e\u0301",
    "<|im_start|>user\nhi<|im_end|>\n<tool>x",
    "It's 12345 1 22 333, don't",
    "",
]


def converted(tmp_path: Path, arch: str, **extra: str) -> Path:
    kit.write_tiny(tmp_path / "m.gguf", arch, pre="qwen2" if arch != "llama" else "smollm", **extra)
    folder = tmp_path / "out"
    folder.mkdir()
    gguf.convert(tmp_path / "m.gguf", folder, progress=False)
    return folder


@pytest.mark.parametrize("arch", ["llama", "qwen2", "qwen3"])
def test_weights_equal_transformers_own_reading(tmp_path: Path, arch: str) -> None:
    from transformers import AutoModelForCausalLM
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    folder = converted(tmp_path, arch)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    assert model.config.model_type == arch
    theirs = load_gguf_checkpoint(str(tmp_path / "m.gguf"), return_tensors=True, model_to_load=model)["tensors"]
    ours = model.state_dict()
    assert set(theirs) | {"lm_head.weight"} == set(ours)
    for name, values in theirs.items():
        assert torch.equal(values.bfloat16(), ours[name]), name


def test_only_llama_rotary_rows_are_reordered(tmp_path: Path) -> None:
    """Negative control: without the reordering q_proj would equal the file's rows as they are."""
    from safetensors.torch import load_file

    for arch, same in (("llama", False), ("qwen2", True)):
        place = tmp_path / arch
        place.mkdir()
        ours = load_file(converted(place, arch) / "model.safetensors")
        raw = kit.write_tiny(place / "again.gguf", arch)
        row = torch.tensor(raw["blk.0.attn_q.weight"]).bfloat16()
        assert torch.equal(ours["model.layers.0.self_attn.q_proj.weight"], row) is same
        row = torch.tensor(raw["blk.0.attn_v.weight"]).bfloat16()
        assert torch.equal(ours["model.layers.0.self_attn.v_proj.weight"], row)


def test_bfloat16_rounds_as_torch_does() -> None:
    bits = torch.randint(0, 0x7F800000, (20000,), dtype=torch.int32)
    values = torch.cat(
        [bits.view(torch.float32), -bits.view(torch.float32), torch.tensor([0.0, 1 + 2**-8, 1 + 3 * 2**-8])]
    )
    values = values[values.abs() < 3e38]
    ours = torch.from_numpy(gguf.bfloat16(values.numpy()).view(np.int16)).view(torch.bfloat16)
    assert torch.equal(ours, values.bfloat16())


def test_quantised_rows_in_blocks_equal_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf_file, "_BLOCK_VALUES", 3 * 256)
    monkeypatch.setattr(gguf_file, "_WHOLE", 3)
    values = np.random.default_rng(0).standard_normal((16, 256)).astype(np.float32)
    data = quants.quantize(values, GGMLQuantizationType.Q8_0)
    tensor = gguf_file.GgufTensor("w", GGMLQuantizationType.Q8_0, [256, 16], data)
    blocks = list(tensor.blocks())
    assert [(start, len(b)) for start, b in blocks] == [(0, 3), (3, 3), (6, 3), (9, 3), (12, 3), (15, 1)]
    whole = quants.dequantize(data, GGMLQuantizationType.Q8_0)
    assert np.array_equal(np.concatenate([b for _, b in blocks]), whole)
    assert np.array_equal(tensor.values(), whole)


def test_a_file_reads_as_the_reference_reader_reads_it(tmp_path: Path) -> None:
    kit.write_tiny(tmp_path / "m.gguf", types={"attn_q": "Q4_1", "ffn_up": "Q8_0", "attn_v": "F16"})
    theirs, ours = GGUFReader(tmp_path / "m.gguf"), gguf_file.open_gguf(tmp_path / "m.gguf")
    fields = {key: field.contents() for key, field in theirs.fields.items() if not key.startswith("GGUF.")}
    assert ours.fields == fields
    assert [(t.name, t.tensor_type, list(t.shape)) for t in theirs.tensors] == [
        (t.name, t.tensor_type, t.shape) for t in ours.tensors
    ]
    for a, b in zip(theirs.tensors, ours.tensors, strict=True):
        assert a.data.dtype == b.data.dtype
        assert np.array_equal(a.data, b.data), a.name


@pytest.mark.parametrize(("kind", "coded"), [("Q4_0", True), ("Q8_0", True), ("F16", False)])
def test_a_file_knows_whether_it_holds_codes(tmp_path: Path, kind: str, coded: bool) -> None:
    kit.write_tiny(tmp_path / "m.gguf", types=dict.fromkeys(("token_embd", "attn", "ffn_up"), kind))
    assert gguf_file.open_gguf(tmp_path / "m.gguf").coded is coded


def test_config_says_what_the_file_says(tmp_path: Path) -> None:
    folder = converted(tmp_path, "llama")
    config = json.loads((folder / "config.json").read_text())
    wanted = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    wanted |= {"head_dim": 8, "intermediate_size": 48, "rms_norm_eps": 1e-5, "rope_theta": kit.ROPE_BASE}
    wanted |= {"tie_word_embeddings": True, "vocab_size": len(kit.vocabulary()[0]), "max_position_embeddings": 64}
    assert {key: config[key] for key in wanted} == wanted
    generation = json.loads((folder / "generation_config.json").read_text())
    assert generation["eos_token_id"] == [2, 0]  # the file's own, then <|endoftext|>


def llama3_divisors(factor: float) -> np.ndarray:
    """What transformers divides the rotary frequencies by, for head dimension 8."""
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    rope = {"rope_type": "llama3", "factor": factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    rope |= {"original_max_position_embeddings": 8192, "rope_theta": kit.ROPE_BASE}
    config = LlamaConfig(head_dim=8, max_position_embeddings=131072, rope_parameters=rope)
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config)
    plain = 1 / kit.ROPE_BASE ** (np.arange(4) / 4)
    return (plain / scaled.numpy()).astype(np.float32)


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_llama3_frequency_scaling_is_recognised(tmp_path: Path, factor: float) -> None:
    divisors = llama3_divisors(factor)
    assert 1 < len(set(divisors)) < 5  # some frequencies kept, some divided
    kit.write_tiny(tmp_path / "m.gguf", rope_freqs=divisors)
    gguf.convert(tmp_path / "m.gguf", tmp_path, progress=False)
    scaling = json.loads((tmp_path / "config.json").read_text())["rope_scaling"]
    assert scaling["rope_type"] == "llama3"
    assert scaling["factor"] == pytest.approx(factor, rel=1e-5)


def test_another_frequency_scaling_is_refused(tmp_path: Path) -> None:
    kit.write_tiny(tmp_path / "m.gguf", rope_freqs=llama3_divisors(8.0) * np.float32(1.01))
    with pytest.raises(RequestError, match="not a Llama 3 frequency scaling"):
        gguf.convert(tmp_path / "m.gguf", tmp_path, progress=False)


def test_llama3_prompts_begin_with_bos_though_the_file_does_not_say_so(tmp_path: Path) -> None:
    kit.write_tiny(tmp_path / "m.gguf", pre="llama-bpe")
    gguf.convert(tmp_path / "m.gguf", tmp_path, progress=False)
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.encode("a")[0] == tokenizer.bos_id == 1
    assert tokenizer.encode("a", add_special=False)[0] != 1


def test_tokenizer_equals_transformers_reading(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    folder = converted(tmp_path, "qwen2")
    theirs = AutoTokenizer.from_pretrained(tmp_path, gguf_file="m.gguf")
    ours = load_tokenizer(folder)
    for text in TEXTS:
        ids = theirs.encode(text)
        assert ours.encode(text) == ids, text
        assert ours.decode(ids, skip_special=False) == theirs.decode(ids) == text
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)


def test_transformers_opens_the_written_folder_alike(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    folder = converted(tmp_path, "llama")
    theirs, ours = AutoTokenizer.from_pretrained(folder), load_tokenizer(folder)
    for text in TEXTS:
        assert ours.encode(text) == theirs.encode(text), text
    assert (theirs.eos_token_id, theirs.bos_token_id) == (2, 1)


def test_padding_entries_are_no_vocabulary(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(converted(tmp_path, "llama"))
    assert tokenizer.vocab == len(kit.vocabulary()[0]) - kit.VOCAB_PAD
    assert tokenizer.token_of(tokenizer.vocab) is None


def test_smollm_splits_digits_from_spaces(tmp_path: Path) -> None:
    """Its models were trained with digits cut off first: two spaces before a digit stay together."""
    tokenizer = load_tokenizer(converted(tmp_path, "llama"))
    pieces = [piece for piece, _ in tokenizer.backend.pre_tokenizer.pre_tokenize_str("a  12")]
    assert pieces == ["a", "ĠĠ", "1", "2"]


@pytest.mark.parametrize(
    ("arch", "extra", "words"),
    [
        ("mamba", {}, "architecture 'mamba'"),
        ("llama", {"llama__rope__scaling__type": "longrope"}, "rope scaling 'longrope'"),
    ],
)
def test_what_is_not_supported_is_named(tmp_path: Path, arch: str, extra: dict[str, str], words: str) -> None:
    with pytest.raises(RequestError, match=words):
        converted(tmp_path, arch, **extra)


def test_unknown_splitting_rule_is_refused(tmp_path: Path) -> None:
    kit.write_tiny(tmp_path / "m.gguf", pre="tekken")
    with pytest.raises(RequestError, match="splitting rule 'tekken'"):
        gguf.convert(tmp_path / "m.gguf", tmp_path, progress=False)


@pytest.mark.parametrize("keep", [3, 100, 5000, -40])
def test_a_cut_file_is_one_clear_line(tmp_path: Path, keep: int) -> None:
    kit.write_tiny(tmp_path / "m.gguf")
    whole = (tmp_path / "m.gguf").read_bytes()
    (tmp_path / "m.gguf").write_bytes(whole[:keep])
    with pytest.raises(WorkError, match=r"m\.gguf: not a complete GGUF file") as caught:
        gguf.convert(tmp_path / "m.gguf", tmp_path, progress=False)
    assert "\n" not in str(caught.value)


def test_a_weight_that_is_not_finite_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not finite"):
        gguf.bfloat16(np.array([1.0, np.nan], dtype=np.float32))
