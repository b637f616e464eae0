"""Medusa-1 heads (Cai et al. 2401.10774), the layout with a vocabulary map in each head and the older one without.

In: a `Reading`; heads and blocks are counted in the tensors, because published configs state other numbers. Out: the
canonical record. Heads read the state after the target's final norm.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slipstream.checkpoints.draft_names import Names, numbered
from slipstream.checkpoints.draft_reading import Layout, Reading
from slipstream.nets.draft_config import Claims, DraftConfig, Features, Heads, Vocab

Own = Mapping[str, tuple[int, ...]]

_BLOCKS = (
    ("heads.{i}.blocks.{j}.weight", "{i}.{j}.linear.weight"),
    ("heads.{i}.blocks.{j}.bias", "{i}.{j}.linear.bias"),
)
NAMES = Names((*_BLOCKS, ("heads.{i}.head.weight", "{i}.{L}.weight")))
LEGACY_NAMES = Names(_BLOCKS)


def _record(r: Reading) -> DraftConfig:
    own = r.layout.name == "medusa"
    heads = _numbers(r, "heads.{i}.blocks.{j}.weight", "heads.{i}.blocks.{j}.bias", "heads.{i}.head.weight")
    blocks = _numbers(r, "heads.{c}.blocks.{i}.weight", "heads.{c}.blocks.{i}.bias")
    if heads != list(range(len(heads))) or blocks != list(range(len(blocks))):
        raise r.damaged(f"heads {heads} with blocks {blocks} are there; numbers from 0 on are needed, none left out")
    claimed = r.integer("medusa_num_heads")
    if claimed is not None and claimed != len(heads):
        r.notes.append(f"medusa_num_heads is {claimed}; the tensors have {len(heads)} heads: the tensors are right")
    for name in ("heads.0.blocks.0.weight", *(["heads.0.head.weight"] if own else [])):
        if name not in r.shapes:
            raise r.damaged(f"tensor {r.layout.names.own(name, len(blocks))} is missing")
    hidden = r.shapes["heads.0.blocks.0.weight"][-1]
    vocab = r.shapes["heads.0.head.weight"][0] if own else _vocab(r)
    return DraftConfig(
        "medusa",
        r.layout.name,
        Features(taps=tuple(r.given.get("taps", (-1,))), width=hidden, fused=False),
        Vocab(vocab, vocab),
        heads=Heads(len(heads), len(blocks), own=own),
        claims=Claims(target=str(r.raw.get("base_model_name_or_path") or "")),
    )


def _numbers(r: Reading, *patterns: str) -> list[int]:
    return sorted({number for pattern in patterns for number in numbered(r.shapes, pattern)})


def _vocab(r: Reading) -> int:
    found = r.integer("vocab_size") or (r.facts.vocab if r.facts else None)
    if found is None:
        raise r.wrong("vocab_size is missing and these heads share the target's: name the target (--model)")
    return found


def _is_medusa(raw: Mapping[str, Any], shapes: Own) -> bool:
    heads = numbered(shapes, "{i}.{j}.linear.weight")
    return bool(heads) or (raw.get("medusa_num_heads") is not None and "fc.weight" not in shapes)


def _is_current(raw: Mapping[str, Any], shapes: Own) -> bool:
    return _is_medusa(raw, shapes) and bool(numbered(shapes, "{i}.{j}.weight"))


MEDUSA = Layout("medusa", "medusa", NAMES, _is_current, _record, ("0.0.linear.weight",))
LEGACY = Layout("medusa-legacy", "medusa", LEGACY_NAMES, _is_medusa, _record, ("0.0.linear.weight",))
