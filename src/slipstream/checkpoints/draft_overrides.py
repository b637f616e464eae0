"""Another reading of the same file: changes to a canonical record, by name.

In: a record and what the caller gives. Out: the changed record. A name that is unknown, or that the algorithm does not
have, is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from slipstream.nets.draft_config import DraftConfig
from slipstream.types import RequestError


def _tap_shift(config: DraftConfig, by: int) -> DraftConfig:
    taps = tuple(tap + by for tap in config.features.taps)
    if -1 in config.features.taps or taps[0] < 0:
        raise RequestError(f"tap_shift {by} leads outside the target from taps {list(config.features.taps)}")
    return replace(config, features=replace(config.features, taps=taps))


def _taps(config: DraftConfig, taps: Any) -> DraftConfig:
    if len(tuple(taps)) != len(config.features.taps):
        raise RequestError(f"taps {list(taps)} are {len(tuple(taps))}; the drafter reads {len(config.features.taps)}")
    return replace(config, features=replace(config.features, taps=tuple(taps)))


def _rope_theta(config: DraftConfig, theta: float) -> DraftConfig:
    if config.body is None:
        raise RequestError(f"rope_theta {theta} does not apply: {config.algorithm} has no rotary positions")
    return replace(config, body=replace(config.body, rope=replace(config.body.rope, theta=float(theta))))


def _causal(config: DraftConfig, causal: Any) -> DraftConfig:
    block = _block(config, "causal")
    each = (causal,) * len(block.causal) if isinstance(causal, bool) else tuple(causal)
    if len(each) != len(block.causal):
        raise RequestError(f"causal {causal!r} must have an entry for each of the {len(block.causal)} layers")
    return replace(config, block=replace(block, causal=each))


def _block(config: DraftConfig, key: str) -> Any:
    if config.block is None:
        raise RequestError(f"{key} does not apply: {config.algorithm} drafts no blocks")
    return config.block


def _in_block(key: str, field: str) -> Callable[[DraftConfig, Any], DraftConfig]:
    return lambda config, value: replace(config, block=replace(_block(config, key), **{field: value}))


def _in_rows(key: str) -> Callable[[DraftConfig, Any], DraftConfig]:
    def change(config: DraftConfig, value: Any) -> DraftConfig:
        if config.algorithm not in ("eagle", "eagle3", "peagle"):
            raise RequestError(f"{key} does not apply: {config.algorithm} has no such rows")
        return replace(config, rows=replace(config.rows, **{key: value}))

    return change


OVERRIDES: Mapping[str, Callable[[DraftConfig, Any], DraftConfig]] = {
    "taps": _taps,
    "tap_shift": _tap_shift,
    "rope_theta": _rope_theta,
    "block_size": _in_block("block_size", "size"),
    "mask_token": _in_block("mask_token", "mask_token"),
    "anchor_predicts": _in_block("anchor_predicts", "anchor_predicts"),
    "causal": _causal,
    "feedback": _in_rows("feedback"),
    "logit_norm": _in_rows("logit_norm"),
    "residual_norm": _in_rows("residual_norm"),
    "offset": _in_rows("offset"),
}
WHILE_READING = ("final_layer", "vocab_map")  # these decide how a file is read, not what the record says


def apply_overrides(config: DraftConfig, given: Mapping[str, Any]) -> DraftConfig:
    """Return the record with these changes."""
    for key, value in given.items():
        if key in WHILE_READING:
            continue
        if key not in OVERRIDES:
            raise RequestError(f"override {key!r} is not one of {', '.join((*OVERRIDES, *WHILE_READING))}")
        config = OVERRIDES[key](config, value)
    return config
