"""The ways a drafter's file may have been meant: small named changes of its canonical record.

In: a `DraftCheckpoint` and facts of the target. Out: `Reading`s, each a checkpoint of its own that shares the tensors.
Only changes that apply to the algorithm, and that the target can satisfy, are listed. Measures nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from slipstream.nets.draft_config import DraftCheckpoint, DraftConfig

OWN = "as the file says"
USUAL_THETA = 10000.0  # what training code uses when the file names none


@dataclass(frozen=True)
class Facts:
    """What readings depend on: the target's layers, real token ids, rows of its embedding, and rotary base."""

    layers: int
    vocab: int
    rows: int
    theta: float | None = None


@dataclass(frozen=True)
class Reading:
    """One way to read a file. `kind` groups readings of the same question: at most one of a kind can be right.

    `advice` says what to do to the file where no key of its config could say it.
    """

    name: str
    kind: str
    checkpoint: DraftCheckpoint
    advice: tuple[str, ...] = ()

    @property
    def own(self) -> bool:
        """True for the reading the file itself asks for."""
        return self.kind == "own"


class _Renamed(Mapping[str, Tensor]):
    """Tensors under other names, `own` ones in their place; nothing is read from disk before it is asked for."""

    def __init__(self, tensors: Mapping[str, Tensor], names: Mapping[str, str], own: Mapping[str, Tensor]) -> None:
        self._tensors, self._names, self._own = tensors, names, own

    def __getitem__(self, name: str) -> Tensor:
        return self._own[name] if name in self._own else self._tensors[self._names[name]]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def own_reading(found: DraftCheckpoint) -> Reading:
    """Return the reading the file asks for."""
    return Reading(OWN, "own", found)


def readings(found: DraftCheckpoint, facts: Facts) -> list[Reading]:
    """Return the other readings of a checkpoint, one change each."""
    makers = (_taps, _last_tap, _anchor, _block_size, _heads, _norms, _rope, _vocab_map)
    return [reading for make in makers for reading in make(found, facts)]


def combined(first: Reading, others: list[Reading], facts: Facts) -> list[Reading]:
    """Return readings that change a second thing on top of `first`."""
    kinds = {other.kind for other in others} - {first.kind}
    again = [r for r in readings(first.checkpoint, facts) if r.kind in kinds]
    return [
        Reading(f"{first.name} and {r.name}", f"{first.kind}+{r.kind}", r.checkpoint, first.advice + r.advice)
        for r in again
    ]


def _changed(found: DraftCheckpoint, **fields: object) -> DraftCheckpoint:
    return replace(found, config=dataclasses.replace(found.config, **fields))  # type: ignore[arg-type]


def _taps(found: DraftCheckpoint, facts: Facts) -> Iterator[Reading]:
    """The numbering of layers: outputs or inputs. The state after the final norm has no neighbour."""
    features = found.config.features
    for step in (1, -1):
        taps = tuple(tap if tap == -1 else tap + step for tap in features.taps)
        moved = [tap + step for tap in features.taps if tap != -1]
        if moved and all(0 <= tap <= facts.layers for tap in moved):
            yield Reading(f"taps {step:+d}", "taps", _changed(found, features=replace(features, taps=taps)))


def _last_tap(found: DraftCheckpoint, facts: Facts) -> Iterator[Reading]:
    features = found.config.features
    for old, new, name in ((-1, facts.layers, "before"), (facts.layers, -1, "after")):
        if old in features.taps:
            taps = tuple(new if tap == old else tap for tap in features.taps)
            checkpoint = _changed(found, features=replace(features, taps=taps))
            yield Reading(f"last layer {name} the final norm", "last tap", checkpoint)


def _anchor(found: DraftCheckpoint, facts: Facts) -> Iterator[Reading]:
    block = found.config.block
    if found.config.algorithm in ("dflash", "dflash2", "dspark") and block is not None:
        flipped = replace(block, anchor_predicts=not block.anchor_predicts)
        name = "the anchor's slot predicts" if flipped.anchor_predicts else "the anchor's slot predicts nothing"
        if flipped.drafts > 0:
            yield Reading(name, "anchor", _changed(found, block=flipped))


def _block_size(found: DraftCheckpoint, facts: Facts) -> Iterator[Reading]:
    """Sizes that count the anchor, or do not."""
    block = found.config.block
    if found.config.algorithm in ("dflash", "dflash2", "dspark") and block is not None:
        for size in (block.size + 1, block.size - 1):
            other = replace(block, size=size)
            if other.drafts > 0:
                yield Reading(f"block of {size} slots", "block size", _changed(found, block=other))


def _heads(found: DraftCheckpoint, facts: Facts) -> Iterator[Reading]:
    """Medusa's first head may be the target's own prediction, or one depth further than it is read."""
    heads = found.config.heads
    if heads is not None and heads.count > 1:
        names = {}
        for name in found.tensors:
            first, index, rest = name.split(".", 2) if name.startswith("heads.") else (name, "", "")
            if index != "0":
                names[f"{first}.{int(index) - 1}.{rest}" if index else name] = name
        tensors = _Renamed(found.tensors, names, {})
        config = dataclasses.replace(found.config, heads=replace(heads, count=heads.count - 1))
        advice = ("tensors of head 0: drop them, and count the other heads from 0",)
        yield Reading("without the first head", "heads", replace(found, config=config, tensors=tensors), advice)


def _norms(found: DraftCheckpoint, facts: Facts) -> Iterator[Reading]:
    rows = found.config.rows
    if found.config.algorithm not in ("eagle3", "peagle"):
        return
    if found.config.algorithm == "eagle3":  # the other one feeds nothing back
        post = rows.feedback == "pre"
        fed = replace(rows, feedback="post" if post else "pre")
        name = f"fed back {'after' if post else 'before'} the norm"
        yield Reading(name, "feedback", _changed(found, rows=fed))
    if rows.feedback == "pre":  # a state normed once is fed back and read
        head = replace(rows, logit_norm=not rows.logit_norm)
        yield Reading(f"head reads the {_state(head.logit_norm)} state", "logit norm", _changed(found, rows=head))
    residual = replace(rows, residual_norm=not rows.residual_norm)
    name = f"residual from the {_state(residual.residual_norm)} feature"
    yield Reading(name, "residual", _changed(found, rows=residual))


def _state(normed: bool) -> str:
    return "normed" if normed else "raw"


def _rope(found: DraftCheckpoint, facts: Facts) -> Iterator[Reading]:
    body = found.config.body
    if body is not None:
        for theta in dict.fromkeys((USUAL_THETA, facts.theta)):
            if theta is not None and theta != body.rope.theta:
                other = replace(body, rope=replace(body.rope, theta=theta))
                yield Reading(f"rotary base {theta:g}", "rope", _changed(found, body=other))


def _vocab_map(found: DraftCheckpoint, facts: Facts) -> Iterator[Reading]:
    """The map's numbers are offsets, or ids: whichever it was, the other one too, if it makes sense as ids."""
    ids = found.tensors.get("vocab_map")
    if ids is None:
        return
    steps = torch.arange(len(ids))
    for other, kind in ((ids - steps, "ids"), (ids + steps, "offsets")):
        if int(other.min()) >= 0 and int(other.max()) < facts.rows and len(other.unique()) == len(other):
            tensors = _Renamed(found.tensors, {n: n for n in found.tensors}, {"vocab_map": other})
            name, sign = f"vocabulary map read as {kind}", "subtract from" if kind == "ids" else "add to"
            advice = (f"tensor d2t: {sign} each entry its own index (its numbers are {kind})",)
            yield Reading(name, "vocabulary map", replace(found, tensors=tensors), advice)


def changes(before: DraftConfig, after: DraftConfig) -> dict[str, tuple[object, object]]:
    """Return {field: (old, new)} of the settings in which two records differ; fields of parts are "part.field"."""
    found: dict[str, tuple[object, object]] = {}
    for f in dataclasses.fields(before):
        old, new = getattr(before, f.name), getattr(after, f.name)
        if dataclasses.is_dataclass(old) and dataclasses.is_dataclass(new):
            for inner in dataclasses.fields(old):
                a, b = getattr(old, inner.name), getattr(new, inner.name)
                if a != b:
                    found[f"{f.name}.{inner.name}"] = (a, b)
        elif old != new:
            found[f.name] = (old, new)
    return found
