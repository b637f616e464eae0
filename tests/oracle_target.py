"""A tiny target of six random layers whose greedy text wanders: the one `oracles` are trained on."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from tiny_model import CONFIG, save_tokenizer

THETA = 50.0  # turns within the few tokens of these texts
LAYERS, WRITTEN = 6, 150  # layers; ids 1 to WRITTEN - 1 are all it ever writes
SETTINGS = CONFIG | {"num_hidden_layers": LAYERS, "max_position_embeddings": 96, "rope_theta": THETA}


def make_target(folder: Path, *, seed: int = 0) -> Path:
    """Write a complete model folder."""
    folder.mkdir(parents=True, exist_ok=True)
    vocab = save_tokenizer(folder, [])
    (folder / "config.json").write_text(json.dumps(SETTINGS | {"vocab_size": vocab, "eos_token_id": 0}))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 0}))
    g = torch.Generator().manual_seed(seed)
    h, inter, kv = SETTINGS["hidden_size"], SETTINGS["intermediate_size"], 16
    shapes = {"model.embed_tokens.weight": (vocab, h), "lm_head.weight": (vocab, h)}
    for k in range(LAYERS):
        p = f"model.layers.{k}."
        shapes |= {f"{p}self_attn.{n}_proj.weight": (h if n in "qo" else kv, h) for n in "qkvo"}
        shapes |= {f"{p}mlp.{n}_proj.weight": (inter, h) for n in ("gate", "up")}
        shapes[f"{p}mlp.down_proj.weight"] = (h, inter)
    weights = {name: torch.randn(shape, generator=g) * 0.3 for name, shape in shapes.items()}
    weights["lm_head.weight"][[0, *range(WRITTEN, vocab)]] = 0  # a zero row never has the highest logit
    norms = [f"model.layers.{k}.{n}_layernorm.weight" for k in range(LAYERS) for n in ("input", "post_attention")]
    weights |= {name: 1 + 0.3 * torch.randn(h, generator=g) for name in [*norms, "model.norm.weight"]}
    save_file(weights, str(folder / "model.safetensors"), metadata={"format": "pt"})
    return folder
