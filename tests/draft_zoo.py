"""Tiny drafters with random weights, in canonical form, for tests; and tables to share with them."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from slipstream.checkpoints.draft_shapes import expected_shapes
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
    """Canonical names and shapes of a config's floating-point tensors, in the order they are drawn."""
    return {name: shape for name, shape in expected_shapes(config).items() if name != "vocab_map"}
