"""Tiny GGUF files for tests: random weights, byte-level vocabulary, any of the supported architectures."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, quants

HIDDEN, HEADS, KV_HEADS, LAYERS, FEED, VOCAB_PAD = 32, 4, 2, 2, 48, 7
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
ROPE_BASE = 500000.0
CONTROL, USER_DEFINED, UNUSED = 3, 4, 5


def byte_letters() -> list[str]:
    from tokenizers import pre_tokenizers

    return sorted(pre_tokenizers.ByteLevel.alphabet())


def vocabulary() -> tuple[list[str], list[int], list[str]]:
    """Return tokens, types, merges: 3 control tokens, 256 bytes, 3 merges, one user-defined, padding."""
    merges = ["h e", "l l", "Ġ h"]
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *byte_letters(), "he", "ll", "Ġh", "<tool>"]
    types = [CONTROL] * 3 + [1] * 259 + [USER_DEFINED]
    tokens += [f"[PAD{i}]" for i in range(VOCAB_PAD)]
    types += [UNUSED] * VOCAB_PAD
    return tokens, types, merges


def write_tiny(
    path: Path,
    arch: str = "llama",
    *,
    pre: str = "smollm",
    seed: int = 0,
    rope_freqs: np.ndarray | None = None,
    types: Mapping[str, str] | None = None,
    **extra: Any,
) -> dict[str, Any]:
    """Write a tiny model and return its GGUF tensors by name (row-major, as they are in the file).

    `types` says how tensors are stored whose names contain a key: {"attn_q": "Q4_0"}; all others are float32.
    """
    writer = GGUFWriter(path, arch)
    writer.add_block_count(LAYERS)
    writer.add_context_length(64)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(FEED)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(ROPE_BASE)
    if arch == "llama":
        writer.add_rope_dimension_count(HIDDEN // HEADS)
    if arch == "qwen3":
        writer.add_key_length(HIDDEN // HEADS)
    _add_tokenizer(writer, pre)
    for key, value in extra.items():
        writer.add_string(key.replace("__", "."), value)
    tensors = _tensors(arch, np.random.default_rng(seed))
    if rope_freqs is not None:
        writer.add_tensor("rope_freqs.weight", rope_freqs)
    for name, values in tensors.items():
        kind = next((t for part, t in (types or {}).items() if part in name and values.ndim == 2), None)
        if kind is None:
            writer.add_tensor(name, values)
            continue
        raw = GGMLQuantizationType[kind]
        writer.add_tensor(name, quants.quantize(values, raw), raw_dtype=raw)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tensors


def _add_tokenizer(writer: GGUFWriter, pre: str) -> None:
    tokens, types, merges = vocabulary()
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    if pre != "llama-bpe":
        writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE)


def _tensors(arch: str, random: np.random.Generator) -> dict[str, np.ndarray]:
    def weight(*shape: int) -> np.ndarray:
        return (random.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)

    rows, kv = len(vocabulary()[0]), HIDDEN // HEADS * KV_HEADS
    tensors = {"token_embd.weight": weight(rows, HIDDEN), "output_norm.weight": 1 + weight(HIDDEN)}
    for i in range(LAYERS):
        sizes = {"attn_q": (HIDDEN, HIDDEN), "attn_k": (kv, HIDDEN), "attn_v": (kv, HIDDEN)}
        sizes |= {"attn_output": (HIDDEN, HIDDEN), "ffn_gate": (FEED, HIDDEN), "ffn_up": (FEED, HIDDEN)}
        sizes |= {"ffn_down": (HIDDEN, FEED)}
        tensors |= {f"blk.{i}.{name}.weight": weight(*size) for name, size in sizes.items()}
        tensors |= {f"blk.{i}.{name}.weight": 1 + weight(HIDDEN) for name in ("attn_norm", "ffn_norm")}
        if arch == "qwen2":
            tensors |= {f"blk.{i}.{n}.bias": weight(sizes[n][0]) for n in ("attn_q", "attn_k", "attn_v")}
        if arch == "qwen3":
            tensors |= {f"blk.{i}.{n}.weight": 1 + weight(HIDDEN // HEADS) for n in ("attn_q_norm", "attn_k_norm")}
    return tensors
