"""Assemble a `Draft` of chains from plain lists of token ids: what every chain drafter returns.

In: the root and the guessed ids of each row. Out: padded tensors on the target's device. Decides nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence as Seq

import torch
from torch import Tensor

from slipstream.devices import moved
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

    `sampled` marks the rows whose guesses were drawn from `q` [B, >= N, V]; None: all are fixed. `parents` and, for
    fixed rows, `length` and `draw` may be shared between drafts: read, never written.
    """
    lengths = [1 + len(guess) for guess in guesses]
    width = max(lengths, default=1)
    if width == 1 and len(rows) == 1:  # most rounds of plain decoding: nothing else is as fast
        parents, ones, fixed = _skeleton(1, 1, device)
        return Draft(moved(torch.full((1, 1), rows[0].tokens[-1]), device), parents, ones, fixed)
    tokens = [
        [row.tokens[-1], *guess] + [0] * (width - n) for row, guess, n in zip(rows, guesses, lengths, strict=True)
    ]
    parents, ones, fixed = _skeleton(len(lengths), width, device)
    return Draft(
        tokens=moved(torch.tensor(tokens, dtype=torch.int64).view(len(lengths), width), device),  # [B, N]
        parents=parents,
        length=ones if width == 1 else moved(torch.tensor(lengths), device),  # [B]
        draw=fixed if sampled is None or width == 1 else _draws(sampled, lengths, device),
        q=None if q is None or width == 1 else q[:, :width],  # [B, N, V]
    )


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
