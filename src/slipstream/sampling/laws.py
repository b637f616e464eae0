"""Logits become laws: the target's at every node of a draft, a drafter's at the node it is about to extend.

A law is a pure function of the prefix (committed tokens, then the path to the node) and that node's logits. Order
(vLLM's): logit bias, min_tokens, user processors; repetition penalty (prompt and output), frequency and presence
penalties (output only); temperature; min-p; top-k; top-p. `processors` defines the first group, `truncate` the last.
Temperature 0 is the point mass at the highest processed logit, lowest id on a tie; nothing dense is built for it.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from slipstream.devices import listed, maybe, moved, on_host
from slipstream.sampling.processors import edit_draft, edit_heads, needs_history, touches
from slipstream.sampling.truncate import Cut, law_rows
from slipstream.types import Draft, Laws, Sequence

__all__ = ["draft_law", "drafting_law", "fit_vocab", "laws", "needs_history"]

_PAD = Cut(0.0)


def laws(rows: list[Sequence], logits: Tensor, draft: Draft, peaks: Tensor | None = None) -> Laws:
    """Return the target's law after each node from its raw logits [B, N, V], cut to the real vocabulary.

    A row whose processed logits hold NaN or +inf, or nothing above -inf, is marked in `bad` and replaced: the point 0,
    or the uniform law. Padding is never marked and always a point. Dense laws are float32, float64 from float64 logits.
    `peaks` are what the target says of these logits (`Scores`): where they say all, the logits are not read.
    """
    greedy, edited = all(row.params.greedy for row in rows), any(map(touches, rows))
    told = None if edited or peaks is None else _sound(peaks)
    if greedy and not edited:
        points = _sound_peaks(logits) if peaks is None else told
        if points is not None:
            return Laws(points=points)
    x = edit_draft(rows, logits, draft) if edited else logits.detach() if greedy else _float(logits)
    b, n, vocab = logits.shape
    flat = x.reshape(b * n, vocab)
    points, broken = peaks_of(flat) if told is None else (told.view(-1), None)
    bad = None
    if broken is not None:
        real = moved(torch.arange(n) < on_host(draft.length)[:, None], x.device)
        bad = broken.view(b, n) & real
        bad = bad if maybe(bad) else None
        flat, points = _replace(flat, points, broken)
    if greedy:
        return Laws(points=points.view(b, n), bad=bad)
    length = listed(draft.length)
    cuts = []
    for row, real in zip(rows, length, strict=True):
        cuts += [Cut.of(row.params)] * real + [_PAD] * (n - real)
    return Laws(probs=law_rows(flat, points, cuts).view(b, n, vocab), bad=bad)


def draft_law(rows: list[Sequence], prefixes: list[list[int]], logits: Tensor) -> Tensor:
    """Shape a drafter's logits [B, V] at one node per row as the target's would be; return q [B, V], to be recorded.

    `prefixes[b]` is the whole prefix at that node (`row.tokens` and the drafted path); it is not read, and may be
    empty, for a row without `needs_history`. Greedy rows are one-hot. Rows that are not finite become uniform.
    """
    return drafting_law(rows, prefixes, logits)[0]


def drafting_law(
    rows: list[Sequence], prefixes: list[list[int]], logits: Tensor, peaks: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """Return `draft_law`, and which rows [B] have no token left once all parameters are applied (None: all have).

    Nothing is to be drafted there: a mask may leave none of the few tokens that a drafter has. `peaks` [B]: where the
    logits are highest, all finite, where that is known.
    """
    edited = any(row.params.logit_bias or needs_history(row.params) for row in rows)
    x = edit_heads(rows, logits, prefixes) if edited else _float(logits)
    points, broken = peaks_of(x) if edited or peaks is None else (peaks, None)
    if broken is not None:
        x, points = _replace(x, points, broken)
    return law_rows(x, points, [Cut.of(row.params) for row in rows]), broken


def fit_vocab(x: Tensor, vocab: int, *, logits: bool) -> Tensor:
    """Bring rows x [..., Vd] to [..., vocab]: cut what the target does not know, give what x lacks no mass.

    Logits are padded with -inf. Probabilities are padded with 0 and, when cut, normalised again; a row that had all
    its mass beyond `vocab` becomes uniform.
    """
    width = x.shape[-1]
    if width < vocab:
        return torch.nn.functional.pad(x, (0, vocab - width), value=-torch.inf if logits else 0.0)
    if width == vocab or logits:
        return x[..., :vocab]
    kept = x[..., :vocab]
    mass = kept.sum(-1, keepdim=True)
    return torch.where(mass > 0, kept / torch.where(mass > 0, mass, 1.0), 1.0 / vocab)


def peaks_of(x: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return the argmax of rows x [R, V], lowest id on a tie, and which rows [R] have no finite peak (None: all do).

    An accelerator is not asked whether any has none: there it is never None.
    """
    if x.device.type == "cpu":
        # widening half precision changes neither order nor ties, and torch's own maximum of it is ten times slower
        rows = (x if x.dtype in (torch.float32, torch.float64) else x.float()).numpy()
        # row by row: numpy copies a strided matrix, and is many times faster than torch on one row
        at = [int(row.argmax()) for row in rows]
        fine = all(np.isfinite(row[i]) for row, i in zip(rows, at, strict=True))
        points = torch.tensor(at)
        return points, None if fine else ~x.gather(1, points[:, None])[:, 0].isfinite()
    top, points = x.max(-1)
    broken = ~top.isfinite()
    return points, broken if maybe(broken) else None


def _sound(peaks: Tensor) -> Tensor | None:
    """Return what a target says of its logits if all are finite."""
    return peaks if min(map(min, listed(peaks))) >= 0 else None


def _sound_peaks(x: Tensor) -> Tensor | None:
    """Return the argmax [B, N] of logits in the host's memory, if numpy reads them as they lie and all are finite.

    What `laws` does for most rounds, without a tensor operation: each costs more than the search itself.
    """
    if x.dtype != torch.float32 or not x.is_cpu or x.requires_grad or not x.is_contiguous():
        return None
    rows = x.numpy()
    at = rows.argmax(-1)
    fine = all(math.isfinite(rows[b, i, best]) for b, row in enumerate(at.tolist()) for i, best in enumerate(row))
    return torch.from_numpy(at) if fine else None


def _float(logits: Tensor) -> Tensor:
    x = logits.detach()
    return x if x.dtype == torch.float64 else x.float()


def _replace(x: Tensor, points: Tensor, broken: Tensor) -> tuple[Tensor, Tensor]:
    return torch.where(broken[:, None], 0.0, x), torch.where(broken, 0, points)
