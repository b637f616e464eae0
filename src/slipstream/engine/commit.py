"""The commit of a round: a verdict becomes emitted tokens, text, counters and a cache path, row by row.

One transfer brings the verdict to the host; nothing here decides what is accepted.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from slipstream.devices import Faults, listed, moved
from slipstream.engine.stats import Clock
from slipstream.sampling import token_logprobs
from slipstream.types import Delta, Draft, Laws, Rngs, Scores, Sequence, Token, Verdict

_NONE_YET = Laws()


@dataclass
class Round:
    """What one round has so far."""

    rows: list[Sequence]
    rngs: Rngs
    draft: Draft
    clock: Clock = field(default_factory=Clock)
    scores: Scores | None = None
    laws: Laws = _NONE_YET
    verdict: Verdict | None = None


@dataclass(frozen=True)
class Found:
    """A verdict for one row, on the host: accepted nodes and their ids, the token after them, and how many tokens
    may be trusted (all, or those before the first row of logits that was not finite)."""

    drafted: int
    path: list[int]
    tokens: list[int]  # accepted ids, then the target's own
    good: int


@dataclass(frozen=True)
class RoundTrace:
    """One row's round for a viewer: drafted ids and parents (root included), accepted path, tokens offered and kept."""

    sequence: Sequence
    tokens: list[int]
    parents: list[int]
    path: list[int]
    next_token: int
    kept: int


def to_host(work: Round, faults: Faults | None = None) -> list[Found]:
    """Bring the verdict over: in one transfer from an accelerator, each waits for it. Raise the first noted refusal."""
    draft, verdict, bad = work.draft, work.verdict, work.laws.bad
    assert verdict is not None
    if verdict.path.is_cpu and draft.tokens.is_cpu:
        flags = [None] * len(work.rows) if bad is None else bad.tolist()
        if draft.nodes == 1:  # nothing was drafted: only one number of each row is news
            tokens = listed(verdict.next_token)
            return [Found(0, [], [t], 0 if marks and marks[0] else 1) for t, marks in zip(tokens, flags, strict=True)]
        lists = map(listed, (verdict.accepted, verdict.next_token, draft.length, verdict.path, draft.tokens))
        return [_found(*line) for line in zip(*lists, flags, strict=True)]
    nodes, depth = draft.nodes, verdict.path.shape[1]
    columns = [verdict.accepted[:, None], verdict.next_token[:, None], draft.length[:, None], verdict.path]
    columns += [draft.tokens] if bad is None else [draft.tokens, bad.long()]
    found = []
    for line in _read(torch.cat(columns, 1), faults):
        path, ids = line[3 : 3 + depth], line[3 + depth : 3 + depth + nodes]
        marks = None if bad is None else line[3 + depth + nodes :]
        found.append(_found(line[0], line[1], line[2], path, ids, marks))
    return found


def _read(table: torch.Tensor, faults: Faults | None) -> list[list[int]]:
    """Read a table [B, W] and the refusals noted on the way, at once."""
    noted = None if faults is None else faults.flags()
    if faults is None or noted is None:
        lines: list[list[int]] = table.tolist()
        return lines
    size, width = table.numel(), table.shape[1]
    flat = torch.cat([table.flatten(), noted]).tolist()
    faults.settle(flat[size:])
    return [flat[at : at + width] for at in range(0, size, width)]


def _found(
    accepted: int, next_token: int, length: int, path: list[int], ids: list[int], bad: list[int] | None
) -> Found:
    """Read one row of a verdict; `ids` and `bad` are by node."""
    path, good = path[:accepted], accepted + 1
    if bad is not None:
        good = next((at for at, node in enumerate([0, *path]) if bad[node]), good)
    return Found(length - 1, path, [*(ids[node] for node in path), next_token], good)


def grow(row: Sequence, found: Found, by: str) -> tuple[Delta, list[int]]:
    """Append what the verdict gives, up to an ending; return the delta and the path to keep in the cache."""
    accepted = len(found.path)
    taken = row.ending.take(found.tokens[: found.good])
    tokens = [
        Token(t, by, depth) if depth <= accepted else Token(t, "target", 0)
        for depth, t in enumerate(found.tokens[: taken.kept], 1)
    ]
    path = found.path[: max(0, taken.kept - 1)]  # the last kept token is the next root: not in the cache
    text, reason = taken.text, taken.reason
    # a bad row further on is the next round's root: only there is it what plain decoding would meet
    if not found.good:
        reason, text = "error", text + row.ending.close()
        row.error = "the target's logits are not finite (NaN, +inf or every token masked)"
    row.rounds += 1
    row.tokens.extend(t.id for t in tokens)
    row.cached += 1 + len(path)
    row.emitted.extend(tokens)
    row.text += text
    row.finish_reason, row.stop_reason = reason, taken.stop_reason
    row.stats.record_round(found.drafted, [t.depth for t in tokens if t.depth], len(tokens))
    return Delta(row, tokens, text, reason), path


def add_logprobs(work: Round, b: int, tokens: list[Token], path: list[int], processed: bool) -> None:
    """Record log-probabilities of row b's emitted tokens: the target's, of the nodes that emitted them."""
    assert work.scores is not None
    k = work.rows[b].params.logprobs
    if k is None or not tokens:
        return
    logits = work.scores.logits
    nodes = moved(torch.tensor([0, *path]), logits.device)
    laws: Laws | None = None
    if processed:
        p, points = work.laws.probs, work.laws.points
        laws = Laws(None if p is None else p[b, nodes], None if points is None else points[b, nodes])
    ids = [t.id for t in tokens]
    for token, (own, top) in zip(tokens, token_logprobs(logits[b, nodes], ids, k, processed=laws), strict=True):
        token.logprob, token.top_logprobs = own, top


def trace_of(work: Round, b: int, found: Found, kept: int) -> RoundTrace:
    """Describe row b's round for a viewer."""
    nodes = found.drafted + 1
    tokens, parents = (listed(t)[b][:nodes] for t in (work.draft.tokens, work.draft.parents))
    return RoundTrace(work.rows[b], tokens, parents, found.path, found.tokens[-1], kept)
