"""How much of each row's drawn chain is worth the target's time: DSpark's hardware-aware prefix scheduler.

In: each row's chance that its first k tokens all stand, and the measured time of a round by how many tokens the target
reads. Out: a length for each row (2607.05147, Algorithm 1). Admission of a token may rest on what precedes it and
nothing else, or the output is biased (its appendix A): chances of a row fall with k and ties go to the earlier place,
so everything looked at before a token is no continuation of it, and the search ends at the first token that does not
pay, whatever lies behind it. Pure; draws nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq

import torch
from torch import Tensor

Seconds = Callable[[int], float]


def schedule(survival: Tensor, limits: Seq[int], seconds: Seconds) -> list[int]:
    """Return how many tokens of each row to keep.

    `survival` [B, G] holds the chance that the first k + 1 tokens of a row stand, made before the last of them was
    drawn; what is not a number counts as 0. Row b has `limits[b]` of them. `seconds(n)` is the time of a round whose
    target pass reads n tokens, roots included. Tokens are added while the expected tokens per second strictly rise.
    """
    rows, width = survival.shape
    chance = torch.nan_to_num(survival.detach().double().cpu(), nan=0.0).clamp(0.0, 1.0)
    chance = torch.cummin(chance, dim=1).values if width else chance  # a prefix stands no oftener than its start
    there = torch.arange(width) < torch.tensor(limits, dtype=torch.int64)[:, None]
    # place by place, then row by row: a stable sort leaves ties in this order
    flat = chance.masked_fill(~there, -1.0).T.flatten().sort(descending=True, stable=True)
    lengths, expected, read = [0] * rows, float(rows), rows
    best = expected / seconds(read) if rows else 0.0
    for value, item in zip(flat.values.tolist(), flat.indices.tolist(), strict=True):
        if value < 0.0:
            break
        expected, read = expected + value, read + 1
        rate = expected / seconds(read)
        if not rate > best:
            break  # not skipped: what lies behind depends on tokens not yet admitted
        best = rate
        lengths[item % rows] += 1
    return lengths
