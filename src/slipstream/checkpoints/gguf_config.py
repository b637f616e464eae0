"""The metadata of a GGUF file as Hugging Face config.json and generation_config.json.

In: the file's key-value fields and its tensor shapes. Out: plain dictionaries. What cannot be expressed exactly is
refused by name.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from slipstream.types import RequestError, WorkError

_CLASSES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}

# texts by which models of these families end a turn or a document, whatever single id the file names
_END_TEXTS = ("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|end_of_text|>", "<|eom_id|>")
_CONTROL = 3  # GGUF token type

_LLAMA3_BANDS = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


def config_of(
    fields: dict[str, Any], shapes: dict[str, list[int]], rope_freqs: np.ndarray | None = None
) -> dict[str, Any]:
    """Return the config.json of a model; `shapes` are GGUF's (fastest dimension first).

    `rope_freqs` are the divisors of the rotary frequencies that Llama 3.1 and later files carry as a tensor.
    """
    arch = fields.get("general.architecture")
    if arch not in _CLASSES:
        raise RequestError(f"GGUF architecture {arch!r} is not supported; {', '.join(_CLASSES)} are")
    if f"{arch}.expert_count" in fields:
        raise RequestError(f"GGUF model with {fields[f'{arch}.expert_count']} experts: only dense models are supported")
    get = _Getter(fields, arch)
    heads = int(get("attention.head_count"))
    hidden = int(get("embedding_length"))
    head_dim = int(get("attention.key_length", get("rope.dimension_count", hidden // heads)))
    return {
        "architectures": [_CLASSES[arch]],
        "model_type": arch,
        "vocab_size": shapes["token_embd.weight"][1],
        "hidden_size": hidden,
        "intermediate_size": int(get("feed_forward_length")),
        "num_hidden_layers": int(get("block_count")),
        "num_attention_heads": heads,
        "num_key_value_heads": int(get("attention.head_count_kv", heads)),
        "head_dim": head_dim,
        "hidden_act": "silu",
        "attention_bias": "blk.0.attn_q.bias" in shapes,
        "max_position_embeddings": int(get("context_length")),
        "rms_norm_eps": _short(get("attention.layer_norm_rms_epsilon")),
        "rope_theta": _short(get("rope.freq_base", 10000.0)),
        "rope_scaling": _rope_scaling(get) if rope_freqs is None else _llama3_scaling(get, rope_freqs),
        "tie_word_embeddings": "output.weight" not in shapes,
        "bos_token_id": fields.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": list(end_ids(fields)),
        "dtype": "bfloat16",
        "torch_dtype": "bfloat16",
    }


def generation_config_of(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the generation_config.json: which ids begin, end and pad a text."""
    ids = {
        "bos_token_id": fields.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": list(end_ids(fields)),
        "pad_token_id": fields.get("tokenizer.ggml.padding_token_id"),
    }
    return {key: value for key, value in ids.items() if value is not None}


def end_ids(fields: dict[str, Any]) -> tuple[int, ...]:
    """Return every id that ends a text, the one the file names first."""
    tokens, types = fields["tokenizer.ggml.tokens"], fields.get("tokenizer.ggml.token_type")
    named = [fields[key] for key in ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id") if key in fields]
    places = {text: i for i, text in enumerate(tokens) if text in _END_TEXTS}
    others = [places[t] for t in _END_TEXTS if t in places and types and types[places[t]] == _CONTROL]
    return tuple(dict.fromkeys(int(i) for i in named + others))


class _Getter:
    """Read a field of the file's own architecture; one without a default must be there."""

    def __init__(self, fields: dict[str, Any], arch: str) -> None:
        self._fields, self._arch = fields, arch

    def __call__(self, key: str, default: Any = None) -> Any:
        value = self._fields.get(f"{self._arch}.{key}", default)
        if value is None and not key.startswith("rope.scaling"):
            raise WorkError(f"GGUF file lacks the field {self._arch}.{key}; fetch or convert it again")
        return value


def _short(value: float) -> float:
    # the file holds float32; its shortest decimal is the number the model's author wrote
    return float(str(np.float32(value)))


def _rope_scaling(get: _Getter) -> dict[str, Any] | None:
    kind = get("rope.scaling.type")
    if kind in (None, "none"):
        return None
    if kind not in ("linear", "yarn"):
        raise RequestError(f"GGUF rope scaling {kind!r} is not supported; none, linear and yarn are")
    scaling = {"rope_type": kind, "factor": float(get("rope.scaling.factor"))}
    if kind == "yarn":
        scaling["original_max_position_embeddings"] = int(get("rope.scaling.original_context_length"))
    return scaling


def _llama3_scaling(get: _Getter, divisors: np.ndarray) -> dict[str, Any]:
    """Find the Llama 3 scaling whose divisors these are: the published bands, the factor read off the longest wave."""
    scaling: dict[str, Any] = {"rope_type": "llama3", "factor": _short(divisors.max()), **_LLAMA3_BANDS}
    waves = 2 * np.pi * _short(get("rope.freq_base", 10000.0)) ** (np.arange(len(divisors)) / len(divisors))
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    turns = scaling["original_max_position_embeddings"] / waves
    smooth = np.clip((turns - low) / (high - low), 0, 1)
    expected = 1 / ((1 - smooth) / scaling["factor"] + smooth)
    if not np.allclose(divisors, expected, rtol=1e-4):
        raise RequestError(
            "GGUF tensor 'rope_freqs.weight' is not a Llama 3 frequency scaling; use the model's safetensors folder"
        )
    return scaling
