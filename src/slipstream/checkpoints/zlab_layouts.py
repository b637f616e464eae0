"""DFlash and DFlash 2 files of z-lab (SpecForge writes the former too) and DSpark files of SpecForge.

In: a `Reading` with a `dflash_config`. Out: the canonical record. No tables of their own: embedding and head are the
target's. Layer numbers are outputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slipstream.checkpoints.dflash2_paths import read_paths, read_scales
from slipstream.checkpoints.draft_body import (
    concat_features,
    layer_windows,
    mask_token,
    read_body,
    read_taps,
    read_vocab,
)
from slipstream.checkpoints.draft_names import DFLASH2, DSPARK, Names, layer_pairs, same
from slipstream.checkpoints.draft_reading import Layout, Reading, architectures
from slipstream.checkpoints.dspark_heads import read_markov
from slipstream.nets.draft_config import Block, Body, Claims, DraftConfig

Raw = Mapping[str, Any]
Own = Mapping[str, tuple[int, ...]]

DFLASH_NAMES = Names((*same("fc.weight", "norm.weight", "hidden_norm.weight"), *layer_pairs()))
DSPARK_NAMES = Names((*DFLASH_NAMES.pairs, *DSPARK))
DFLASH2_NAMES = Names((*DFLASH_NAMES.pairs, *DFLASH2))
_BIAS_KEYS = {"qkv": "attention_bias", "out": "attention_bias"}
_IGNORED = ("*rotary_emb.inv_freq",)
_NESTED = "dflash_config"
_TAPS = f"{_NESTED}.target_layer_ids"


def spread_taps(layers: int, count: int) -> list[int]:
    """Return z-lab's default layer numbers (outputs): `count` from 1 to `layers` - 3, evenly, halves to even."""
    if count == 1:
        return [layers // 2]
    return [round(1 + i * (layers - 4) / (count - 1)) for i in range(count)]


def _taps(r: Reading, nested: Raw, body: Body) -> tuple[int, ...]:
    ids = nested.get("target_layer_ids")
    if ids is None and "taps" not in r.given:
        ids = spread_taps(r.need_target_layers(_TAPS), body.layers)
        r.notes.append(f"{_TAPS} is missing: {ids} by z-lab's rule")
    return read_taps(r, _TAPS, ids, 1)


def _windows(r: Reading, nested: Raw, layers: int) -> tuple[tuple[int | None, ...], tuple[bool, ...]]:
    """Return windows and whether each layer is causal inside the block: sliding ones are, where nothing is said."""
    flat = bool(nested.get("use_swa")) and r.raw.get("layer_types") is None
    windows = (r.need("swa_window_size", nested),) * layers if flat else layer_windows(r, r.raw, layers)
    for key, cfg in (("is_causal", r.raw), ("causal", nested), ("is_causal", nested)):
        if cfg.get(key) is not None:
            return windows, (r.flag(key, False, cfg),) * layers
    return windows, tuple(w is not None and not flat for w in windows)


def _blocks(r: Reading) -> DraftConfig:
    nested = r.table(_NESTED)
    for key in ("attention_sink_bias", "is_neox_style"):
        if nested.get(key) is not None and nested[key] is not (key == "is_neox_style"):
            raise r.wrong(f"{_NESTED}.{key} is {nested[key]!r}; no drafter here has it")
    count = len([n for n in r.shapes if n.endswith("self_attn.q_proj.weight")])
    windows, causal = _windows(r, nested, count)
    body = read_body(r, r.raw, bias_keys=_BIAS_KEYS, windows=windows)
    dspark = r.layout.algorithm == "dspark"
    size = r.integer("block_size") or r.integer("block_size", nested)
    if size is None:
        raise r.wrong("block_size is missing; the number of slots, the anchor's included, is needed")
    mask = mask_token(r, (f"{_NESTED}.mask_token_id", nested), ("mask_token_id", r.raw))
    config = DraftConfig(
        r.layout.algorithm,
        r.layout.name,
        concat_features(r, _taps(r, nested, body), body.hidden),
        read_vocab(r, r.raw),
        body=body,
        block=Block(size, mask, r.flag("sample_from_anchor", dspark, nested), causal),
        claims=Claims(layers=r.integer("num_target_layers")),
    )
    if r.layout.algorithm == "dflash2":
        return read_paths(r, (nested, r.raw), config, {})
    scales = [f"{key} is {value:g}" for key, value in read_scales(r, (nested,)).items() if value != 1.0]
    if scales:
        raise r.wrong(f"{_NESTED}.{scales[0]}; only DFlash 2 drafters here scale or cap the target's tables")
    if not dspark:
        return config
    defaults = {"markov_rank": 0, "markov_head_type": "vanilla", "with_markov": False}
    return read_markov(r, nested, config, defaults | {"confidence": (nested.get("confidence_head_alpha") or 0) > 0})


def _projector(raw: Raw) -> object:
    nested = raw.get(_NESTED)
    return nested.get("projector_type") if isinstance(nested, dict) else None


def _is_dspark(raw: Raw, shapes: Own) -> bool:
    return "DSparkDraftModel" in architectures(raw) or _projector(raw) == "dspark"


def _is_dflash2(raw: Raw, shapes: Own) -> bool:
    return "DFlash2DraftModel" in architectures(raw)


def _is_dflash(raw: Raw, shapes: Own) -> bool:
    plain = isinstance(raw.get(_NESTED), dict) and _projector(raw) is None and "mask_hidden" not in shapes
    return "DFlashDraftModel" in architectures(raw) or plain


_MARKS = ("fc.weight", "hidden_norm.weight", "layers.0.self_attn.q_proj.weight")
DSPARK_LAYOUT = Layout("specforge", "dspark", DSPARK_NAMES, _is_dspark, _blocks, _MARKS, _IGNORED)
_PATH_MARKS = (*_MARKS, "candidate_selector.hidden_projection.weight")
DFLASH2_LAYOUT = Layout("zlab", "dflash2", DFLASH2_NAMES, _is_dflash2, _blocks, _PATH_MARKS, _IGNORED)
DFLASH = Layout("zlab", "dflash", DFLASH_NAMES, _is_dflash, _blocks, _MARKS, _IGNORED)
