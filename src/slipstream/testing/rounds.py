"""One round without an engine, and the composition of rounds: the exact law of what a drafter and a rule emit.

A round is a function of the committed prefix that returns {emitted tokens: probability}. Rounds compose when each is
valid, so the law of the first n tokens of a run follows from enumerating one round per prefix.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from slipstream.testing.toys import Law
from slipstream.testing.trace import Trace, TraceRngs, enumerate_traces
from slipstream.types import Draft, Drafter, Laws, SamplingParams, Sequence, VerifyRule

Tokens = tuple[int, ...]
Round = Callable[[Tokens], Mapping[Tokens, float]]

_WARM = SamplingParams(temperature=1.0)


def rows_after(law: Law, prefix: Tokens, draft: Draft) -> torch.Tensor:
    """Return `law` after each node of a draft whose rows all continue `prefix` -> float64 [B, N, V]."""
    tokens, parents, length = draft.tokens.tolist(), draft.parents.tolist(), draft.length.tolist()
    rows = []
    for b in range(len(tokens)):
        paths = [prefix]
        for node in range(1, draft.nodes):
            paths.append((*paths[parents[b][node]], tokens[b][node]) if node < length[b] else prefix)
        rows.append([law(path) for path in paths])
    return torch.tensor(rows, dtype=torch.float64)


def make_round(law: Law, drafter: Drafter, rule: VerifyRule, budget: int, width: int = 32) -> Round:
    """Return the round in which `drafter` guesses and `rule` verifies against `law`.

    `width` branches are run as rows of one batch: the result does not depend on it, the time does.
    """

    def run(traces: list[Trace], prefix: Tokens) -> list[Tokens]:
        rows = [Sequence(id=b, tokens=list(prefix), prompt_len=1, params=_WARM) for b in range(len(traces))]
        for row in rows:
            drafter.forget(row)
        drafter.observe(rows, [row.tokens[:-1] for row in rows], [{} for _ in rows])
        rngs = TraceRngs(traces, [len(prefix)] * len(traces), shared_noise=rule.shared_noise)
        draft = drafter.propose(rows, [budget] * len(traces), rngs)
        verdict = rule(draft, Laws(rows_after(law, prefix, draft)), rngs)
        paths = [path[:n] for path, n in zip(verdict.path.tolist(), verdict.accepted.tolist(), strict=True)]
        last = verdict.next_token.tolist()
        return [(*draft.tokens[b, path].tolist(), last[b]) for b, path in enumerate(paths)]

    return lambda prefix: enumerate_traces(lambda traces: run(traces, prefix), width)


def run_law(one_round: Round, prompt: Tokens, n: int) -> dict[Tokens, float]:
    """Return the exact law of the first `n` tokens of chained rounds."""
    known: dict[Tokens, dict[Tokens, float]] = {}

    def after(prefix: Tokens) -> dict[Tokens, float]:
        made = len(prefix) - len(prompt)
        if made >= n:
            return {prefix[len(prompt) :][:n]: 1.0}
        if prefix not in known:
            law: dict[Tokens, float] = {}
            for emitted, weight in one_round(prefix).items():
                for tokens, share in after(prefix + emitted).items():
                    law[tokens] = law.get(tokens, 0.0) + weight * share
            known[prefix] = law
        return known[prefix]

    return after(prompt)


def plain_law(law: Law, prompt: Tokens, n: int) -> dict[Tokens, float]:
    """Return the exact law of `n` tokens of plain decoding."""
    found: dict[Tokens, float] = {(): 1.0}
    for _ in range(n):
        found = {
            (*tokens, t): weight * p
            for tokens, weight in found.items()
            for t, p in enumerate(law((*prompt, *tokens)))
            if p > 0
        }
    return found


def marginals(law: Mapping[Tokens, float], vocab: int) -> list[list[float]]:
    """Return the law of the token at each place."""
    n = max(len(tokens) for tokens in law)
    found = [[0.0] * vocab for _ in range(n)]
    for tokens, weight in law.items():
        for at, token in enumerate(tokens):
            found[at][token] += weight
    return found


def distance(a: Mapping[Tokens, float], b: Mapping[Tokens, float]) -> float:
    """Return the total variation between two laws."""
    return 0.5 * sum(abs(a.get(k, 0.0) - b.get(k, 0.0)) for k in a.keys() | b.keys())


def mean_emitted(law: Mapping[Tokens, float]) -> float:
    """Return the expected number of tokens of a round, the target's own included."""
    return sum(len(tokens) * weight for tokens, weight in law.items())
