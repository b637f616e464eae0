"""Log-probabilities of emitted tokens, as vLLM defines them.

"Raw" is the log-softmax of the model's own logits, before every parameter; "processed" is the log of the law that was
sampled from. Comes after the verdict and takes no part in it; a drafter's probabilities never get here.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from slipstream.sampling.truncate import Array
from slipstream.types import Laws

Entry: TypeAlias = tuple[float, dict[int, float]]


def token_logprobs(logits: Tensor, tokens: Tensor | Seq[int], k: int, *, processed: Laws | None = None) -> list[Entry]:
    """Return, for each of T tokens, its log-probability and those of the k likeliest tokens and its own.

    `logits` [T, V] are raw, row t what the target said before `tokens[t]`. `processed` holds rows of laws instead:
    `probs` [T, V] or `points` [T]. The k come in order of probability, lower id first on a tie; fewer than k when the
    law has no more, since a log-probability of -inf says nothing and is not JSON.
    """
    ids = torch.as_tensor(tokens).tolist()
    if processed is not None and processed.points is not None:
        return [_at_point(token, point, k) for token, point in zip(ids, processed.points.tolist(), strict=True)]
    if processed is not None and processed.probs is not None:
        scores = processed.probs.log()
    else:
        scores = torch.log_softmax(logits if logits.dtype == torch.float64 else logits.float(), dim=-1)
    table = scores.detach().cpu().numpy()
    return [_entry(row, token, k) for row, token in zip(table, ids, strict=True)]


def _at_point(token: int, point: int, k: int) -> Entry:
    own = 0.0 if token == point else -float("inf")
    return own, ({point: 0.0} if k else {}) | {token: own}


def _entry(row: Array, token: int, k: int) -> Entry:
    own = float(row[token])
    alternatives = {int(i): float(row[i]) for i in _likeliest(row, k)}
    return own, alternatives | {token: own}


def _likeliest(row: Array, k: int) -> Array:
    if k <= 0:
        return np.empty(0, dtype=np.int64)
    floor = np.partition(row, len(row) - k)[len(row) - k] if k < len(row) else -np.inf
    ids = np.flatnonzero((row >= floor) & (row > -np.inf))
    return np.asarray(ids[np.lexsort((ids, -row[ids]))][:k])
