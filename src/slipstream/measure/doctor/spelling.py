"""What to change in a drafter's file so that it reads as another reading does, in the file's own layout.

In: the file's record and another one, its config.json, the layout. Out: lines such as `block_size: 8 -> 7`; where the
layout has no key that could say it, a line that says so and names a layout that has one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from slipstream.checkpoints.config_out import About, config_out
from slipstream.checkpoints.layout_limits import LIMITS, check_layout, facts_of, layouts_of
from slipstream.measure.doctor.readings import Facts, Reading
from slipstream.nets.draft_config import DraftConfig
from slipstream.types import RequestError

_DERIVED = "speculators_config."  # says again what other keys say
_TABLES = ("own_embed", "own_head")
ABSENT = "(absent)"


def change_lines(own: DraftConfig, reading: Reading, raw: Mapping[str, Any], facts: Facts) -> list[str]:
    """Return the lines that turn the file's own reading into this one; none for the own reading itself."""
    if reading.own:
        return []
    other, layout, about = reading.checkpoint.config, own.layout, About(layers=facts.layers)
    if reading.kind in ("vocabulary map", "heads"):
        return list(reading.advice)
    try:
        _check_said(own, other, layout)
        before, after = (_flat(config_out(c, layout, about)) for c in (own, other))
    except RequestError as e:
        return [*reading.advice, f"{e}; {_elsewhere(other, about)}"]
    keys = [k for k in dict.fromkeys([*before, *after]) if before.get(k) != after.get(k) and not k.startswith(_DERIVED)]
    lines = [_line(key, before, after, _flat(raw)) for key in keys]
    return [*reading.advice, *(lines or [f"remove what says otherwise: layout {layout!r} means this by default"])]


def _check_said(own: DraftConfig, other: DraftConfig, layout: str) -> None:
    """Raise if a layout has no key for what `other` changes; what it lacks for both is not the question here."""
    lacking = [fact for fact in _lacks(other, layout) if fact not in _lacks(own, layout)]
    if lacking:
        raise RequestError(f"layout {layout!r} has no key for this ({', '.join(lacking)})")


def _lacks(config: DraftConfig, layout: str) -> list[str]:
    """Return the facts of a record that a layout cannot hold; the tables are a matter of tensors, not of keys."""
    check_layout(layout, config.algorithm)
    allowed, facts = LIMITS[layout, config.algorithm], facts_of(config)
    lacking = [fact for fact in facts if fact in allowed and facts[fact] not in allowed[fact]]
    if -1 in config.features.taps and len(config.features.taps) > 1:
        lacking.append("taps after the final norm")  # they have no number anywhere
    return [fact for fact in lacking if fact not in _TABLES]


def _elsewhere(other: DraftConfig, about: About) -> str:
    able = []
    for layout in layouts_of(other.algorithm):
        try:
            if not _lacks(other, layout):
                config_out(other, layout, about)
                able.append(layout)
        except RequestError:
            continue
    return f"a layout that has one: {', '.join(able)}" if able else "no layout has one"


def _line(key: str, before: Mapping[str, Any], after: Mapping[str, Any], raw: Mapping[str, Any]) -> str:
    """Write one change, under the key and with the value that the file has."""
    last = key.rpartition(".")[2]
    alike = [k for k in raw if k.rpartition(".")[2] == last]
    name = key if key in raw or len(alike) != 1 else alike[0]
    old = _said(raw[name]) if name in raw else ABSENT
    new = _said(after[key]) if key in after else f"remove it (it was {_said(before[key])})"
    return f"{name}: {old} -> {new}"


def _said(value: Any) -> str:
    return json.dumps(value)


def _flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found
