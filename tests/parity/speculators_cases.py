"""The tiny drafters that are compared with the `speculators` package: facts only, read by both sides."""

from __future__ import annotations

from typing import Any

V, VD, H, N = 61, 29, 32, 6  # the target's vocabulary, the drafters', width, the target's layers
LENGTHS = (26, 17, 12)
MASK = 5
STEPS = 4  # self-fed steps of an EAGLE-3 chain, depths of a P-EAGLE draft
BODY: dict[str, Any] = {
    **{"vocab_size": V, "hidden_size": H, "intermediate_size": 48, "num_hidden_layers": 1, "head_dim": 8},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-5, "max_position_embeddings": 128},
    **{"tie_word_embeddings": False, "pad_token_id": None, "rope_theta": 5000.0},
}
SLIDING, FULL = "sliding_attention", "full_attention"
LLAMA3 = {
    **{"rope_type": "llama3", "rope_theta": 5000.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    "original_max_position_embeddings": 16,
}


def _windows(kinds: list[str], window: int) -> dict[str, Any]:
    return {
        **{"num_hidden_layers": len(kinds), "layer_types": kinds, "sliding_window": window},
        **{"use_sliding_window": True, "max_window_layers": 0},
    }


# name -> (kind, body, what differs in the body, the drafter's own settings)
CASES: dict[str, tuple[str, str, dict[str, Any], dict[str, Any]]] = {
    "eagle3_plain": ("eagle3", "llama", {}, {}),
    "eagle3_residual": ("eagle3", "llama", {}, {"norm_before_residual": True, "draft_vocab_size": VD}),
    "eagle3_fed_normed": (
        "eagle3",
        "llama",
        {"num_hidden_layers": 2, "rope_parameters": LLAMA3},
        {"norm_output": True, "fc_norm": True, "draft_vocab_size": VD, "taps": [0, 2, 4, 6]},
    ),
    "eagle3_qwen3": (
        "eagle3",
        "qwen3",
        {"attention_bias": True},
        {"norm_before_fc": True, "norm_before_residual": True, "norm_output": True, "embed_requires_grad": True},
    ),
    "eagle3_sliding": ("eagle3", "qwen3", _windows([SLIDING, FULL], 7), {"draft_vocab_size": VD}),
    "peagle": ("peagle", "llama", {}, {"draft_vocab_size": VD, "norm_before_residual": True}),
    "peagle_deep": ("peagle", "qwen3", {"num_hidden_layers": 2}, {"fc_norm": True}),
    "peagle_sliding": ("peagle", "qwen3", _windows([SLIDING, FULL], 6), {"norm_before_fc": True}),
    "dflash": ("dflash", "qwen3", {"num_hidden_layers": 2}, {"taps": [1, 2, 3, 4, 5]}),
    "dflash_reduced": ("dflash", "qwen3", {"attention_bias": True}, {"draft_vocab_size": VD}),
    "dflash_from_anchor": ("dflash", "qwen3", {}, {"sample_from_anchor": True, "block_size": 4}),
    "dflash_sliding": ("dflash", "qwen3", _windows([SLIDING, FULL], 12), {"block_size": 4}),
    "dflash_one_sliding": ("dflash", "qwen3", _windows([SLIDING], 6), {"block_size": 4}),
    "dflash_sliding_both_ways": (
        "dflash",
        "qwen3",
        _windows([FULL, SLIDING], 12),
        {"block_size": 4, "sliding_window_non_causal": True, "taps": [6]},
    ),
    "dflash2": ("dflash2", "qwen3", {"num_hidden_layers": 2}, {"taps": [1, 3, 5]}),
    "dflash2_three_taps": ("dflash2", "qwen3", {}, {"conv_kernel_size": 3, "conv_group_size": 4, "selector_top_k": 3}),
    "dflash2_from_anchor": ("dflash2", "qwen3", {"attention_bias": True}, {"sample_from_anchor": True}),
    "dflash2_sliding": ("dflash2", "qwen3", _windows([SLIDING, FULL], 12), {"block_size": 4}),
    "dspark": ("dspark", "qwen3", {"num_hidden_layers": 2}, {"draft_vocab_size": VD}),
    "dspark_gated": ("dspark", "qwen3", {}, {"markov_head_type": "gated", "confidence_head_with_markov": False}),
    "dspark_rnn": ("dspark", "qwen3", {}, {"markov_head_type": "rnn", "draft_vocab_size": VD}),
    "dspark_after_anchor": ("dspark", "qwen3", {}, {"sample_from_anchor": False, "enable_confidence_head": False}),
    "dspark_after_anchor_rnn": ("dspark", "qwen3", {}, {"sample_from_anchor": False, "markov_head_type": "rnn"}),
}
