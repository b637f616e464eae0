"""The map from a drafter's ids to the target's: offsets in files (d2t, t2d), absolute ids in the canonical record.

In: d2t [Vd] and t2d [V] of a file. Out: absolute ids [Vd], ascending; or the other way. A d2t that can only be absolute
ids is taken as such and said so; t2d decides where both readings are possible.
"""

from __future__ import annotations

import torch
from torch import Tensor

from slipstream.checkpoints.draft_reading import Reading
from slipstream.nets.draft_config import Vocab


def read_map(r: Reading, vocab: Vocab, d2t: Tensor | None, t2d: Tensor | None) -> Tensor | None:
    """Return the absolute ids [Vd], or None for a drafter that has all of the target's ids."""
    if not vocab.reduced:
        if d2t is not None and bool((d2t != 0).any()):
            r.notes.append("d2t is not all zeros though the drafter has all of the target's ids: ignored, as elsewhere")
        return None
    if vocab.draft > vocab.target:
        raise r.wrong(f"draft_vocab_size {vocab.draft} is larger than vocab_size {vocab.target}")
    kept = _kept(r, vocab, t2d)
    if d2t is None:
        raise r.damaged(
            f"tensor d2t is missing: the drafter has {vocab.draft} of the target's {vocab.target} ids and nothing says "
            "which"
        )
    if tuple(d2t.shape) != (vocab.draft,):
        raise r.damaged(f"tensor d2t is {list(d2t.shape)}; the drafter's vocabulary asks for [{vocab.draft}]")
    found = d2t.to(torch.int64)
    return _choose(r, vocab, found, kept)


def offsets_of(vocab_map: Tensor) -> Tensor:
    """Return the offsets [Vd] that files hold: target id minus drafter id."""
    return vocab_map.to(torch.int64) - torch.arange(len(vocab_map))


def kept_of(vocab_map: Tensor, target: int) -> Tensor:
    """Return [V] bool: which of the target's ids the drafter has."""
    kept = torch.zeros(target, dtype=torch.bool)
    kept[vocab_map] = True
    return kept


def _kept(r: Reading, vocab: Vocab, t2d: Tensor | None) -> Tensor | None:
    if t2d is None:
        return None
    if t2d.dim() != 1 or t2d.shape[0] != vocab.target:
        raise r.damaged(f"tensor t2d is {list(t2d.shape)}; vocab_size asks for [{vocab.target}]")
    kept = t2d.to(torch.bool).nonzero().flatten()
    if len(kept) != vocab.draft:
        raise r.damaged(f"tensor t2d keeps {len(kept)} ids; the drafter's vocabulary has {vocab.draft}")
    return kept


def _choose(r: Reading, vocab: Vocab, d2t: Tensor, kept: Tensor | None) -> Tensor:
    offsets, absolute = torch.arange(vocab.draft) + d2t, d2t
    forced = r.given.get("vocab_map")
    if forced is not None:
        if forced not in ("offset", "absolute"):
            raise r.wrong(f"vocab_map {forced!r} is not offset or absolute")
        chosen = offsets if forced == "offset" else absolute
        return _must_fit(r, vocab, chosen, f"d2t read as {forced}")
    fitting = [ids for ids in (offsets, absolute) if _fits(ids, vocab.target)]
    if kept is not None and fitting:
        agreeing = [ids for ids in fitting if torch.equal(ids, kept)]
        if not agreeing:
            at = int((fitting[0] != kept).nonzero()[0])
            raise r.damaged(
                f"tensors d2t and t2d disagree: drafter id {at} is {int(fitting[0][at])} by d2t, {int(kept[at])} by t2d"
            )
        fitting = agreeing
    if not fitting:
        return _must_fit(r, vocab, offsets, "d2t")
    if fitting[0] is absolute:
        r.notes.append("d2t holds the target's ids themselves, not offsets: converted")
    return fitting[0]


def _fits(ids: Tensor, target: int) -> bool:
    return bool(ids[0] >= 0) and bool(ids[-1] < target) and bool((ids[1:] > ids[:-1]).all())


def _must_fit(r: Reading, vocab: Vocab, ids: Tensor, what: str) -> Tensor:
    """Return ids that fit, else name the first that does not."""
    if _fits(ids, vocab.target):
        return ids
    outside = ((ids < 0) | (ids >= vocab.target)).nonzero().flatten()
    if len(outside):
        at = int(outside[0])
        text = f"maps drafter id {at} to {int(ids[at])}; the target's ids go from 0 to {vocab.target - 1}"
    else:
        at = int((ids[1:] <= ids[:-1]).nonzero()[0]) + 1
        text = f"maps drafter ids {at - 1} and {at} to {int(ids[at - 1])} and {int(ids[at])}; they must rise"
    raise r.damaged(f"tensor {what} {text}")
