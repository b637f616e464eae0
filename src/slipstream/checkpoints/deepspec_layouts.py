"""DSpark, DFlash (a DSpark without heads) and EAGLE-3 files of DeepSpec.

In: a `Reading` whose config.json is a copy of the target's with flat keys. Out: the canonical record. Layer numbers are
outputs, -1 the embedding; the anchor's slot predicts too, so its DFlash is not z-lab's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slipstream.checkpoints.draft_body import concat_features, mask_token, read_body, read_taps, read_vocab
from slipstream.checkpoints.draft_names import DSPARK, TABLES, Names, layer_pairs, same
from slipstream.checkpoints.draft_reading import Layout, Reading, architectures
from slipstream.checkpoints.dspark_heads import read_markov
from slipstream.nets.draft_config import Block, Claims, DraftConfig, Rows

Raw = Mapping[str, Any]
Own = Mapping[str, tuple[int, ...]]

EAGLE3_NAMES = Names((*TABLES, *same("fc.weight", "norm.weight"), *layer_pairs()))
BLOCK_NAMES = Names((*EAGLE3_NAMES.pairs, *same("hidden_norm.weight"), *DSPARK))
_BIAS_KEYS = {"qkv": "attention_bias", "out": "attention_bias"}
_IGNORED = ("*rotary_emb.inv_freq",)
_TAPS = "target_layer_ids"
_NO_HEADS: Raw = {"markov_rank": 0, "markov_head_type": None, "confidence": False, "with_markov": False}


def _claims(r: Reading) -> Claims:
    name = str(r.raw.get("target_model_name_or_path") or "")
    return Claims(name, r.integer("num_target_layers"), r.integer("ttt_length"))


def _blocks(r: Reading) -> DraftConfig:
    body = read_body(r, r.raw, bias_keys=_BIAS_KEYS)
    if r.raw.get("sample_from_anchor") is False or r.raw.get("dspark_bonus_anchor"):
        key = "dspark_bonus_anchor" if r.raw.get("dspark_bonus_anchor") else "sample_from_anchor"
        if "anchor_predicts" not in r.given:
            raise r.wrong(
                f"{key} is {r.raw[key]!r}: a variant whose anchor slot drafts nothing, with the class name of another; "
                "anchor_predicts=False reads it so"
            )
    config = DraftConfig(
        r.layout.algorithm,
        r.layout.name,
        concat_features(r, read_taps(r, _TAPS, r.raw.get(_TAPS), 1, lowest=-1), body.hidden),
        read_vocab(r, r.raw),
        body=body,
        block=Block(r.need("block_size"), mask_token(r, ("mask_token_id", r.raw)), True, (False,) * body.layers),
        claims=_claims(r),
    )
    return read_markov(r, r.raw, config, _NO_HEADS)


def _eagle3(r: Reading) -> DraftConfig:
    body = read_body(r, r.raw, bias_keys=_BIAS_KEYS)
    taps = read_taps(r, _TAPS, r.raw.get(_TAPS), 1)
    return DraftConfig(
        "eagle3",
        r.layout.name,
        concat_features(r, taps, body.hidden),
        read_vocab(r, r.raw),
        body=body,
        rows=Rows(),
        claims=_claims(r),
    )


def _has_heads(raw: Raw) -> bool:
    return bool(raw.get("markov_rank") or raw.get("enable_confidence_head"))


def _is_block(raw: Raw, shapes: Own) -> bool:
    return "Qwen3DSparkModel" in architectures(raw)


def _is_dspark(raw: Raw, shapes: Own) -> bool:
    return _is_block(raw, shapes) and _has_heads(raw)


def _is_eagle3(raw: Raw, shapes: Own) -> bool:
    return "Qwen3Eagle3Model" in architectures(raw)


_MARKS = ("fc.weight", "hidden_norm.weight", "layers.0.self_attn.q_proj.weight")
DSPARK_LAYOUT = Layout("deepspec", "dspark", BLOCK_NAMES, _is_dspark, _blocks, _MARKS, _IGNORED)
DFLASH = Layout("deepspec", "dflash", BLOCK_NAMES, _is_block, _blocks, _MARKS, _IGNORED)
EAGLE3 = Layout(
    "deepspec", "eagle3", EAGLE3_NAMES, _is_eagle3, _eagle3, ("fc.weight", "layers.0.hidden_norm.weight"), _IGNORED
)
