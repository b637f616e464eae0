"""Tiny drafters with random weights, in canonical form, for tests; and tables to share with them."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from slipstream.nets.draft_config import (
    Block,
    Body,
    DraftCheckpoint,
    DraftConfig,
    Features,
    Heads,
    Markov,
    Paths,
    Rows,
    Tables,
    Vocab,
)

H, VOCAB = 16, 12
DTYPE = torch.float64


def tables(vocab: int = VOCAB, hidden: int = H, *, seed: int = 9, extra: int = 2, dtype: torch.dtype = DTYPE) -> Tables:
    """Random embedding and head of a target; the embedding has `extra` padded rows past the real ids."""
    g = torch.Generator().manual_seed(seed)
    embed = torch.randn(vocab + extra, hidden, generator=g, dtype=dtype)
    head = torch.randn(vocab, hidden, generator=g, dtype=dtype)
    return Tables(
        embed=lambda ids: embed[ids],
        head=lambda x: x @ head.T,
        vocab=vocab,
        rows=vocab + extra,
        hidden=hidden,
        dtype=dtype,
        device=torch.device("cpu"),
    )


def body(layers: int = 1, **changes: Any) -> Body:
    """A small body: 4 heads of 8 over 2 key heads, so that heads * head_dim differs from the hidden size."""
    settings = {"hidden": H, "layers": layers, "heads": 4, "kv_heads": 2, "head_dim": 8, "mlp": 24}
    settings |= {"windows": (None,) * layers, "eps": 1e-5} | changes
    return Body(**settings)


def tiny(
    algorithm: str, *, vocab: int | Vocab = VOCAB, seed: int = 0, scale: float = 0.4, **changes: Any
) -> DraftCheckpoint:
    """A random checkpoint. `changes` replace fields of the `DraftConfig`; `vocab`: the target's size or the record."""
    if isinstance(vocab, Vocab):
        changes["vocab"], vocab = vocab, vocab.target
    config = dataclasses.replace(_config(algorithm, vocab), **changes)
    g = torch.Generator().manual_seed(seed)

    def fill(name: str, shape: tuple[int, ...]) -> Tensor:
        x = torch.randn(shape, generator=g, dtype=DTYPE)
        return 1 + 0.2 * x if "norm" in name and name.endswith("weight") else x * scale

    tensors = {name: fill(name, shape) for name, shape in shapes(config).items()}
    if config.vocab.reduced:
        picked = torch.randperm(config.vocab.target, generator=g)[: config.vocab.draft]
        tensors["vocab_map"] = picked.sort().values
    return DraftCheckpoint(config, tensors)


def _config(algorithm: str, vocab: int) -> DraftConfig:
    v = Vocab(vocab, vocab)
    if algorithm == "eagle":
        features = Features((-1,), H, bias=True)
        return DraftConfig("eagle", "safeailab", features, v, body(), Rows(logit_norm=False))
    if algorithm in ("eagle3", "peagle"):
        features = Features((1, 2, 3), H)
        layers = 2 if algorithm == "peagle" else 1
        block = Block(4, vocab, True, (True,) * layers) if algorithm == "peagle" else None
        own = Vocab(vocab, vocab, own_head=True)
        return DraftConfig(algorithm, "specforge", features, own, body(layers), block=block)
    if algorithm == "medusa":
        return DraftConfig("medusa", "medusa", Features((-1,), H, fused=False), v, heads=Heads(3, 1, True))
    block = Block(4, vocab, algorithm == "dspark", (False, False))
    markov = Markov("vanilla", 6, "markov") if algorithm == "dspark" else Markov()
    paths = Paths(2, 4, 6, 4) if algorithm == "dflash2" else None
    features, b = Features((1, 3), H), body(2, qk_norm=True)
    return DraftConfig(algorithm, "zlab", features, v, b, block=block, markov=markov, paths=paths)


def shapes(config: DraftConfig) -> dict[str, tuple[int, ...]]:
    """Canonical tensor names and shapes of a config."""
    out: dict[str, tuple[int, ...]] = {}
    f, v, wide = config.features, config.vocab, len(config.features.taps) * config.features.width
    if config.algorithm == "medusa":
        return _medusa(config)
    b = config.body
    assert b is not None
    if v.own_embed:
        out["embed.weight"] = (v.target, b.hidden)
    if v.own_head:
        out["head.weight"] = (v.draft, b.hidden)
    if f.fused:
        out["fc.weight"] = (b.hidden, 2 * b.hidden if config.algorithm == "eagle" else wide)
        if f.bias:
            out["fc.bias"] = (b.hidden,)
    if f.norm == "each":
        out |= {f"fc_norm.{c}.weight": (f.width,) for c in range(len(f.taps))}
    if f.norm == "whole":
        out["input_norm.weight"] = (wide,)
    if config.algorithm != "eagle":
        out["norm.weight"] = (b.hidden,)
    if config.algorithm in ("dflash", "dflash2", "dspark"):
        out["hidden_norm.weight"] = (b.hidden,)
    if config.algorithm == "peagle":
        out["mask_hidden"] = (wide,)
    for i in range(b.layers):
        out |= _layer(config, b, i)
    return out | _dspark(config, b) | _dflash2(config, b)


def _layer(config: DraftConfig, b: Body, i: int) -> dict[str, tuple[int, ...]]:
    at, q, kv = f"layers.{i}", b.heads * b.head_dim, b.kv_heads * b.head_dim
    first = i == 0 and config.algorithm in ("eagle3", "peagle")
    wide = 2 * b.hidden if first else b.hidden
    out = {f"{at}.self_attn.{n}_proj.weight": (s, wide) for n, s in (("q", q), ("k", kv), ("v", kv))}
    out[f"{at}.self_attn.o_proj.weight"] = (b.hidden, q)
    if "qkv" in b.biases:
        out |= {f"{at}.self_attn.{n}_proj.bias": (s,) for n, s in (("q", q), ("k", kv), ("v", kv))}
    if "out" in b.biases:
        out[f"{at}.self_attn.o_proj.bias"] = (b.hidden,)
    if b.qk_norm:
        out |= {f"{at}.self_attn.{n}_norm.weight": (b.head_dim,) for n in "qk"}
    out |= {f"{at}.mlp.{n}_proj.weight": (b.mlp, b.hidden) for n in ("gate", "up")}
    out[f"{at}.mlp.down_proj.weight"] = (b.hidden, b.mlp)
    out[f"{at}.post_attention_layernorm.weight"] = (b.hidden,)
    if config.algorithm != "eagle" or i > 0:
        out[f"{at}.input_layernorm.weight"] = (b.hidden,)
    if first:
        out[f"{at}.hidden_norm.weight"] = (b.hidden,)
    return out


def _dspark(config: DraftConfig, b: Body) -> dict[str, tuple[int, ...]]:
    m, v, out = config.markov, config.vocab, {}
    if m.kind != "none":
        out |= {"markov.w1.weight": (v.target, m.rank), "markov.w2.weight": (v.draft, m.rank)}
    if m.kind == "gated":
        out |= {"markov.gate.weight": (m.rank, b.hidden + m.rank), "markov.gate.bias": (m.rank,)}
    if m.kind == "rnn":
        out |= {"markov.joint.weight": (3 * m.rank, 2 * m.rank + b.hidden), "markov.joint.bias": (3 * m.rank,)}
    if m.confidence != "none":
        wide = b.hidden + (m.rank if m.confidence == "markov" else 0)
        out |= {"confidence.weight": (1, wide), "confidence.bias": (1,)}
    return out


def _dflash2(config: DraftConfig, b: Body) -> dict[str, tuple[int, ...]]:
    p, out = config.paths, {}
    if p is None:
        return out
    for i in range(b.layers):
        for name in ("attention_conv", "mlp_conv"):
            out[f"layers.{i}.{name}.base"] = (2, p.taps, b.hidden)
            out[f"layers.{i}.{name}.dynamic.weight"] = (2 * p.taps * b.hidden // p.group, b.hidden)
    out |= {f"paths.{name}.weight": (config.vocab.target, p.rank) for name in ("before", "after")}
    return out | {"paths.mix.weight": (p.rank, b.hidden)}


def _medusa(config: DraftConfig) -> dict[str, tuple[int, ...]]:
    heads, h = config.heads, config.features.width
    assert heads is not None
    out: dict[str, tuple[int, ...]] = {}
    for i in range(heads.count):
        for j in range(heads.blocks):
            out |= {f"heads.{i}.blocks.{j}.weight": (h, h), f"heads.{i}.blocks.{j}.bias": (h,)}
        if heads.own:
            out[f"heads.{i}.head.weight"] = (config.vocab.target, h)
    return out
