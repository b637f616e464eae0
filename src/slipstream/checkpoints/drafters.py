"""Read a drafter folder of any public layout into a `DraftCheckpoint`.

In: a folder, what is known of the target, overrides. Out: the canonical record, lazy tensors under canonical names, and
notes. Anything that does not fit is refused by name; nothing missing is filled in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from slipstream.checkpoints.draft_checks import check_block, check_shapes, check_target, check_values
from slipstream.checkpoints.draft_files import DraftFiles, Lazy
from slipstream.checkpoints.draft_names import MAPS
from slipstream.checkpoints.draft_overrides import apply_overrides
from slipstream.checkpoints.draft_parts import Part, split_fused, strip_prefixes
from slipstream.checkpoints.draft_reading import Layout, Reading, TargetFacts
from slipstream.checkpoints.draft_vocab import read_map
from slipstream.checkpoints.layouts import find_layout
from slipstream.nets.draft_config import DraftCheckpoint

__all__ = ["TargetFacts", "read_drafter"]


def read_drafter(folder: Path | str, facts: TargetFacts | None = None, **overrides: Any) -> DraftCheckpoint:
    """Read a folder. `overrides` are changes to the record by name (`draft_overrides.OVERRIDES`), plus `final_layer`
    (True allows a tap at the target's last layer) and `vocab_map` ("offset" or "absolute": what d2t holds).

    Some layouts place their taps by the number of the target's layers: they need `facts`.
    """
    files = DraftFiles(Path(folder))
    notes = [f"{name} is there too: not read" for name in files.unread]
    parts = strip_prefixes(files, notes)
    parts = split_fused(files, parts)
    layout = find_layout(str(folder), files.raw, {name: part.shape for name, part in parts.items()})
    sorted_out = _sort(layout, parts)
    _tie(files.raw, sorted_out.canonical, notes)
    shapes = {name: part.shape for name, part in sorted_out.canonical.items()}
    reading = Reading(layout, str(folder), files.raw, shapes, facts, overrides, notes)
    config = apply_overrides(layout.record(reading), overrides)
    check_shapes(reading, config, sorted_out.strangers)
    check_block(reading, config)
    check_target(reading, config)
    readers = {name: _reader(files, part) for name, part in sorted_out.canonical.items() if name not in MAPS}
    tensors = Lazy(readers)
    check_values(reading, config, tensors)
    d2t, t2d = (files.get(parts[name].source) if name in parts else None for name in MAPS)
    ids = read_map(reading, config.vocab, d2t, t2d)
    if ids is not None:
        tensors = Lazy({**readers, "vocab_map": lambda: ids})
    return DraftCheckpoint(config, tensors, tuple(notes))


@dataclass(frozen=True)
class _Sorted:
    canonical: dict[str, Part]
    strangers: list[str]


def _sort(layout: Layout, parts: dict[str, Part]) -> _Sorted:
    """Give each tensor its canonical name; what has none and may not be left unread is a stranger."""
    canonical: dict[str, Part] = {}
    strangers = []
    for own, part in parts.items():
        name = own if own in MAPS else layout.names.canonical(own)
        if name is not None:
            canonical[name] = part
        elif not layout.ignores(own):
            strangers.append(own)
    if "mask_hidden" in canonical:
        canonical["mask_hidden"] = canonical["mask_hidden"].flat()
    return _Sorted(canonical, strangers)


def _tie(raw: Mapping[str, Any], canonical: dict[str, Part], notes: list[str]) -> None:
    """A drafter with a table of its own and no head, said to be tied, has that table for its head."""
    if not (raw.get("tie_word_embeddings") and "embed.weight" in canonical):
        return
    if "head.weight" in canonical:
        notes.append("tie_word_embeddings is true but the head has a tensor of its own: the tensor is taken")
    else:
        canonical["head.weight"] = canonical["embed.weight"]


def _reader(files: DraftFiles, part: Part) -> Callable[[], Tensor]:
    return lambda: part.take(files.get(part.source))
