"""Parameters that edit logits as a function of the prefix: bias, min_tokens, user processors, penalties.

In come the raw logits after every node of a draft; out go float copies, each node edited by its own prefix (committed
tokens, then the path from the root to the node). Nothing is remembered between calls: a refused draft leaves no trace.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from slipstream.devices import moved, on_host
from slipstream.sampling.truncate import Array
from slipstream.types import Draft, LogitsProcessor, RequestError, SamplingParams, Sequence


@dataclass(frozen=True)
class Paths:
    """The prefixes of N nodes: `prefix` (prompt and output, up to and with the root), then a path of `tokens`.

    `tokens[0]` belongs to the root and is already the last of `prefix`; `parents[i] < i`.
    """

    prefix: Seq[int]
    prompt_len: int
    tokens: Seq[int]
    parents: Seq[int]

    def at(self, node: int) -> list[int]:
        """Return the prefix at a node: everything its row of logits was computed from."""
        path = []
        while node > 0:
            path.append(self.tokens[node])
            node = self.parents[node]
        return [*self.prefix, *reversed(path)]

    def depths(self) -> list[int]:
        """Return the depth of each node; the root has 0."""
        depth = [0] * len(self.tokens)
        for node in range(1, len(self.tokens)):
            depth[node] = depth[self.parents[node]] + 1
        return depth


def needs_history(params: SamplingParams) -> bool:
    """Tell whether the law depends on the prefix beyond the logits, so that callers may skip building prefixes."""
    return params.penalised or params.min_tokens > 0 or bool(params.logits_processors)


def touches(row: Sequence) -> bool:
    """Tell whether any logit of this row may be edited in this round."""
    return row.params.edits or len(row.tokens) < row.prompt_len + row.params.min_tokens


def edit_draft(rows: list[Sequence], logits: Tensor, draft: Draft) -> Tensor:
    """Return a float copy of logits [B, N, V] with every real node edited by its own prefix; padding stays raw."""
    x = _own(logits)
    tokens, parents, length = (on_host(t).tolist() for t in (draft.tokens, draft.parents, draft.length))
    for b, row in enumerate(rows):
        if touches(row):
            n = length[b]
            edit(x[b, :n], row, Paths(row.tokens, row.prompt_len, tokens[b][:n], parents[b][:n]))
    return x


def edit_heads(rows: list[Sequence], logits: Tensor, prefixes: list[list[int]]) -> Tensor:
    """Return a float copy of logits [B, V], row b edited by `prefixes[b]`; NaN where a processor fails on a guess."""
    x = _own(logits)
    for b, row in enumerate(rows):
        prefix = prefixes[b] if needs_history(row.params) else []
        try:
            edit(x[b : b + 1], row, Paths(prefix, row.prompt_len, prefix[-1:] or [-1], [-1]))
        except Exception:
            if len(prefix) <= len(row.tokens):
                raise
            x[b] = torch.nan  # as in `_run_processors`: plain decoding may never come here
    return x


def edit(x: Tensor, row: Sequence, paths: Paths) -> None:
    """Edit x [N, V] in place, in vLLM's order: bias, min_tokens, user processors, penalties."""
    params = row.params
    if params.logit_bias:
        _bias(x, params)
    if params.min_tokens:
        _hold_back_ends(x, row, paths)
    for node in range(len(paths.tokens) if params.logits_processors else 0):
        _run_processors(x, node, params, paths)
    if params.penalised:
        _penalise(x, params, paths)


def _own(logits: Tensor) -> Tensor:
    dtype = torch.float64 if logits.dtype == torch.float64 else torch.float32
    return logits.detach().to(dtype, copy=True)


def _bias(x: Tensor, params: SamplingParams) -> None:
    bias = params.logit_bias or {}
    ids = list(bias)
    if max(ids) >= x.shape[-1]:
        raise RequestError(f"logit_bias names token {max(ids)}, but the target has ids 0 to {x.shape[-1] - 1} only")
    values = torch.tensor(list(bias.values()), dtype=x.dtype)
    x[:, moved(torch.tensor(ids), x.device)] += moved(values, x.device)


def _hold_back_ends(x: Tensor, row: Sequence, paths: Paths) -> None:
    left = row.params.min_tokens - (len(paths.prefix) - paths.prompt_len)
    nodes = [node for node, depth in enumerate(paths.depths()) if depth < left]
    ends = sorted({end for end in (*row.eos_ids, *row.params.stop_token_ids) if 0 <= end < x.shape[-1]})
    if nodes and ends:
        at = moved(torch.tensor(nodes)[:, None], x.device), moved(torch.tensor(ends), x.device)
        x[at] = -torch.inf


def _run_processors(x: Tensor, node: int, params: SamplingParams, paths: Paths) -> None:
    prefix = paths.at(node)
    try:
        for processor in params.logits_processors:
            # a fresh prefix and row each time: a processor that keeps or changes what it is given harms only itself
            x[node] = _checked(processor, processor(list(prefix), x[node].clone()), x[node])
    except Exception:
        if node == 0:
            raise
        # a guess may be a prefix that plain decoding never shows a processor (a grammar, say): bad only if it stands
        x[node] = torch.nan


def _checked(processor: LogitsProcessor, out: object, row: Tensor) -> Tensor:
    if isinstance(out, Tensor) and out.shape == row.shape:
        return out.detach().to(row.dtype)
    got = list(out.shape) if isinstance(out, Tensor) else type(out).__name__
    raise RequestError(f"logits processor {processor!r} returned {got}: it must return a row of [{len(row)}]")


def _penalise(x: Tensor, params: SamplingParams, paths: Paths) -> None:
    ids, seen, counts = _tally(paths, x.shape[-1])
    if not len(ids):
        return
    columns = moved(torch.from_numpy(ids), x.device)
    hit = moved(torch.from_numpy(seen), x.device)  # [N, U]
    count = moved(torch.from_numpy(counts), x.device).to(x.dtype)  # [N, U]
    z = x[:, columns]  # [N, U]
    if params.repetition_penalty != 1.0:
        pushed = torch.where(z > 0, z / params.repetition_penalty, z * params.repetition_penalty)
        z = torch.where(hit, pushed, z)
    z -= params.frequency_penalty * count
    z -= params.presence_penalty * (count > 0).to(x.dtype)
    x[:, columns] = z


def _tally(paths: Paths, vocab: int) -> tuple[Array, Array, Array]:
    """Ids that occur anywhere [U]; which the prefix of each node holds [N, U]; how often its output does [N, U]."""
    n = len(paths.tokens)
    words = np.asarray([*paths.prefix, *paths.tokens[1:]], dtype=np.int64)
    ids, column = np.unique(words, return_inverse=True)
    head, path = column[: len(paths.prefix)], column[len(paths.prefix) :]
    seen = np.zeros((n, len(ids)), dtype=bool)
    counts = np.zeros((n, len(ids)), dtype=np.int64)
    seen[0, head] = True
    counts[0] = np.bincount(head[paths.prompt_len :], minlength=len(ids))
    for node in range(1, n):
        seen[node], counts[node] = seen[paths.parents[node]], counts[paths.parents[node]]
        seen[node, path[node - 1]] = True
        counts[node, path[node - 1]] += 1
    real = (ids >= 0) & (ids < vocab)
    return ids[real], seen[:, real], counts[:, real]
