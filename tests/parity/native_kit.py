"""Tiny random models of every family, saved as ordinary folders, for comparison with the reference implementation."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers

from slipstream.nets.decoder import CachedDecoder

VOCAB = 97
TREE = [-1, 0, 0, 1, 1, 2, 3, 6]  # two branches, one of them forked again
PATHS = [[], [1], [2], [1, 3], [1, 4], [2, 5], [1, 3, 6], [1, 3, 6, 7]]
SIZES = {
    **{"vocab_size": VOCAB, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 4},
    **{"num_attention_heads": 6, "num_key_value_heads": 2, "max_position_embeddings": 256},
    **{"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0},
}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "rope_theta": 500.0}

# name -> (config class, what differs from SIZES); windows are shorter than the sequences compared
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama_biases": ("Llama", {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": 6}),
    "llama_one_kv_head": ("Llama", {"num_key_value_heads": 1, "head_dim": 16}),
    "llama3_rope": (
        "Llama",
        {"tie_word_embeddings": True, "rope_parameters": {**LLAMA3, "original_max_position_embeddings": 32}},
    ),
    "llama_linear": ("Llama", {"rope_parameters": {"rope_type": "linear", "factor": 2.0}}),
    "llama_yarn": ("Llama", {"rope_parameters": YARN}),
    "llama_yarn_mscale": (
        "Llama",
        {"rope_parameters": {**YARN, "mscale": 0.7, "mscale_all_dim": 1.0, "truncate": False}},
    ),
    "smollm3": ("SmolLM3", {}),
    "smollm3_sliding": ("SmolLM3", {"use_sliding_window": True, "sliding_window": 7, "no_rope_layer_interval": 2}),
    "mistral_sliding": ("Mistral", {"sliding_window": 5, "head_dim": 16}),
    "mistral_full": ("Mistral", {"sliding_window": None}),
    "qwen2": ("Qwen2", {}),
    "qwen2_sliding": ("Qwen2", {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 2}),
    "qwen3": ("Qwen3", {"head_dim": 16}),
    "qwen3_bias_sliding": (
        "Qwen3",
        {
            "head_dim": 16,
            "attention_bias": True,
            "use_sliding_window": True,
            "sliding_window": 6,
            "max_window_layers": 1,
        },
    ),
    "gemma3": ("Gemma3Text", {"head_dim": 16, "sliding_window": 6, "sliding_window_pattern": 2}),
    "gemma3_capped": (
        "Gemma3Text",
        {"head_dim": 16, "sliding_window": 4, "query_pre_attn_scalar": 20, "final_logit_softcapping": 5.0},
    ),
}


def tiny(name: str, **changes: Any) -> Any:
    """Make a reference model with weights large enough that every part of it moves the logits."""
    family, differs = MODELS[name]
    config = getattr(transformers, f"{family}Config")(**{**SIZES, **differs, **changes})
    kind = "Gemma3ForCausalLM" if family == "Gemma3Text" else f"{family}ForCausalLM"
    generator = torch.Generator().manual_seed(7)
    model = getattr(transformers, kind)(config).eval()
    for key, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        norm = "norm" in key
        offset = 1.0 if norm and family != "Gemma3Text" else 0.0
        parameter.data.copy_(noise * (0.2 if norm else 0.15) + offset)
    return model


def save(model: Any, folder: Path, **options: Any) -> Path:
    """Write a model folder without the progress bar."""
    with contextlib.redirect_stderr(io.StringIO()):
        model.save_pretrained(folder, **options)
    return folder


def reference(model: Any, tokens: list[int]) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
    """Logits [T, V] and hidden states (layer by layer, [T, H]) of the reference, without a cache."""
    with torch.no_grad():
        out = model(torch.tensor([tokens]), output_hidden_states=True, use_cache=False)
    return out.logits[0], tuple(h[0] for h in out.hidden_states)


def tokens(count: int, seed: int = 0) -> list[int]:
    """Random token ids."""
    return torch.randint(0, VOCAB, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def assert_stale_entries_stay_unseen(clean: CachedDecoder, poisoned: CachedDecoder, poison: Callable[[], None]) -> None:
    """Both decoders give the same whatever `poison` writes behind the committed tokens of the second, slots 0 and 1."""
    for decoder in (clean, poisoned):
        decoder.extend(0, tokens(3))
        decoder.extend(1, tokens(20))
    for turn, path in enumerate(PATHS):
        poison()
        draft = torch.tensor([tokens(8, seed=turn), tokens(8, seed=50 + turn)])
        parents = torch.tensor([TREE, TREE]) if turn % 2 else None
        both = [d.nodes([0, 1], draft, parents)[0] for d in (clean, poisoned)]
        assert torch.equal(*both)
        for decoder in (clean, poisoned):
            decoder.keep([0, 1], [path if turn % 2 else list(range(1, turn)), []])
        poison()
        taps = [d.extend(1, tokens(2, seed=turn), (-1,))[-1] for d in (clean, poisoned)]
        assert torch.equal(*taps)
    # the poison is real: one committed entry of a layer that sees everything spoils the output
    at, values = poisoned.length(0) - 1, poisoned.cache.values
    if values.ndim == 6:  # of the kernels: some places together
        values[:, 0, :, at // values.shape[-1], :, at % values.shape[-1]] = float("nan")
    else:
        values[:, 0, :, at] = float("nan")
    assert poisoned.nodes([0], torch.tensor([[5]]))[0].isnan().any()
