"""Read DFlash 2's convolutions and path selector, whose keys are spelled alike in every layout.

In: a DFlash record and the objects that may hold the keys. Out: the record with `paths`. Shapes of the tensors are
checked against it elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from slipstream.checkpoints.draft_reading import Reading
from slipstream.nets.draft_config import DraftConfig, Paths

_SIZES = {"taps": "conv_kernel_size", "group": "conv_group_size", "rank": "selector_rank", "top_k": "selector_top_k"}
_SCALES = {
    **{"embed_scale": "input_embedding_scale", "logit_scale": "output_multiplier"},
    "logit_cap": "final_logit_softcapping",
}


def read_paths(
    r: Reading, places: Sequence[Mapping[str, Any]], config: DraftConfig, defaults: Mapping[str, int]
) -> DraftConfig:
    """Add the paths; a key is taken from the first of `places` that has it, `defaults` are by key."""
    sizes = {name: _size(r, places, key, defaults.get(key)) for name, key in _SIZES.items()}
    told = read_scales(r, places)
    scales: dict[str, Any] = {name: told[key] for name, key in _SCALES.items() if key in told}
    paths = Paths(**sizes, **scales)
    _agree(r, paths, config)
    return replace(config, paths=paths)


def read_scales(r: Reading, places: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return what the file says of scales and the cap of the target's tables, by key; a cap of 0 is none."""
    told = {key: next((cfg[key] for cfg in places if cfg.get(key) is not None), None) for key in _SCALES.values()}
    if told[_SCALES["logit_cap"]] == 0:
        told[_SCALES["logit_cap"]] = None
    return {key: _number(r, value, key) for key, value in told.items() if value is not None}


def _size(r: Reading, places: Sequence[Mapping[str, Any]], key: str, default: int | None) -> int:
    holder = next((cfg for cfg in places if cfg.get(key) is not None), None)
    if holder is None and default is not None:
        return default
    if holder is None:
        raise r.wrong(f"{key} is missing; a DFlash 2 drafter needs it")
    return r.need(key, holder)


def _number(r: Reading, value: Any, key: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        raise r.wrong(f"{key} is {value!r}; a positive number is needed")
    return float(value)


def _agree(r: Reading, paths: Paths, config: DraftConfig) -> None:
    assert config.body is not None
    assert config.block is not None
    if config.body.hidden % paths.group:
        raise r.wrong(f"conv_group_size is {paths.group}; it must divide hidden_size {config.body.hidden}")
    if paths.taps > config.block.size:
        raise r.wrong(f"conv_kernel_size is {paths.taps}; a block has {config.block.size} slots")
    if paths.top_k > config.vocab.draft:
        raise r.wrong(f"selector_top_k is {paths.top_k}; the vocabulary has {config.vocab.draft} ids")
