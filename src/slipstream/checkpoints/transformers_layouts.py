"""DFlash files of transformers: model_type muse_glimmer_assistant.

In: a `Reading` with flat keys. Out: the canonical record. Sliding layers see the whole block, unlike elsewhere, and a
window of w reaches w tokens back where ours reaches w - 1; layer numbers are outputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from slipstream.checkpoints.draft_body import concat_features, mask_token, read_body, read_taps, read_vocab
from slipstream.checkpoints.draft_names import Names, layer_pairs, same
from slipstream.checkpoints.draft_reading import Layout, Reading
from slipstream.nets.draft_config import Block, Claims, DraftConfig

MODEL_TYPE = "muse_glimmer_assistant"
NAMES = Names(
    (
        ("fc.weight", "encoder.fc.weight"),
        ("hidden_norm.weight", "encoder.output_norm_enc.weight"),
        *same("norm.weight"),
        *layer_pairs(),
    )
)
# what transformers' class takes for a key that config.json leaves out
DEFAULTS: Mapping[str, Any] = {
    **{"hidden_size": 6656, "intermediate_size": 19968, "num_attention_heads": 32, "num_key_value_heads": 8},
    **{"head_dim": 128, "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "sliding_window": 2048, "block_size": 16},
    **{"mask_token_id": 201818, "target_layer_ids": [1, 13, 25, 37, 49]},
}


def _record(r: Reading) -> DraftConfig:
    own = r.raw.get("model_type") == MODEL_TYPE
    raw = {**(DEFAULTS if own else {}), **{k: v for k, v in r.raw.items() if v is not None}}
    layers = len([n for n in r.shapes if n.endswith("self_attn.q_proj.weight")])
    if own:
        raw.setdefault("layer_types", ["sliding_attention"] * layers)
    body = read_body(r, raw)
    body = replace(body, windows=tuple(None if w is None else w + 1 for w in body.windows))
    return DraftConfig(
        "dflash",
        r.layout.name,
        concat_features(r, read_taps(r, "target_layer_ids", raw.get("target_layer_ids"), 1), body.hidden),
        read_vocab(r, raw),
        body=body,
        block=Block(r.need("block_size", raw), mask_token(r, ("mask_token_id", raw)), False, (False,) * body.layers),
        claims=Claims(layers=r.integer("num_target_layers")),
    )


def _matches(raw: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> bool:
    flat = all(raw.get(key) is not None for key in ("target_layer_ids", "block_size", "mask_token_id"))
    return raw.get("model_type") == MODEL_TYPE or (flat and "encoder.fc.weight" in shapes)


DFLASH = Layout(
    *("transformers", "dflash", NAMES, _matches, _record),
    *(("encoder.fc.weight", "encoder.output_norm_enc.weight"), ("*rotary_emb.inv_freq",)),
)
