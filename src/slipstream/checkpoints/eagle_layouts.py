"""EAGLE-1/2 and EAGLE-3 files of SafeAILab; EAGLE-3 and P-EAGLE files of SpecForge (and SGLang).

In: a `Reading`. Out: the canonical record. EAGLE-1/2 (Li et al. 2401.15077, 2406.16858) reads the state after the final
norm; EAGLE-3 (2503.01840) three raw taps at fixed places unless config.json names them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slipstream.checkpoints.draft_body import (
    concat_features,
    mask_token,
    read_body,
    read_taps,
    read_vocab,
    tap_norm,
    target_width,
)
from slipstream.checkpoints.draft_names import TABLES, TAP_NORMS, Names, layer_pairs, same
from slipstream.checkpoints.draft_reading import Layout, Reading, architectures
from slipstream.nets.draft_config import Block, Claims, DraftConfig, Features, Rows

Raw = Mapping[str, Any]
Own = Mapping[str, tuple[int, ...]]

EAGLE1_NAMES = Names((*TABLES, *same("fc.weight", "fc.bias"), *layer_pairs()))
_MIDLAYER = layer_pairs("layers.0", "midlayer")
EAGLE3_NAMES = Names(  # SGLang's spelling layers.0 is read too; midlayer, which comes first, is written
    (*TABLES, *same("fc.weight", "fc.bias", "norm.weight"), *TAP_NORMS, *_MIDLAYER, *layer_pairs())
)
PEAGLE_NAMES = Names((*TABLES, *same("fc.weight", "fc.bias", "norm.weight", "mask_hidden"), *TAP_NORMS, *layer_pairs()))
_IGNORED = ("*rotary_emb.inv_freq",)
_NESTED = "eagle_config.eagle_aux_hidden_state_layer_ids"
TAPS_KEY = "eagle_aux_hidden_state_layer_ids"


def default_taps(layers: int) -> tuple[int, int, int]:
    """Return the taps of an EAGLE-3 file that names none: near the start, the middle, near the end."""
    return (2, layers // 2, layers - 3)


def _eagle1(r: Reading) -> DraftConfig:
    body = read_body(r, r.raw, head_dim=False, bias_keys={"qkv": "qkv_bias"})
    if body.rope.kind != "default" and set(r.raw.get("rope_scaling") or {}) != {"type", "factor"}:
        r.notes.append(
            "rope_scaling has more than type and factor: SafeAILab's own code refuses that, engines apply it"
        )
    bias, stated = "fc.bias" in r.shapes, r.raw.get("bias")
    if stated is None and not bias:
        r.notes.append(
            "bias is missing from config.json, which means true, but tensor fc.bias is not there: read as false"
        )
    elif stated is not None and r.flag("bias", True) != bias:
        raise r.wrong(f"bias is {str(stated).lower()} but tensor fc.bias is {'there' if bias else 'missing'}")
    wide = r.shapes["fc.weight"][-1]
    if wide != 2 * body.hidden:
        # the shared check words the refusal: an EAGLE-1 fc reads the embedding and one feature
        concat_features(r, (0, 0), body.hidden)
    return DraftConfig(
        "eagle",
        r.layout.name,
        Features(taps=tuple(r.given.get("taps", (-1,))), width=body.hidden, bias=bias),
        read_vocab(r, r.raw),
        body=body,
        rows=Rows(feedback="pre", logit_norm=False),
        claims=Claims(layers=r.integer("num_target_layers")),
    )


def _eagle3(r: Reading) -> DraftConfig:
    specforge = r.layout.name == "specforge"
    body = read_body(r, r.raw, head_dim=specforge)
    width = target_width(r, body.hidden)
    logit_norm = r.flag("norm_output", True) if specforge else True
    if specforge and r.raw.get("norm_output"):
        r.notes.append(
            "norm_output: SpecForge means the norm before the head; engines read it as feeding normed states back"
        )
    return DraftConfig(
        "eagle3",
        r.layout.name,
        eagle3_features(r, width),
        read_vocab(r, r.raw),
        body=body,
        rows=Rows(feedback="pre", logit_norm=logit_norm),
        claims=Claims(layers=r.integer("num_target_layers")),
    )


def _peagle(r: Reading) -> DraftConfig:
    body = read_body(r, r.raw, scaled_rope=False)
    nested = r.table("dflash_config")
    places = [(key, r.raw) for key in ("mask_token_id", "pard_token", "ptd_token_id")]
    mask = mask_token(r, *places, ("dflash_config.mask_token_id", nested))
    drafts = r.integer("num_depths")
    return DraftConfig(
        "peagle",
        r.layout.name,
        eagle3_features(r, target_width(r, body.hidden)),
        read_vocab(r, r.raw),
        body=body,
        block=Block(drafts or 1, mask, anchor_predicts=True, causal=(True,) * body.layers),
        claims=Claims(layers=r.integer("num_target_layers"), draft_tokens=drafts),
    )


def eagle3_features(r: Reading, width: int) -> Features:
    """Return the features of an EAGLE-3 file in SafeAILab's or SpecForge's spelling."""
    if r.table("eagle_config").get("use_aux_hidden_state") is False:
        return Features(taps=tuple(r.given.get("taps", (-1,))), width=width, fused=False)
    return concat_features(r, _taps(r), width, tap_norm(r))


def _taps(r: Reading) -> tuple[int, ...]:
    nested = r.table("eagle_config").get(TAPS_KEY)
    if r.raw.get(TAPS_KEY) is not None:
        return read_taps(r, TAPS_KEY, r.raw[TAPS_KEY], 0)
    if nested is None:
        if "taps" in r.given:
            return tuple(r.given["taps"])
        found = default_taps(r.need_target_layers(_NESTED))
        if r.layout.name != "safeailab":  # there the places are fixed and no key says them
            r.notes.append(f"{_NESTED} is missing: taps {list(found)} are a guess")
        return found
    return read_taps(r, _NESTED, nested, _nested_shift(r, r.ids(_NESTED, nested)))


def _nested_shift(r: Reading, ids: list[int]) -> int:
    """Decide what the nested numbers mean: both spellings exist under this key, so the well-known sets decide."""
    layers = r.target_layers()
    usual = None if layers is None else default_taps(layers)
    if usual is not None and tuple(ids) == usual:
        r.notes.append(f"{_NESTED} {ids}: the default set of those who count layers before their input; read so")
        return 0
    if usual is None or tuple(i + 1 for i in ids) != usual:
        r.notes.append(
            f"{_NESTED} {ids} is not the default set: read as outputs of these layers, taps "
            f"{[i + 1 for i in ids]}; `slipstream doctor` compares with {ids}"
        )
    return 1


def _is_specforge3(raw: Raw, shapes: Own) -> bool:
    return "LlamaForCausalLMEagle3" in architectures(raw)


def _is_safeailab3(raw: Raw, shapes: Own) -> bool:
    reduced = raw.get("draft_vocab_size") is not None and "LlamaForCausalLM" in architectures(raw)
    return reduced or "d2t" in shapes or any(name.startswith("midlayer.") for name in shapes)


def _is_peagle(raw: Raw, shapes: Own) -> bool:
    return "PEagleDraftModel" in architectures(raw) or "mask_hidden" in shapes


def _is_eagle1(raw: Raw, shapes: Own) -> bool:
    if any(name in shapes for name in ("layers.0.input_layernorm.weight", "layers.0.hidden_norm.weight")):
        return False
    return "fc.weight" in shapes and "layers.0.self_attn.q_proj.weight" in shapes


_FIRST = "midlayer.self_attn.q_proj.weight|layers.0.hidden_norm.weight"
PEAGLE = Layout(
    "specforge",
    "peagle",
    PEAGLE_NAMES,
    _is_peagle,
    _peagle,
    ("fc.weight", "mask_hidden", "embed_tokens.weight"),
    _IGNORED,
)
SPECFORGE3 = Layout("specforge", "eagle3", EAGLE3_NAMES, _is_specforge3, _eagle3, (_FIRST,), _IGNORED)
SAFEAILAB3 = Layout("safeailab", "eagle3", EAGLE3_NAMES, _is_safeailab3, _eagle3, (_FIRST,), _IGNORED)
SAFEAILAB1 = Layout(
    "safeailab", "eagle", EAGLE1_NAMES, _is_eagle1, _eagle1, ("fc.weight", "layers.0.self_attn.q_proj.weight"), _IGNORED
)
