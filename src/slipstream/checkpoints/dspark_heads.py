"""Read DSpark's Markov and confidence heads, whose keys are spelled alike in every layout.

In: a DFlash record and the object that holds the keys. Out: the record with `markov`. Head tensors must be there when,
and only when, the keys say so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal, get_args

from slipstream.checkpoints.draft_reading import Reading
from slipstream.nets.draft_config import DraftConfig, Markov

_Kind = Literal["vanilla", "gated", "rnn"]


def read_markov(r: Reading, cfg: Mapping[str, Any], config: DraftConfig, defaults: Mapping[str, Any]) -> DraftConfig:
    """Add the heads; `defaults` has markov_rank, markov_head_type, confidence and with_markov for absent keys."""
    found = r.integer("markov_rank", cfg, least=0)
    rank = defaults["markov_rank"] if found is None else found
    kind = cfg.get("markov_head_type") or defaults["markov_head_type"]
    if rank and kind not in get_args(_Kind):
        raise r.wrong(f"markov_head_type is {kind!r}; one of {', '.join(get_args(_Kind))} is needed")
    confidence: Literal["none", "hidden", "markov"] = "none"
    if r.flag("enable_confidence_head", defaults["confidence"], cfg):
        with_markov = r.flag("confidence_head_with_markov", defaults["with_markov"], cfg)
        confidence = "markov" if with_markov and rank else "hidden"
    markov = Markov(kind if rank else "none", rank, confidence)
    _agree(r, markov)
    return replace(config, markov=markov)


def _agree(r: Reading, markov: Markov) -> None:
    w1 = r.shapes.get("markov.w1.weight")
    if w1 is not None and markov.rank not in (0, w1[-1]):
        raise r.damaged(f"tensor {r.own('markov.w1.weight')} is {list(w1)}; markov_rank is {markov.rank}")
    asked = {
        "markov.w1.weight": (markov.kind != "none", f"markov_rank is {markov.rank}"),
        "markov.gate.weight": (markov.kind == "gated", f"markov_head_type is {markov.kind!r}"),
        "markov.joint.weight": (markov.kind == "rnn", f"markov_head_type is {markov.kind!r}"),
        "confidence.weight": (markov.confidence != "none", f"enable_confidence_head is {markov.confidence != 'none'}"),
    }
    for name, (needed, why) in asked.items():
        if needed != (name in r.shapes):
            raise r.wrong(f"{why} but tensor {r.own(name)} is {'missing' if needed else 'there'}")
