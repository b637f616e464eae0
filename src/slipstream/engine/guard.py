"""Check what a drafter hands over before it meets a model. A drafter is a guest: it may be someone else's object."""

from __future__ import annotations

import dataclasses

import torch

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
    if draft.tokens.device.type != "cpu":  # on an accelerator these checks would cost a host sync
        return draft
    for length, most in zip(draft.length.tolist(), budget, strict=True):
        if length - 1 > most:
            raise WorkError(f"drafter {name!r} drafted {length - 1} nodes with a budget of {most}")
    return _real_ids(draft, vocab, name)


def _real_ids(draft: Draft, vocab: int, name: str) -> Draft:
    ids = draft.tokens.tolist()
    if all(0 <= token < vocab for row in ids for token in row):
        return draft
    outside = (draft.tokens < 0) | (draft.tokens >= vocab)
    valid = torch.arange(draft.nodes) < draft.length[:, None]
    rows = (outside & valid).any(1)
    if bool((rows[:, None] & valid & (draft.draw != Draw.FIXED)).any()) or not draft.chain:
        wrong = int(draft.tokens[outside & valid][0])
        raise WorkError(f"drafter {name!r} drafted id {wrong}, outside the target's {vocab} tokens")
    first = outside.int().argmax(1)
    length = torch.where(rows, torch.minimum(draft.length, first), draft.length).clamp(min=1)
    return dataclasses.replace(draft, tokens=draft.tokens.masked_fill(outside, 0), length=length)
