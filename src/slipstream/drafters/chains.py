"""Assemble a `Draft` of chains from plain lists of token ids: what every chain drafter returns.

In: the root and the guessed ids of each row. Out: padded tensors on the target's device. Decides nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence as Seq

import torch
from torch import Tensor

from slipstream.devices import moved, one_each
from slipstream.types import Draft, Draw, Sequence


def chain_draft(
    rows: Seq[Sequence],
    guesses: Seq[Seq[int]],
    *,
    device: torch.device | str = "cpu",
    sampled: Seq[bool] | None = None,
    q: Tensor | None = None,
) -> Draft:
    """Return the draft of one chain per row: its last committed token, then its guesses, then padding (id 0).

    `sampled` marks the rows whose guesses were drawn from `q` [B, >= N, V]; None: all are fixed. Tensors may be shared
    between drafts: read, never written.
    """
    lengths = [1 + len(guess) for guess in guesses]
    width = max(lengths, default=1)
    if width == 1:
        return _roots(tuple(row.tokens[-1] for row in rows), device)
    tokens = [
        [row.tokens[-1], *guess] + [0] * (width - n) for row, guess, n in zip(rows, guesses, lengths, strict=True)
    ]
    parents, _, fixed = _skeleton(len(lengths), width, device)
    return Draft(
        tokens=moved(torch.tensor(tokens), device),  # [B, N]
        parents=parents,
        length=moved(torch.tensor(lengths), device),  # [B]
        draw=fixed if sampled is None else _draws(sampled, lengths, device),
        q=None if q is None else q[:, :width],  # [B, N, V]
    )


@functools.lru_cache(maxsize=4096)
def _roots(ids: tuple[int, ...], device: torch.device | str) -> Draft:
    """The draft of rows that guess nothing."""
    parents, ones, fixed = _skeleton(len(ids), 1, device)
    return Draft(moved(one_each(ids)[1], device), parents, ones, fixed)


@functools.lru_cache(maxsize=128)
def _skeleton(rows: int, width: int, device: torch.device | str) -> tuple[Tensor, Tensor, Tensor]:
    parents = torch.arange(-1, width - 1).repeat(rows, 1)  # [B, N]
    ones, fixed = torch.ones(rows, dtype=torch.int64), torch.zeros_like(parents)
    return moved(parents, device), moved(ones, device), moved(fixed, device)


def _draws(sampled: Seq[bool], lengths: Seq[int], device: torch.device | str) -> Tensor:
    width = max(lengths)
    drawn = [n if flag else 1 for flag, n in zip(sampled, lengths, strict=True)]  # roots and padding are fixed
    kinds = [[Draw.FIXED] + [Draw.SAMPLED] * (n - 1) + [Draw.FIXED] * (width - n) for n in drawn]
    return moved(torch.tensor(kinds, dtype=torch.int64), device)  # [B, N]
