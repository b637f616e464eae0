"""Drafters to write and convert, and the folder of a target that fits them: nothing here is a real model."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from draft_zoo import H, body, shapes, tiny
from slipstream.checkpoints.target_folder import TargetFolder
from slipstream.nets.draft_config import Block, Claims, DraftCheckpoint, Features, Paths, Rows, Vocab

ROWS, LAYERS, MASK = 14, 8, 13
DEFAULT_TAPS = (2, 4, 5)  # SafeAILab's places for 8 layers


def make_target(
    folder: Path, *, tied: bool = False, seed: int = 3, dtype: torch.dtype = torch.float32, **config: Any
) -> TargetFolder:
    """Write what a drafter needs of a target: config.json, embedding, head (none where tied)."""
    folder.mkdir(parents=True, exist_ok=True)
    raw = {
        **{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": H, "vocab_size": ROWS},
        **{"num_hidden_layers": LAYERS, "tie_word_embeddings": tied, "max_position_embeddings": 64},
        **{"rope_theta": 10000.0, "num_attention_heads": 4, "intermediate_size": 24},
    } | config
    (folder / "config.json").write_text(json.dumps(raw))
    g = torch.Generator().manual_seed(seed)
    tensors = {"model.embed_tokens.weight": torch.randn(ROWS, raw["hidden_size"], generator=g).to(dtype)}
    if not tied:
        tensors["lm_head.weight"] = torch.randn(ROWS, raw["hidden_size"], generator=g).to(dtype)
    tensors["model.norm.weight"] = torch.ones(raw["hidden_size"], dtype=dtype)
    save_file(tensors, str(folder / "model.safetensors"))
    return TargetFolder(folder, "the/target")


def drafter(algorithm: str, *, dtype: torch.dtype = torch.float32, **changes: Any) -> DraftCheckpoint:
    """A random drafter for that target, plain enough for most layouts unless `changes` say otherwise."""
    layers = changes.pop("layers", 1 if algorithm in ("eagle", "eagle3") else 2)
    shape = {"head_dim": 4, "qk_norm": algorithm in ("dflash", "dflash2", "dspark")} | changes.pop("body", {})
    fields: dict[str, Any] = {"claims": Claims("the/target", LAYERS), "vocab": Vocab(ROWS, ROWS)}
    if algorithm != "medusa":
        fields["body"] = body(layers, **shape)
    if algorithm in ("eagle3", "peagle"):
        fields |= {"features": Features(DEFAULT_TAPS, H), "vocab": Vocab(ROWS, ROWS, own_head=True)}
    if algorithm == "peagle":
        fields |= {"vocab": Vocab(ROWS, ROWS, True, True), "block": Block(4, MASK, True, (True,) * layers)}
    if algorithm in ("dflash", "dflash2", "dspark"):
        fields |= {"features": Features((2, 6), H), "block": Block(4, MASK, algorithm == "dspark", (False,) * layers)}
    seed = changes.pop("seed", 0)
    config = dataclasses.replace(tiny(algorithm, vocab=ROWS).config, **(fields | changes))
    g = torch.Generator().manual_seed(seed)
    tensors = {n: (torch.randn(s, generator=g) * 0.3 + ("norm" in n)).to(dtype) for n, s in shapes(config).items()}
    if config.vocab.reduced:
        tensors["vocab_map"] = torch.randperm(config.vocab.target, generator=g)[: config.vocab.draft].sort().values
    return DraftCheckpoint(config, tensors)


REDUCED = Vocab(ROWS, 8, own_head=True)
POST = Rows(feedback="post", residual_norm=True)
FIVE = Features((1, 2, 4, 6, 7), H)
SLIDING = {"windows": (6, None)}

# name -> (a drafter, the layouts that can hold it, and a word of the refusal of each of the others)
DRAFTERS: dict[str, tuple[DraftCheckpoint, tuple[str, ...], dict[str, str]]] = {
    "eagle": (drafter("eagle"), ("safeailab",), {}),
    "eagle with biases": (drafter("eagle", body={"biases": ("qkv",)}), ("safeailab",), {}),
    "eagle3": (
        drafter("eagle3"),
        ("safeailab", "specforge", "speculators"),
        {"deepspec": "norms of queries"},
    ),
    "eagle3 reduced": (
        drafter("eagle3", vocab=REDUCED),
        ("safeailab", "specforge", "speculators"),
        {"deepspec": "reduced"},
    ),
    "eagle3 tap norms, own taps, head_dim": (
        drafter("eagle3", features=Features((1, 3, 7), H, norm="each"), body={"head_dim": 8}),
        ("specforge", "speculators"),
        {"safeailab": "norm before fc", "deepspec": "norms of queries"},
    ),
    "eagle3 wide target": (
        drafter("eagle3", features=Features(DEFAULT_TAPS, 24), vocab=Vocab(ROWS, ROWS, True, True)),
        ("safeailab", "specforge", "speculators"),
        {"deepspec": "wider or narrower"},
    ),
    "eagle3 3.1": (
        drafter("eagle3", features=Features((0, 4), H, norm="whole"), rows=POST, layers=2, body={"qk_norm": True}),
        ("speculators",),
        {"safeailab": "norm before fc", "specforge": "norm before fc", "deepspec": "norm before fc"},
    ),
    "eagle3 sliding": (
        drafter("eagle3", layers=2, body={"windows": (6, None)}),
        ("speculators",),
        {"safeailab": "sliding windows", "specforge": "sliding windows", "deepspec": "sliding windows"},
    ),
    "eagle3 five taps": (
        drafter("eagle3", features=FIVE, body={"qk_norm": True, "biases": ("qkv", "out")}),
        ("speculators", "deepspec"),
        {"safeailab": "norms of queries", "specforge": "norms of queries"},
    ),
    "eagle3 head on the raw state": (
        drafter("eagle3", rows=Rows(logit_norm=False)),
        ("specforge",),
        {"safeailab": "final norm", "speculators": "final norm", "deepspec": "norms of queries"},
    ),
    "eagle3 final state": (
        drafter("eagle3", features=Features((-1,), H, fused=False)),
        ("specforge",),
        {"safeailab": "what the taps are", "speculators": "what the taps are", "deepspec": "norms of queries"},
    ),
    "peagle": (drafter("peagle"), ("specforge", "speculators"), {}),
    "peagle reduced": (drafter("peagle", vocab=Vocab(ROWS, 8, True, True)), ("specforge", "speculators"), {}),
    "peagle qk norm": (drafter("peagle", body={"qk_norm": True}), ("speculators",), {"specforge": "norms of queries"}),
    "dflash": (
        drafter("dflash"),
        ("zlab", "speculators", "transformers"),
        {"deepspec": "anchor slot"},
    ),
    "dflash anchor predicts": (
        drafter("dflash", block=Block(4, MASK, True, (False, False))),
        ("speculators", "deepspec"),
        {"zlab": "anchor slot", "transformers": "anchor slot"},
    ),
    "dflash sliding": (
        drafter("dflash", body=SLIDING, block=Block(4, MASK, False, (True, False))),
        ("zlab", "speculators"),
        {"deepspec": "sliding windows", "transformers": "causal within a block"},
    ),
    "dflash sliding both ways": (
        drafter("dflash", body=SLIDING),
        ("zlab", "speculators", "transformers"),
        {"deepspec": "sliding windows"},
    ),
    "dflash causal": (
        drafter("dflash", block=Block(4, MASK, False, (True, True))),
        ("zlab",),
        {"deepspec": "causal", "speculators": "causal", "transformers": "causal"},
    ),
    "dflash reduced": (
        drafter("dflash", vocab=REDUCED),
        ("speculators",),
        {"zlab": "own head.weight", "deepspec": "reduced", "transformers": "own head.weight"},
    ),
    "dflash2": (drafter("dflash2"), ("zlab", "speculators"), {}),
    "dflash2 sliding both ways": (drafter("dflash2", body=SLIDING), ("zlab", "speculators"), {}),
    "dflash2 causal": (
        drafter("dflash2", block=Block(4, MASK, False, (True, True))),
        ("zlab",),
        {"speculators": "causal"},
    ),
    "dflash2 anchor predicts": (
        drafter("dflash2", block=Block(4, MASK, True, (False, False))),
        ("speculators",),
        {"zlab": "anchor slot"},
    ),
    "dflash2 scales": (
        drafter("dflash2", paths=Paths(3, 8, 6, 4, embed_scale=4.0, logit_scale=0.25, logit_cap=20.0)),
        ("zlab",),
        {"speculators": "scales"},
    ),
    "dspark": (drafter("dspark"), ("specforge", "speculators", "deepspec"), {}),
    "dspark anchor silent": (
        drafter("dspark", block=Block(4, MASK, False, (False, False))),
        ("speculators",),
        {"specforge": "anchor slot", "deepspec": "anchor slot"},
    ),
    "medusa": (drafter("medusa"), ("medusa",), {"medusa-legacy": "vocabulary projection"}),
}


def plain(found: DraftCheckpoint) -> Any:
    """The record without what may change: layout and claims."""
    return dataclasses.replace(found.config, layout="", claims=Claims())
