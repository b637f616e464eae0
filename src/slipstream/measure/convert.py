"""`convert`: a drafter from one public layout to another, with the proof that nothing but its spelling changed.

In: a drafter's folder, a layout and a name; the target, where one of the layouts shares tables with it. Out: a folder
that was read back and compared before it got its name, or an error and no folder.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from slipstream.checkpoints.drafters import TargetFacts, read_drafter
from slipstream.checkpoints.layout_limits import check_layout
from slipstream.checkpoints.target_folder import TargetFolder
from slipstream.checkpoints.writing import check_out, write_drafter
from slipstream.measure.draft_proof import same_answers, same_record, same_tensors
from slipstream.nets.draft_config import DraftCheckpoint, Tables
from slipstream.nets.layers import linear
from slipstream.types import RequestError


@dataclass(frozen=True)
class Converted:
    """What was done. `copied` names the tables taken from the target, `left_out` those that were its own anyway."""

    algorithm: str
    source: str
    layout: str
    out: str
    tensors: int
    bytes: int
    copied: tuple[str, ...]
    left_out: tuple[str, ...]
    notes: tuple[str, ...]


def convert(
    source: Path,
    layout: str,
    out: Path,
    *,
    target: TargetFolder | None = None,
    force: bool = False,
    given: dict[str, Any] | None = None,
) -> Converted:
    """Convert the drafter in `source`; `given` are values its files lack, as for `read_drafter`."""
    if out.exists() and out.resolve() == source.resolve():
        raise RequestError(f"{out}: is the source itself; give another name")
    check_out(out, force)
    facts = None if target is None else facts_of(target)
    found = read_drafter(source, facts, **(given or {}))
    check_layout(layout, found.config.algorithm)
    written: list[DraftCheckpoint] = []

    def prove(folder: Path, ready: DraftCheckpoint) -> None:
        back = read_drafter(folder, facts)
        same_record(ready.config, back.config, layout)
        same_tensors(ready.tensors, back.tensors)
        moved = set(found.tensors) ^ set(ready.tensors)
        same_answers(found, back, tables_of(target) if target is not None and moved else None)
        written.append(ready)

    write_drafter(found, layout, out, base=target, check=prove, force=force)
    before, after = set(found.tensors), set(written[0].tensors)
    return Converted(
        algorithm=found.config.algorithm,
        source=found.config.layout,
        layout=layout,
        out=str(out),
        tensors=len(after),
        bytes=sum(p.stat().st_size for p in out.iterdir()),
        copied=tuple(sorted(after - before)),
        left_out=tuple(sorted(before - after)),
        notes=tuple(found.notes),
    )


def facts_of(target: TargetFolder) -> TargetFacts:
    """Return what a drafter's files are checked against; of a folder, all rows of the vocabulary count as ids."""
    raw = target.raw
    theta = (raw.get("rope_parameters") or {}).get("rope_theta") or raw.get("rope_theta")
    return TargetFacts(
        name=target.name,
        hidden=target.hidden,
        layers=target.layers,
        vocab=target.vocab,
        real_vocab=target.vocab,
        rope_theta=theta,
        tied=bool(raw.get("tie_word_embeddings", False)),
    )


def tables_of(target: TargetFolder) -> Tables:
    """Return the target's tables in float32, the head as networks hold theirs."""
    embed, head = target.table("embed").float(), target.table("head").float()
    return Tables(
        embed=lambda ids: embed[ids],
        head=linear(head, None, last=True),
        vocab=head.shape[0],
        rows=embed.shape[0],
        hidden=embed.shape[1],
        dtype=torch.float32,
        device=torch.device("cpu"),
    )
