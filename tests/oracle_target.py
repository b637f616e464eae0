"""A tiny target of six random layers whose greedy text wanders: the one `oracles` are trained on."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from tiny_model import CONFIG, norm_names, random_maps, save_tokenizer

THETA = 50.0  # turns within the few tokens of these texts
LAYERS, WRITTEN = 6, 150  # layers; ids 1 to WRITTEN - 1 are all it ever writes
SETTINGS = CONFIG | {"num_hidden_layers": LAYERS, "max_position_embeddings": 96, "rope_theta": THETA}


def make_target(folder: Path, *, seed: int = 0) -> Path:
    """Write a complete model folder."""
    folder.mkdir(parents=True, exist_ok=True)
    vocab = save_tokenizer(folder, [])
    (folder / "config.json").write_text(json.dumps(SETTINGS | {"vocab_size": vocab, "eos_token_id": 0}))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 0}))
    weights, g = random_maps(vocab, seed, LAYERS)
    weights["lm_head.weight"][[0, *range(WRITTEN, vocab)]] = 0  # a zero row never has the highest logit
    hidden = CONFIG["hidden_size"]
    weights |= {name: 1 + 0.3 * torch.randn(hidden, generator=g) for name in norm_names(LAYERS)}
    save_file(weights, str(folder / "model.safetensors"), metadata={"format": "pt"})
    return folder
