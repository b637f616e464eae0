"""A drafter's config.json in a layout's own spelling: the reverse of reading it.

In: a canonical record that `layout_limits` let through, and what is known besides. Out: a dictionary for JSON. Keys
that an engine needs are written although their value is the default; keys that engines read in different senses are
left out where the default says it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from slipstream.nets.draft_config import Block, Body, DraftConfig, Paths
from slipstream.types import RequestError

_ACTIVATIONS = {"silu": "silu", "gelu_tanh": "gelu_pytorch_tanh"}
_SPECULATORS_VERSION = "0.9.0"
_DRAFT_TOKENS = 5
_TAPS = "eagle_aux_hidden_state_layer_ids"


@dataclass(frozen=True)
class About:
    """What a config.json says besides the record. `layers` and `target` are of the target model."""

    target: str = ""
    layers: int | None = None
    architectures: tuple[str, ...] = ()
    context: int = 32768
    dtype: str = "float32"


def config_out(config: DraftConfig, layout: str, about: About) -> dict[str, Any]:
    """Return the config.json of a drafter in a layout."""
    return _WRITERS[layout, config.algorithm](config, about)


def _safeailab_eagle(c: DraftConfig, about: About) -> dict[str, Any]:
    b = _body(c)
    return {
        **_flat(c, about, "llama"),
        **_old_rope(b, "type"),
        "architectures": ["LlamaForCausalLM"],
        "bias": c.features.bias,
        "qkv_bias": "qkv" in b.biases,
    }


def _safeailab_eagle3(c: DraftConfig, about: About) -> dict[str, Any]:
    layers = _layers(about, "safeailab", "has no key for the taps: their places follow from it")
    fixed = (2, layers // 2, layers - 3)
    if c.features.taps != fixed:
        raise RequestError(
            f"layout 'safeailab' cannot express taps {list(c.features.taps)}: there they are always {list(fixed)} "
            f"for a target of {layers} layers"
        )
    return {
        **_flat(c, about, "llama"),
        **_old_rope(_body(c), "type"),
        **_own_width(c),
        "architectures": ["LlamaForCausalLM"],
        "draft_vocab_size": c.vocab.draft,
    }


def _specforge_eagle3(c: DraftConfig, about: About) -> dict[str, Any]:
    bare = not c.features.fused
    written = {
        **_flat(c, about, "llama"),
        **_old_rope(_body(c)),
        "architectures": ["LlamaForCausalLMEagle3"],
        "draft_vocab_size": c.vocab.draft,
        "target_hidden_size": c.features.width,
        "fc_norm": c.features.norm == "each",
        "head_dim": _body(c).head_dim,
        "eagle_config": {"use_aux_hidden_state": False} if bare else {_TAPS: _outputs(c), "use_aux_hidden_state": True},
    }
    if not bare:  # other engines read this place, and count states before layers
        written[_TAPS] = list(c.features.taps)
    # true is the default there, and means something else to the engines that serve these files
    return written if c.rows.logit_norm else {**written, "norm_output": False}


def _specforge_peagle(c: DraftConfig, about: About) -> dict[str, Any]:
    mask = _block(c).mask_token
    return {
        **_specforge_eagle3(c, about),
        "architectures": ["PEagleDraftModel"],
        "norm_before_residual": False,
        "mask_token_id": mask,
        "pard_token": mask,
        "num_depths": _block(c).size,
    }


def _deepspec_eagle3(c: DraftConfig, about: About) -> dict[str, Any]:
    return {
        **_deepspec(c, about),
        "architectures": ["Qwen3Eagle3Model"],
        "draft_num_hidden_layers": _body(c).layers,
        "target_model_name_or_path": about.target,
        "ttt_length": c.claims.draft_tokens or 7,
    }


def _deepspec_block(c: DraftConfig, about: About) -> dict[str, Any]:
    block = _block(c)
    return {
        **_deepspec(c, about),
        **_markov(c),
        "architectures": ["Qwen3DSparkModel"],
        "block_size": block.size,
        "mask_token_id": block.mask_token,
        "num_anchors": 512,
        "target_model_name_or_path": about.target,
    }


def _deepspec(c: DraftConfig, about: About) -> dict[str, Any]:
    return {
        **_qwen3(c, about),
        **_old_rope(_body(c)),
        "num_target_layers": _layers(about, "deepspec", "needs num_target_layers"),
        "target_layer_ids": _outputs(c),
    }


def _zlab_dflash(c: DraftConfig, about: About) -> dict[str, Any]:
    block = _block(c)
    inner: dict[str, Any] = {"mask_token_id": block.mask_token, "target_layer_ids": _outputs(c)}
    told: dict[str, Any] = {}
    if block.causal != tuple(w is not None for w in _body(c).windows):
        inner["causal"] = told["is_causal"] = all(block.causal)  # engines read one or the other
    return {
        **told,
        **_qwen3(c, about),
        **_old_rope(_body(c)),
        "architectures": ["DFlashDraftModel"],
        "block_size": block.size,
        "num_target_layers": _layers(about, "zlab", "needs num_target_layers"),
        "dflash_config": inner,
    }


def _zlab_dflash2(c: DraftConfig, about: About) -> dict[str, Any]:
    written, p = _zlab_dflash(c, about), _paths(c)
    inner = {**written["dflash_config"], **_path_sizes(c), "block_size": _block(c).size}
    inner |= {"input_embedding_scale": p.embed_scale, "output_multiplier": p.logit_scale}
    if p.logit_cap is not None:
        inner["final_logit_softcapping"] = p.logit_cap
    return {**written, "architectures": ["DFlash2DraftModel"], "dflash_config": inner}


def _specforge_dspark(c: DraftConfig, about: About) -> dict[str, Any]:
    b, found = _body(c), _zlab_dflash(c, about)
    heads = {
        **_markov(c),
        "projector_type": "dspark",
        "attention_mode": "gqa" if b.kv_heads < b.heads else "mha",
        "confidence_head_alpha": 0.0 if c.markov.confidence == "none" else 1.0,
    }
    return {**found, "architectures": ["DSparkDraftModel"], "dflash_config": {**found["dflash_config"], **heads}}


def _transformers_dflash(c: DraftConfig, about: About) -> dict[str, Any]:
    block, b = _block(c), _body(c)
    sizes = [w for w in b.windows if w is not None]
    return {
        **_flat(c, about, "muse_glimmer_assistant"),
        **_new_rope(b),
        "architectures": ["MuseGlimmerAssistantModel"],
        **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id")),  # its defaults are of another vocabulary
        "head_dim": b.head_dim,
        "layer_types": _kinds(b),
        "sliding_window": sizes[0] - 1 if sizes else about.context,  # reaches one token less far than ours
        "block_size": block.size,
        "mask_token_id": block.mask_token,
        "target_layer_ids": _outputs(c),
    }


def _speculators_eagle3(c: DraftConfig, about: About) -> dict[str, Any]:
    return {
        **_speculators(c, about, "Eagle3DraftModel"),
        _TAPS: list(c.features.taps),
        "embed_requires_grad": c.algorithm == "peagle",
        "fc_norm": c.features.norm == "each",
        "norm_before_fc": c.features.norm == "whole",
        "norm_before_residual": c.rows.residual_norm,
        "norm_output": c.rows.feedback == "post",
    }


def _speculators_peagle(c: DraftConfig, about: About) -> dict[str, Any]:
    written = _speculators_eagle3(c, about)
    return {**written, "architectures": ["PEagleDraftModel"], "mask_token_id": _block(c).mask_token}


def _speculators_dflash(c: DraftConfig, about: About) -> dict[str, Any]:
    block = _block(c)
    return {
        **_speculators(c, about, "DFlashDraftModel"),
        "aux_hidden_state_layer_ids": list(c.features.taps),
        "block_size": block.size,
        "mask_token_id": block.mask_token,
        "sample_from_anchor": block.anchor_predicts,
        # false makes an engine treat full layers as causal too, although they are not
        "sliding_window_non_causal": not any(block.causal),
    }


def _speculators_dflash2(c: DraftConfig, about: About) -> dict[str, Any]:
    return {**_speculators_dflash(c, about), **_path_sizes(c), "architectures": ["DFlash2DraftModel"]}


def _speculators_dspark(c: DraftConfig, about: About) -> dict[str, Any]:
    return {**_speculators_dflash(c, about), **_markov(c), "architectures": ["DSparkDraftModel"]}


def _speculators(c: DraftConfig, about: About, architecture: str) -> dict[str, Any]:
    b, tokens = _body(c), c.claims.draft_tokens or _DRAFT_TOKENS
    if c.block is not None and (c.algorithm == "peagle" or not c.claims.draft_tokens):
        tokens = c.block.drafts
    layer = {**_flat(c, about, "llama"), **_new_rope(b), "head_dim": b.head_dim, "attention_bias": bool(b.biases)}
    if any(b.windows) or b.qk_norm:
        layer |= _windows(b)
    if b.qk_norm:  # the one kind of layer there that has these norms
        layer["model_type"] = "qwen3"
    for key in ("torch_dtype", "num_target_layers"):
        layer.pop(key, None)
    method = {"proposal_type": "greedy", "speculative_tokens": tokens, "verifier_accept_k": 1, "accept_tolerance": 0.0}
    return {
        "architectures": [architecture],
        "draft_vocab_size": c.vocab.draft,
        "dtype": about.dtype,
        "speculators_config": {
            "algorithm": c.algorithm,
            "default_proposal_method": "greedy",
            "proposal_methods": [method],
            "verifier": {"name_or_path": about.target or None, "architectures": list(about.architectures)},
        },
        "speculators_model_type": c.algorithm,
        "speculators_version": _SPECULATORS_VERSION,
        "target_hidden_size": _own_width(c).get("target_hidden_size"),
        "tie_word_embeddings": False,
        "transformer_layer_config": layer,
    }


def _medusa(c: DraftConfig, about: About) -> dict[str, Any]:
    assert c.heads is not None
    return {
        "architectures": ["MedusaModel"],
        "model_type": "medusa",
        "medusa_num_heads": c.heads.count,
        "medusa_num_layers": c.heads.blocks,
        "hidden_size": c.features.width,
        "vocab_size": c.vocab.target,
        "base_model_name_or_path": about.target,
        "version": "2",
    }


def _flat(c: DraftConfig, about: About, kind: str) -> dict[str, Any]:
    b = _body(c)
    told = {} if about.layers is None else {"num_target_layers": about.layers}
    return {
        **told,
        "model_type": kind,
        "hidden_act": _ACTIVATIONS[b.activation],
        "hidden_size": b.hidden,
        "intermediate_size": b.mlp,
        "max_position_embeddings": about.context,
        "num_attention_heads": b.heads,
        "num_hidden_layers": b.layers,
        "num_key_value_heads": b.kv_heads,
        "rms_norm_eps": b.eps,
        "tie_word_embeddings": False,
        "torch_dtype": about.dtype,
        "vocab_size": c.vocab.target,
    }


def _qwen3(c: DraftConfig, about: About) -> dict[str, Any]:
    b = _body(c)
    own = {"head_dim": b.head_dim, "attention_bias": bool(b.biases)}
    return {**_flat(c, about, "qwen3"), **own, **_windows(b)}


def _windows(b: Body) -> dict[str, Any]:
    sizes = [w for w in b.windows if w is not None]
    window = sizes[0] if sizes else None
    return {"layer_types": _kinds(b), "sliding_window": window, "use_sliding_window": bool(sizes)}


def _kinds(b: Body) -> list[str]:
    return ["full_attention" if w is None else "sliding_attention" for w in b.windows]


def _old_rope(b: Body, kind_key: str = "rope_type") -> dict[str, Any]:
    scaling = None if b.rope.kind == "default" else {kind_key: b.rope.kind, **b.rope.params}
    return {"rope_theta": b.rope.theta, "rope_scaling": scaling}


def _new_rope(b: Body) -> dict[str, Any]:
    return {"rope_parameters": {"rope_theta": b.rope.theta, "rope_type": b.rope.kind, **b.rope.params}}


def _markov(c: DraftConfig) -> dict[str, Any]:
    m = c.markov
    return {
        "markov_rank": m.rank,
        "markov_head_type": "vanilla" if m.kind == "none" else m.kind,
        "enable_confidence_head": m.confidence != "none",
        "confidence_head_with_markov": m.confidence == "markov",
    }


def _path_sizes(c: DraftConfig) -> dict[str, Any]:
    p = _paths(c)
    sizes = {"conv_kernel_size": p.taps, "conv_group_size": p.group}
    return {**sizes, "selector_rank": p.rank, "selector_top_k": p.top_k}


def _own_width(c: DraftConfig) -> dict[str, Any]:
    return {} if c.features.width == _body(c).hidden else {"target_hidden_size": c.features.width}


def _outputs(c: DraftConfig) -> list[int]:
    """Spell taps as outputs of layers: the stream after k layers is the output of layer k - 1."""
    return [k - 1 for k in c.features.taps]


def _layers(about: About, layout: str, why: str) -> int:
    if about.layers is None:
        raise RequestError(
            f"layout {layout!r} {why}, and the drafter does not say how many layers its target has; give the target "
            "with --model"
        )
    return about.layers


def _body(c: DraftConfig) -> Body:
    assert c.body is not None
    return c.body


def _block(c: DraftConfig) -> Block:
    assert c.block is not None
    return c.block


def _paths(c: DraftConfig) -> Paths:
    assert c.paths is not None
    return c.paths


_WRITERS: dict[tuple[str, str], Callable[[DraftConfig, About], dict[str, Any]]] = {
    ("safeailab", "eagle"): _safeailab_eagle,
    ("safeailab", "eagle3"): _safeailab_eagle3,
    ("specforge", "eagle3"): _specforge_eagle3,
    ("specforge", "peagle"): _specforge_peagle,
    ("specforge", "dspark"): _specforge_dspark,
    ("speculators", "eagle3"): _speculators_eagle3,
    ("speculators", "peagle"): _speculators_peagle,
    ("speculators", "dflash"): _speculators_dflash,
    ("speculators", "dflash2"): _speculators_dflash2,
    ("speculators", "dspark"): _speculators_dspark,
    ("deepspec", "eagle3"): _deepspec_eagle3,
    ("deepspec", "dflash"): _deepspec_block,
    ("deepspec", "dspark"): _deepspec_block,
    ("zlab", "dflash"): _zlab_dflash,
    ("zlab", "dflash2"): _zlab_dflash2,
    ("transformers", "dflash"): _transformers_dflash,
    ("medusa", "medusa"): _medusa,
    ("medusa-legacy", "medusa"): _medusa,
}
