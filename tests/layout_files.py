"""Tiny random drafters written by hand in every public layout: the names and keys of those who publish them.

Nothing here uses the library's own tables, so that a wrong name in them is found. `write("zlab/dflash", folder)` writes
a complete folder; `config` and `tensors` change single entries, `sizes` fit it to a target.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor


@dataclass(frozen=True)
class Sizes:
    """Sizes of a drafter and of the target it is for."""

    hidden: int = 32
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 8
    mlp: int = 48
    vocab: int = 40
    draft_vocab: int = 24
    target_layers: int = 8
    layers: int = 2  # of block drafters and P-EAGLE
    taps: tuple[int, ...] = (2, 4, 5)  # states before these layers; layouts spell them in their own way
    mask_token: int = 3
    block: int = 4
    rank: int = 6
    group: int = 16  # channels of one coefficient of a convolution
    choices: int = 5  # tokens a path chooses from
    medusa_heads: int = 3


@dataclass
class Draft:
    """What is about to be written."""

    config: dict[str, Any]
    tensors: dict[str, Tensor]


class _Make:
    """Random tensors of a seed: norms near one, everything else small."""

    def __init__(self, sizes: Sizes, seed: int) -> None:
        self.s, self.random = sizes, torch.Generator().manual_seed(seed)
        self.out: dict[str, Tensor] = {}

    def put(self, name: str, *shape: int) -> None:
        self.out[name] = torch.randn(shape, generator=self.random) * 0.2

    def norm(self, *names: str, width: int = 0) -> None:
        for name in names:
            self.out[f"{name}.weight"] = 1 + 0.1 * torch.randn(width or self.s.hidden, generator=self.random)

    def layer(self, at: str, *, wide: bool = False, qk: bool = False, bias: str = "") -> None:
        s = self.s
        queries, keys, into = s.heads * s.head_dim, s.kv_heads * s.head_dim, s.hidden * (2 if wide else 1)
        for n, rows in (("q", queries), ("k", keys), ("v", keys)):
            self.put(f"{at}.self_attn.{n}_proj.weight", rows, into)
            if n in bias:
                self.put(f"{at}.self_attn.{n}_proj.bias", rows)
        self.put(f"{at}.self_attn.o_proj.weight", s.hidden, queries)
        if "o" in bias:
            self.put(f"{at}.self_attn.o_proj.bias", s.hidden)
        for n in ("gate", "up"):
            self.put(f"{at}.mlp.{n}_proj.weight", s.mlp, s.hidden)
        self.put(f"{at}.mlp.down_proj.weight", s.hidden, s.mlp)
        self.norm(f"{at}.input_layernorm", f"{at}.post_attention_layernorm")
        if wide:
            self.norm(f"{at}.hidden_norm")
        if qk:
            self.norm(f"{at}.self_attn.q_norm", f"{at}.self_attn.k_norm", width=s.head_dim)

    def tables(self, draft: int | None = None) -> None:
        self.put("embed_tokens.weight", self.s.vocab, self.s.hidden)
        self.put("lm_head.weight", draft or self.s.vocab, self.s.hidden)

    def reduced_head(self) -> None:
        """What speculators 0.9 saves of a block drafter: a head only where the vocabulary is reduced, no embedding."""
        if self.s.draft_vocab != self.s.vocab:
            self.put("lm_head.weight", self.s.draft_vocab, self.s.hidden)
        self.maps()

    def maps(self) -> None:
        s = self.s
        if s.draft_vocab == s.vocab:
            return
        ids = torch.randperm(s.vocab, generator=self.random)[: s.draft_vocab].sort().values
        self.out["d2t"] = ids - torch.arange(s.draft_vocab)
        kept = torch.zeros(s.vocab, dtype=torch.bool)
        kept[ids] = True
        self.out["t2d"] = kept

    def eagle3(self, first: str, *, layers: int = 1, qk: bool = False, bias: str = "") -> None:
        s = self.s
        self.put("fc.weight", s.hidden, len(s.taps) * s.hidden)
        self.layer(first, wide=True, qk=qk, bias=bias)
        for i in range(1, layers):
            self.layer(f"layers.{i}", qk=qk, bias=bias)
        self.norm("norm")

    def blocks(self, fc: str = "fc", hidden_norm: str = "hidden_norm") -> None:
        s = self.s
        self.put(f"{fc}.weight", s.hidden, len(s.taps) * s.hidden)
        self.norm(hidden_norm, "norm")
        for i in range(s.layers):
            self.layer(f"layers.{i}", qk=True)

    def markov(self, kind: str = "vanilla", draft: int | None = None) -> None:
        s = self.s
        self.put("markov_head.markov_w1.weight", s.vocab, s.rank)
        self.put("markov_head.markov_w2.weight", draft or s.vocab, s.rank)
        if kind == "gated":
            self.put("markov_head.gate_proj.weight", s.rank, s.hidden + s.rank)
            self.put("markov_head.gate_proj.bias", s.rank)
        if kind == "rnn":
            self.put("markov_head.joint_proj.weight", 3 * s.rank, 2 * s.rank + s.hidden)
            self.put("markov_head.joint_proj.bias", 3 * s.rank)
        self.put("confidence_head.proj.weight", 1, s.hidden + s.rank)
        self.put("confidence_head.proj.bias", 1)

    def paths(self) -> None:
        s = self.s
        for i in range(s.layers):
            for n in ("attention_conv", "mlp_conv"):
                self.put(f"layers.{i}.{n}.base_kernel", 2, 2, s.hidden)
                self.put(f"layers.{i}.{n}.kernel_projection.weight", 4 * s.hidden // s.group, s.hidden)
        for n in ("predecessor", "successor"):
            self.put(f"candidate_selector.{n}_codebook", s.vocab, s.rank)
        self.put("candidate_selector.hidden_projection.weight", s.rank, s.hidden)


def _flat(s: Sizes, kind: str, layers: int) -> dict[str, Any]:
    return {
        "model_type": kind,
        "hidden_size": s.hidden,
        "intermediate_size": s.mlp,
        "num_attention_heads": s.heads,
        "num_key_value_heads": s.kv_heads,
        "num_hidden_layers": layers,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "vocab_size": s.vocab,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
    }


def _outputs(s: Sizes) -> list[int]:
    return [tap - 1 for tap in s.taps]


def _safeailab_eagle(m: _Make, s: Sizes) -> dict[str, Any]:
    m.put("fc.weight", s.hidden, 2 * s.hidden)
    m.put("fc.bias", s.hidden)
    m.layer("layers.0")
    del m.out["layers.0.input_layernorm.weight"]
    return {**_flat(s, "llama", 1), "architectures": ["LlamaForCausalLM"], "bias": True}


def _safeailab_eagle3(m: _Make, s: Sizes) -> dict[str, Any]:
    m.eagle3("midlayer")
    m.put("lm_head.weight", s.draft_vocab, s.hidden)
    m.maps()
    return {**_flat(s, "llama", 1), "architectures": ["LlamaForCausalLM"], "draft_vocab_size": s.draft_vocab}


def _specforge_eagle3(m: _Make, s: Sizes) -> dict[str, Any]:
    nested = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": _outputs(s), "use_aux_hidden_state": True}}
    config = {**_safeailab_eagle3(m, s), **nested, "head_dim": s.head_dim}
    return {**config, "architectures": ["LlamaForCausalLMEagle3"], "rope_theta": 10000.0}


def _specforge_peagle(m: _Make, s: Sizes) -> dict[str, Any]:
    m.eagle3("layers.0", layers=s.layers)
    m.put("mask_hidden", 1, 1, len(s.taps) * s.hidden)
    m.tables(s.draft_vocab)
    m.maps()
    nested = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": _outputs(s)}}
    config = {**_flat(s, "llama", s.layers), **nested, "architectures": ["PEagleDraftModel"], "head_dim": s.head_dim}
    return {**config, "draft_vocab_size": s.draft_vocab, "mask_token_id": s.mask_token}


def _speculators(s: Sizes, kind: str, name: str, layer: str, layers: int, tokens: int) -> dict[str, Any]:
    nested = {**_flat(s, layer, layers), "head_dim": s.head_dim, "attention_bias": False}
    nested["rope_parameters"] = {"rope_theta": 10000.0, "rope_type": "default"}
    if layer == "qwen3":
        nested["layer_types"] = ["full_attention"] * layers
    method = {"proposal_type": "greedy", "speculative_tokens": tokens, "verifier_accept_k": 1, "accept_tolerance": 0.0}
    return {
        "architectures": [name],
        "speculators_model_type": kind,
        "speculators_version": "0.9.0",
        "draft_vocab_size": s.draft_vocab,
        "target_hidden_size": None,
        "tie_word_embeddings": False,
        "transformer_layer_config": nested,
        "speculators_config": {
            "algorithm": kind,
            "default_proposal_method": "greedy",
            "proposal_methods": [method],
            "verifier": {"name_or_path": "some/target", "architectures": ["LlamaForCausalLM"]},
        },
    }


_EAGLE_FLAGS = {"norm_before_fc": False, "fc_norm": False, "norm_output": False}


def _speculators_eagle3(m: _Make, s: Sizes) -> dict[str, Any]:
    m.eagle3("layers.0")
    m.tables(s.draft_vocab)
    m.maps()
    flags = {**_EAGLE_FLAGS, "norm_before_residual": True, "eagle_aux_hidden_state_layer_ids": list(s.taps)}
    return {**_speculators(s, "eagle3", "Eagle3DraftModel", "llama", 1, 3), **flags}


def _speculators_peagle(m: _Make, s: Sizes) -> dict[str, Any]:
    m.eagle3("layers.0", layers=s.layers)
    m.put("mask_hidden", 1, 1, len(s.taps) * s.hidden)
    m.tables(s.draft_vocab)
    m.maps()
    flags = {**_EAGLE_FLAGS, "norm_before_residual": False, "eagle_aux_hidden_state_layer_ids": list(s.taps)}
    config = _speculators(s, "peagle", "PEagleDraftModel", "llama", s.layers, 4)
    return {**config, **flags, "mask_token_id": s.mask_token}


def _speculators_dflash(m: _Make, s: Sizes) -> dict[str, Any]:
    m.blocks()
    m.reduced_head()
    config = _speculators(s, "dflash", "DFlashDraftModel", "qwen3", s.layers, s.block - 1)
    keys = {"aux_hidden_state_layer_ids": list(s.taps), "mask_token_id": s.mask_token, "block_size": s.block}
    return {**config, **keys, "sample_from_anchor": False, "sliding_window_non_causal": False}


def _speculators_dspark(m: _Make, s: Sizes) -> dict[str, Any]:
    m.blocks()
    m.reduced_head()
    m.markov(draft=s.draft_vocab)
    config = _speculators(s, "dspark", "DSparkDraftModel", "qwen3", s.layers, s.block)
    keys = {"aux_hidden_state_layer_ids": list(s.taps), "mask_token_id": s.mask_token, "block_size": s.block}
    heads = {"markov_rank": s.rank, "markov_head_type": "vanilla", "enable_confidence_head": True}
    more = {"confidence_head_with_markov": True, "sample_from_anchor": True, "sliding_window_non_causal": False}
    return {**config, **keys, **heads, **more}


def _block_config(s: Sizes, name: str) -> dict[str, Any]:
    config = {**_flat(s, "qwen3", s.layers), "architectures": [name], "head_dim": s.head_dim}
    more = {"num_target_layers": s.target_layers, "block_size": s.block, "attention_bias": False}
    kinds = {"layer_types": ["full_attention"] * s.layers, "sliding_window": None, "use_sliding_window": False}
    return {**config, **more, **kinds, "rope_theta": 10000.0}


def _deepspec_dspark(m: _Make, s: Sizes) -> dict[str, Any]:
    m.blocks()
    m.tables()
    m.markov()
    keys = {"mask_token_id": s.mask_token, "target_layer_ids": _outputs(s), "num_anchors": 512}
    heads = {"markov_rank": s.rank, "markov_head_type": "vanilla", "enable_confidence_head": True}
    return {**_block_config(s, "Qwen3DSparkModel"), **keys, **heads, "confidence_head_with_markov": True}


def _deepspec_dflash(m: _Make, s: Sizes) -> dict[str, Any]:
    m.blocks()
    m.tables()
    keys = {"mask_token_id": s.mask_token, "target_layer_ids": _outputs(s), "num_anchors": 512}
    return {**_block_config(s, "Qwen3DSparkModel"), **keys, "markov_rank": 0, "enable_confidence_head": False}


def _deepspec_eagle3(m: _Make, s: Sizes) -> dict[str, Any]:
    m.eagle3("layers.0", qk=True)
    m.tables()
    config = {**_flat(s, "qwen3", 1), "architectures": ["Qwen3Eagle3Model"], "head_dim": s.head_dim}
    more = {"num_target_layers": s.target_layers, "target_layer_ids": _outputs(s), "ttt_length": 7}
    return {**config, **more, "layer_types": ["full_attention"], "target_model_name_or_path": "some/target"}


def _zlab_dflash(m: _Make, s: Sizes) -> dict[str, Any]:
    m.blocks()
    nested = {"mask_token_id": s.mask_token, "target_layer_ids": _outputs(s)}
    return {**_block_config(s, "DFlashDraftModel"), "dflash_config": nested}


def _path_keys(s: Sizes) -> dict[str, int]:
    keys = {"conv_kernel_size": 2, "conv_group_size": s.group}
    return {**keys, "selector_rank": s.rank, "selector_top_k": s.choices}


def _zlab_dflash2(m: _Make, s: Sizes) -> dict[str, Any]:
    """As Z Lab publishes them: the block's size is nested, causality is not, windows slide and see both ways."""
    m.blocks()
    m.paths()
    nested = {"mask_token_id": s.mask_token, "target_layer_ids": _outputs(s), "block_size": s.block, **_path_keys(s)}
    config = {**_block_config(s, "DFlash2DraftModel"), "dflash_config": nested, "is_causal": False}
    del config["block_size"]
    kinds = {"layer_types": ["sliding_attention"] * s.layers, "sliding_window": 16, "use_sliding_window": True}
    return {**config, **kinds}


def _speculators_dflash2(m: _Make, s: Sizes) -> dict[str, Any]:
    m.blocks()
    m.paths()
    config = _speculators(s, "dflash2", "DFlash2DraftModel", "qwen3", s.layers, s.block - 1)
    keys = {"aux_hidden_state_layer_ids": list(s.taps), "mask_token_id": s.mask_token, "block_size": s.block}
    flags = {"sample_from_anchor": False, "sliding_window_non_causal": True, "draft_vocab_size": s.vocab}
    return {**config, **keys, **flags, **_path_keys(s)}


def _specforge_dspark(m: _Make, s: Sizes) -> dict[str, Any]:
    m.blocks()
    m.markov()
    nested = {"mask_token_id": s.mask_token, "target_layer_ids": _outputs(s), "projector_type": "dspark"}
    heads = {"markov_rank": s.rank, "markov_head_type": "vanilla", "confidence_head_alpha": 1.0}
    nested = {**nested, **heads, "confidence_head_with_markov": True}
    return {**_block_config(s, "DSparkDraftModel"), "dflash_config": nested}


def _transformers_dflash(m: _Make, s: Sizes) -> dict[str, Any]:
    m.blocks("encoder.fc", "encoder.output_norm_enc")
    config = {**_flat(s, "muse_glimmer_assistant", s.layers), "architectures": ["MuseGlimmerAssistantModel"]}
    keys = {"target_layer_ids": _outputs(s), "block_size": s.block, "mask_token_id": s.mask_token}
    kinds = {"layer_types": ["sliding_attention"] * s.layers, "sliding_window": 16, "head_dim": s.head_dim}
    return {**config, **keys, **kinds, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}


def _medusa(m: _Make, s: Sizes) -> dict[str, Any]:
    config = _medusa_legacy(m, s)
    for i in range(s.medusa_heads):
        m.put(f"{i}.1.weight", s.vocab, s.hidden)
    return config


def _medusa_legacy(m: _Make, s: Sizes) -> dict[str, Any]:
    for i in range(s.medusa_heads):
        m.put(f"{i}.0.linear.weight", s.hidden, s.hidden)
        m.put(f"{i}.0.linear.bias", s.hidden)
    config = {"medusa_num_heads": s.medusa_heads, "medusa_num_layers": 1, "version": "2"}
    return {**config, "base_model_name_or_path": "some/target", "vocab_size": s.vocab}


WRITERS: Mapping[str, Callable[[_Make, Sizes], dict[str, Any]]] = {
    "safeailab/eagle": _safeailab_eagle,
    "safeailab/eagle3": _safeailab_eagle3,
    "specforge/eagle3": _specforge_eagle3,
    "specforge/peagle": _specforge_peagle,
    "specforge/dspark": _specforge_dspark,
    "speculators/eagle3": _speculators_eagle3,
    "speculators/peagle": _speculators_peagle,
    "speculators/dflash": _speculators_dflash,
    "speculators/dflash2": _speculators_dflash2,
    "speculators/dspark": _speculators_dspark,
    "deepspec/dspark": _deepspec_dspark,
    "deepspec/dflash": _deepspec_dflash,
    "deepspec/eagle3": _deepspec_eagle3,
    "zlab/dflash": _zlab_dflash,
    "zlab/dflash2": _zlab_dflash2,
    "transformers/dflash": _transformers_dflash,
    "medusa/medusa": _medusa,
    "medusa-legacy/medusa": _medusa_legacy,
}
ALL = tuple(WRITERS)


def make(layout: str, sizes: Sizes | None = None, seed: int = 0) -> Draft:
    """Return config.json and tensors of a random drafter in a layout, not yet written."""
    sizes = sizes or Sizes()
    maker = _Make(sizes, seed)
    config = WRITERS[layout](maker, sizes)
    return Draft(config, maker.out)


def write(
    layout: str,
    folder: Path,
    *,
    sizes: Sizes | None = None,
    seed: int = 0,
    config: Mapping[str, Any] | None = None,
    tensors: Mapping[str, Tensor | None] | None = None,
    kind: str = "safetensors",
) -> Path:
    """Write a folder. `config` and `tensors` replace entries; REMOVE and None take one out.

    A key of `config` with dots reaches into nested objects; `kind` "bin" pickles the tensors.
    """
    draft = make(layout, sizes, seed)
    for key, value in (config or {}).items():
        _set(draft.config, key.split("."), value)
    for name, tensor in (tensors or {}).items():
        if tensor is None:
            del draft.tensors[name]
        else:
            draft.tensors[name] = tensor
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(draft.config))
    medusa = layout.startswith("medusa")
    if kind == "bin":
        torch.save(draft.tensors, folder / ("medusa_lm_head.pt" if medusa else "pytorch_model.bin"))
    else:
        name = "medusa_lm_head.safetensors" if medusa else "model.safetensors"
        save_file({n: t.contiguous() for n, t in draft.tensors.items()}, str(folder / name), metadata={"format": "pt"})
    return folder


REMOVE = object()  # as a value of `config`: takes the key out


def _set(config: dict[str, Any], path: list[str], value: Any) -> None:
    for key in path[:-1]:
        config = config.setdefault(key, {})
    if value is REMOVE:
        config.pop(path[-1], None)
    else:
        config[path[-1]] = value
