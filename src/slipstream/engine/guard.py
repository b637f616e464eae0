"""Check what a drafter hands over before it meets a model. A drafter is a guest: it may be someone else's object."""

from __future__ import annotations

import dataclasses

import torch

from slipstream.devices import known, listed, moved, on_host
from slipstream.types import Draft, Draw, WorkError


def checked(draft: Draft, budget: list[int], vocab: int, name: str) -> Draft:
    """Return a draft whose ids are all real tokens and whose rows keep to their budget.

    An id outside the vocabulary ends a row made of FIXED nodes (a shorter guess, legal by L4); among drawn nodes it
    is an error, since dropping a drawn token would bias the output (law 4).
    """
    if draft.nodes == 1:
        return draft
    longest = draft.nodes - 1
    if longest > max(budget):
        raise WorkError(f"drafter {name!r} drafted {longest} nodes with a budget of {max(budget)}")
    if not all(known(part) for part in (draft.tokens, draft.length, draft.draw)):
        return draft  # on an accelerator, and never on the host: the checks would have to wait for it
    for length, most in zip(listed(draft.length), budget, strict=True):
        if length - 1 > most:
            raise WorkError(f"drafter {name!r} drafted {length - 1} nodes with a budget of {most}")
    return _real_ids(draft, vocab, name)


def _real_ids(draft: Draft, vocab: int, name: str) -> Draft:
    if all(0 <= min(row) <= max(row) < vocab for row in listed(draft.tokens)):
        return draft
    tokens = on_host(draft.tokens)
    lengths, draw = on_host(draft.length), on_host(draft.draw)
    outside = (tokens < 0) | (tokens >= vocab)
    valid = torch.arange(draft.nodes) < lengths[:, None]
    rows = (outside & valid).any(1)
    if bool((rows[:, None] & valid & (draw != Draw.FIXED)).any()) or not draft.chain:
        wrong = int(tokens[outside & valid][0])
        raise WorkError(f"drafter {name!r} drafted id {wrong}, outside the target's {vocab} tokens")
    first = outside.int().argmax(1)
    length = torch.where(rows, torch.minimum(lengths, first), lengths).clamp(min=1)
    device = draft.tokens.device
    return dataclasses.replace(
        draft, tokens=moved(tokens.masked_fill(outside, 0), device), length=moved(length, device)
    )
