"""EAGLE-3, P-EAGLE, DFlash, DFlash 2 and DSpark files of vLLM's speculators.

In: a `Reading` whose config.json nests the layers in `transformer_layer_config`. Out: the canonical record. Its layer
numbers count states before a layer, which is how taps are counted here too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from slipstream.checkpoints.dflash2_paths import read_paths
from slipstream.checkpoints.draft_body import (
    concat_features,
    mask_token,
    read_body,
    read_taps,
    read_vocab,
    tap_norm,
    target_width,
)
from slipstream.checkpoints.draft_names import DFLASH2, DSPARK, TABLES, TAP_NORMS, Names, layer_pairs, same
from slipstream.checkpoints.draft_reading import Layout, Reading, architectures
from slipstream.checkpoints.dspark_heads import read_markov
from slipstream.checkpoints.eagle_layouts import TAPS_KEY, default_taps
from slipstream.nets.draft_config import Block, Body, Claims, DraftConfig, Features, Rows, Vocab

EAGLE3_NAMES = Names((*TABLES, *same("fc.weight", "norm.weight", "mask_hidden"), *TAP_NORMS, *layer_pairs()))
DFLASH_NAMES = Names((*TABLES, *same("fc.weight", "norm.weight", "hidden_norm.weight"), *layer_pairs()))
DSPARK_NAMES = Names((*DFLASH_NAMES.pairs, *DSPARK))
DFLASH2_NAMES = Names((*DFLASH_NAMES.pairs, *DFLASH2))
_IGNORED = ("*rotary_emb.inv_freq", "verifier_*")
_BIAS_KEYS = {"qkv": "attention_bias", "out": "attention_bias"}
_PATH_DEFAULTS = {"conv_kernel_size": 2, "conv_group_size": 16, "selector_rank": 256, "selector_top_k": 16}
_NESTED, _BLOCK_TAPS = "transformer_layer_config", "aux_hidden_state_layer_ids"


def _body(r: Reading) -> Body:
    return read_body(r, _layers(r), bias_keys=_BIAS_KEYS)


def _layers(r: Reading) -> Mapping[str, Any]:
    """Return the keys that describe the layers; what vLLM converts itself has them at the top."""
    if _flat(r.raw):
        return r.raw
    if not r.table(_NESTED):
        raise r.wrong(f"{_NESTED} is missing; it describes the layers in this layout")
    return r.table(_NESTED)


def _flat(raw: Mapping[str, Any]) -> bool:
    return bool(architectures(raw) & {"Eagle3LlamaForCausalLM", "Eagle3Qwen3ForCausalLM"}) and _NESTED not in raw


def _vocab(r: Reading) -> Vocab:
    return read_vocab(r, _layers(r))


def _claims(r: Reading) -> Claims:
    about = r.table("speculators_config")
    methods = about.get("proposal_methods") or [{}]
    target = (about.get("verifier") or {}).get("name_or_path") or ""
    return Claims(str(target), r.integer("num_target_layers"), methods[0].get("speculative_tokens"))


def _features(r: Reading, key: str, width: int) -> Features:
    if r.raw.get(key) is not None or "taps" in r.given:
        taps = read_taps(r, key, r.raw.get(key), 0)
    else:
        taps = default_taps(r.need_target_layers(key))
        r.notes.append(f"{key} is missing: taps {list(taps)} are a guess")
    return concat_features(r, taps, width, tap_norm(r))


def _eagle3(r: Reading) -> DraftConfig:
    body = _body(r)
    normed = _flat(r.raw)  # vLLM takes true for an absent key, speculators' own class false
    if r.raw.get("norm_before_residual") is None:
        kind = (
            "true, as vLLM does; speculators reads false" if normed else "false, as its own class does; vLLM reads true"
        )
        r.notes.append(f"norm_before_residual is missing: read as {kind}")
    rows = Rows(
        feedback="post" if r.flag("norm_output", False) else "pre",
        residual_norm=r.flag("norm_before_residual", normed),
    )
    claims, block = _claims(r), None
    if r.layout.algorithm == "peagle":
        mask = mask_token(r, ("mask_token_id", r.raw))
        block = Block(claims.draft_tokens or 1, mask, anchor_predicts=True, causal=(True,) * body.layers)
    features = _features(r, TAPS_KEY, target_width(r, body.hidden))
    return DraftConfig(
        r.layout.algorithm, r.layout.name, features, _vocab(r), body=body, rows=rows, block=block, claims=claims
    )


def _blocks(r: Reading) -> DraftConfig:
    dspark = r.layout.algorithm == "dspark"
    body = _body(r)
    free = r.flag("sliding_window_non_causal", r.layout.algorithm == "dflash2")
    size = r.integer("block_size") or 8
    anchor = r.flag("sample_from_anchor", dspark)
    # full-attention layers see the whole block whatever the flag says: so they were trained
    causal = tuple(window is not None and not free for window in body.windows)
    config = DraftConfig(
        r.layout.algorithm,
        r.layout.name,
        _features(r, _BLOCK_TAPS, target_width(r, body.hidden)),
        _vocab(r),
        body=body,
        block=Block(size, mask_token(r, ("mask_token_id", r.raw)), anchor, causal),
        claims=_claims(r),
    )
    if r.layout.algorithm == "dflash2":
        return read_paths(r, (r.raw,), config, _PATH_DEFAULTS)
    if not dspark:
        return config
    defaults = {"markov_rank": 256, "markov_head_type": "vanilla", "confidence": True, "with_markov": True}
    return read_markov(r, r.raw, config, defaults)


def _kind(name: str) -> Callable[[Mapping[str, Any], Mapping[str, tuple[int, ...]]], bool]:
    def matches(raw: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> bool:
        nested = raw.get("speculators_config")
        algorithm = nested.get("algorithm") if isinstance(nested, dict) else None
        return bool((raw.get("speculators_model_type") or algorithm) == name)

    return matches


_TOP = ("fc.weight", "hidden_norm.weight", "layers.0.self_attn.q_proj.weight")
EAGLE3 = Layout(
    *("speculators", "eagle3", EAGLE3_NAMES, lambda raw, shapes: _flat(raw) or _kind("eagle3")(raw, shapes), _eagle3),
    *(("fc.weight", "layers.0.hidden_norm.weight"), _IGNORED),
)
PEAGLE = Layout(
    *("speculators", "peagle", EAGLE3_NAMES, _kind("peagle"), _eagle3),
    *(("fc.weight", "layers.0.hidden_norm.weight", "mask_hidden"), _IGNORED),
)
DFLASH = Layout("speculators", "dflash", DFLASH_NAMES, _kind("dflash"), _blocks, _TOP, _IGNORED)
DSPARK_LAYOUT = Layout("speculators", "dspark", DSPARK_NAMES, _kind("dspark"), _blocks, _TOP, _IGNORED)
DFLASH2_LAYOUT = Layout(
    *("speculators", "dflash2", DFLASH2_NAMES, _kind("dflash2"), _blocks),
    *((*_TOP, "candidate_selector.hidden_projection.weight"), _IGNORED),
)
