"""Proof that two drafters are one: the same record, the same tensors bit for bit, the same answers on fixed inputs.

In: a drafter and the one read back from the files just written. Out: nothing, or a RequestError naming the first thing
that differs. Where a layout moved a table between the drafter and the target, `tables` must be that target's.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from slipstream.learned import make_net
from slipstream.nets.draft_config import Claims, DraftCheckpoint, DraftConfig, Tables
from slipstream.nets.draft_layers import Segment
from slipstream.types import RequestError, WorkError

_ROWS = 5  # target-fed rows of the fixed input
_CLOSE = 1e-4  # of the largest logit, where a table moved: another product of the same numbers


def same_record(wanted: DraftConfig, found: DraftConfig, layout: str) -> None:
    """Raise RequestError naming the first field in which two records differ; layout and claims may."""
    plain = [dataclasses.replace(c, layout="", claims=Claims()) for c in (wanted, found)]
    differing = _difference(dataclasses.asdict(plain[0]), dataclasses.asdict(plain[1]))
    if differing is not None:
        name, was, reads = differing
        raise RequestError(
            f"layout {layout!r} cannot express this drafter: {name} is {was!r} and reads back as {reads!r}"
        )


def same_tensors(wanted: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> None:
    """Raise WorkError naming the first tensor that is not the same bit for bit."""
    if set(wanted) != set(found):
        name = min(set(wanted) ^ set(found))
        raise WorkError(f"tensor {name} is {'missing from' if name in wanted else 'new in'} the files written")
    for name in sorted(wanted):
        a, b = wanted[name], found[name]
        if a.dtype != b.dtype or not torch.equal(a, b):
            raise WorkError(f"tensor {name} reads back as other numbers than were written")


def same_answers(source: DraftCheckpoint, found: DraftCheckpoint, tables: Tables | None = None) -> None:
    """Raise WorkError unless both networks answer the fixed inputs alike, in float32."""
    moved = source.config.vocab != found.config.vocab
    tables = tables or stand_in(source.config)
    for a, b in zip(answers(source, tables), answers(found, tables), strict=True):
        alike = torch.equal(a, b) or (moved and float((a - b).abs().max()) <= _CLOSE * float(a.abs().max()))
        if not alike:
            raise WorkError("the drafter written answers a fixed input differently from its source")


def answers(found: DraftCheckpoint, tables: Tables) -> list[Tensor]:
    """Run a drafter's network on fixed inputs: fed by the target, then by itself. Return the logits [R, Vd] it gave."""
    net = make_net(found, tables, rows=1, max_len=_ROWS + 2, max_nodes=max(_ROWS, _slots(found.config)))
    g = torch.Generator().manual_seed(0)
    taps = {t: torch.randn(_ROWS, found.config.features.width, generator=g) for t in found.config.features.taps}
    tokens = torch.randint(min(tables.vocab, found.config.vocab.target), (_ROWS,), generator=g)
    with torch.no_grad():
        return _RUNS[found.config.algorithm](net, tokens, taps)


def stand_in(config: DraftConfig) -> Tables:
    """Tables that take no memory: another row for every id, and every state's numbers spread over the logits."""
    wide, vocab = config.features.width, config.vocab.target
    steps = torch.arange(1, wide + 1, dtype=torch.float32)
    places = torch.arange(vocab) % wide
    return Tables(
        embed=lambda ids: torch.sin((ids[:, None] + 1) * steps),
        head=lambda x: x[:, places],
        vocab=vocab,
        rows=max(vocab, config.block.mask_token + 1 if config.block else 0),
        hidden=wide,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )


def _eagle(net: Any, tokens: Tensor, taps: Mapping[int, Tensor]) -> list[Tensor]:
    states = net.step(tokens, net.fuse(taps), [Segment(0, 0, range(_ROWS))])
    net.layers.keep(0, _ROWS)
    again = net.step(tokens[:1], states[-1:], [Segment(0, _ROWS, [_ROWS])])
    return [net.logits(states), net.logits(again)]


def _peagle(net: Any, tokens: Tensor, taps: Mapping[int, Tensor]) -> list[Tensor]:
    states = net.step(tokens, net.fuse(taps), [Segment(0, 0, range(_ROWS))])
    net.layers.keep(0, _ROWS)
    mask, feature = torch.tensor([net.mask_token]), net.mask_feature[None]
    return [net.logits(states), net.logits(net.step(mask, feature, [Segment(0, _ROWS, [_ROWS])]))]


def _dflash(net: Any, tokens: Tensor, taps: Mapping[int, Tensor]) -> list[Tensor]:
    net.context(taps, [Segment(0, 0, range(_ROWS))])
    return [net.logits(net.block(tokens[:1], [0])[0])]


def _dflash2(net: Any, tokens: Tensor, taps: Mapping[int, Tensor]) -> list[Tensor]:
    net.context(taps, [Segment(0, 0, range(_ROWS))])
    states = net.block(tokens[:1], [0])[0]
    top = net.logits(states).topk(net.paths.top_k)
    previous = tokens[torch.arange(len(states)) % _ROWS]
    return [top.values, net.scores(net.mixed(states), previous, top.indices, top.values)]


def _dspark(net: Any, tokens: Tensor, taps: Mapping[int, Tensor]) -> list[Tensor]:
    net.context(taps, [Segment(0, 0, range(_ROWS))])
    hidden = net.block(tokens[:1], [0])
    out, state = [], None
    for slot in range(hidden.shape[1]):
        made = net.correct(hidden[:, slot], net.logits(hidden[:, slot]), tokens[slot % _ROWS][None], state)
        out += [made.logits] if made.confidence is None else [made.logits, made.confidence]
        state = made.state
    return out


def _medusa(net: Any, tokens: Tensor, taps: Mapping[int, Tensor]) -> list[Tensor]:
    return [net.logits(net.features(taps), net.count)]


_RUNS = {
    "eagle": _eagle,
    "eagle3": _eagle,
    "peagle": _peagle,
    "dflash": _dflash,
    "dflash2": _dflash2,
    "dspark": _dspark,
    "medusa": _medusa,
}


def _slots(config: DraftConfig) -> int:
    return config.block.size if config.block else 1


def _difference(a: Any, b: Any, path: str = "") -> tuple[str, Any, Any] | None:
    if not (isinstance(a, dict) and isinstance(b, dict)):
        return None if a == b else (path, a, b)
    for key in sorted(set(a) | set(b)):
        found = _difference(a.get(key), b.get(key), f"{path}.{key}" if path else key)
        if found is not None:
            return found
    return None
