"""A tiny model made on the spot: two Llama layers with random weights, a byte-level tokenizer trained on few lines."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

LINES = ["the cat sat on the mat and the dog sat on the log", "one two three four five", "Grüße, 안녕 👋\n"]
TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
    "bos_token_id": None,
}


def save_tokenizer(folder: Path, extra: list[str]) -> int:
    """Train a small tokenizer, save it, and return the number of its ids."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tok.decoder = decoders.ByteLevel()
    special = ["<|end|>", "<|user|>", "<|assistant|>", "<|system|>", *extra]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tok.train_from_iterator(LINES * 4, trainer)
    tok.save(str(folder / "tokenizer.json"))
    settings = {"eos_token": "<|end|>", "chat_template": TEMPLATE, "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return tok.get_vocab_size()


def random_maps(vocab: int, seed: int, layers: int) -> tuple[dict[str, torch.Tensor], torch.Generator]:
    """Random tables and maps for `CONFIG` with so many layers, and the generator that drew them."""
    g = torch.Generator().manual_seed(seed)
    h, inter, kv = CONFIG["hidden_size"], CONFIG["intermediate_size"], 16
    shapes = {"model.embed_tokens.weight": (vocab, h), "lm_head.weight": (vocab, h)}
    for k in range(layers):
        p = f"model.layers.{k}."
        shapes |= {f"{p}self_attn.{n}_proj.weight": (h if n in "qo" else kv, h) for n in "qkvo"}
        shapes |= {f"{p}mlp.{n}_proj.weight": (inter, h) for n in ("gate", "up")}
        shapes[f"{p}mlp.down_proj.weight"] = (h, inter)
    return {name: torch.randn(shape, generator=g) * 0.3 for name, shape in shapes.items()}, g


def norm_names(layers: int) -> list[str]:
    """The norms of a model with so many layers."""
    names = [f"model.layers.{k}.{n}_layernorm.weight" for k in range(layers) for n in ("input", "post_attention")]
    return [*names, "model.norm.weight"]


def save_weights(folder: Path, vocab: int, seed: int, layers: int = 2) -> None:
    """Save random weights for `CONFIG` with so many layers."""
    weights, _ = random_maps(vocab, seed, layers)
    weights |= {name: torch.ones(CONFIG["hidden_size"]) for name in norm_names(layers)}
    save_file(weights, str(folder / "model.safetensors"), metadata={"format": "pt"})


def make_model(folder: Path, *, seed: int = 0, extra: list[str] | None = None, layers: int = 2) -> Path:
    """Write a complete model folder."""
    folder.mkdir(parents=True, exist_ok=True)
    vocab = save_tokenizer(folder, extra or [])
    (folder / "config.json").write_text(
        json.dumps(CONFIG | {"vocab_size": vocab, "eos_token_id": 0, "num_hidden_layers": layers})
    )
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 0}))
    save_weights(folder, vocab, seed, layers)
    return folder
