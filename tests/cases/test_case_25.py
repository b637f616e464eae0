"""Case 25: a batch with different accept counts in every row, rows that end, join, or draft nothing."""

from __future__ import annotations

from collections import Counter

import pytest
from cases_kit import finish, make_engine, output, request, total_variation

from slipstream.testing import RandomLaw, SampledToy, ScriptedToy, ToyTarget

VOCAB = 16
LAW = RandomLaw(VOCAB, 21)
RIGHT = {0: 0, 1: 1, 2: 3, 3: 4}  # tokens right per round, by request; request 4 drafts nothing


def ragged(prefix: tuple[int, ...], n: int) -> list[int]:
    who = prefix[0]
    if who not in RIGHT:
        return []
    found: list[int] = []
    for i in range(n):
        row = LAW((*prefix, *found))
        best = max(range(VOCAB), key=lambda t: (row[t], -t))
        found.append(best if i < RIGHT[who] else (best + 1) % VOCAB)
    return found


def rows(**params) -> list:
    return [request(i, [i, *range(1, 2 + 3 * i)], max_tokens=7 + 5 * i, **params) for i in range(5)]


@pytest.mark.parametrize("max_rows", [1, 2, 3, 5])
@pytest.mark.parametrize("prefill_chunk", [2, 512])
def test_case_25_greedy_rows_equal_their_solo_runs(max_rows: int, prefill_chunk: int) -> None:
    together = rows()
    options = {"max_rows": max_rows, "prefill_chunk": prefill_chunk}
    finish(make_engine(ToyTarget(LAW, VOCAB), ScriptedToy(ragged, VOCAB), 4, **options), *together)
    for row in together:
        alone = rows()[row.id]
        finish(make_engine(ToyTarget(LAW, VOCAB)), alone)
        assert output(row) == output(alone)
        if row.id in (0, 4):
            assert row.stats.mean_acceptance_length == 1.0
        else:
            assert row.stats.mean_acceptance_length > 1.5
    assert together[4].stats.num_draft_tokens == 0


def test_case_25_rows_join_between_rounds() -> None:
    engine = make_engine(ToyTarget(LAW, VOCAB), ScriptedToy(ragged, VOCAB), 4, max_rows=3)
    late = rows()
    for row in late[:2]:
        engine.add(row)
    for _ in range(2):
        engine.step()
    finish(engine, *late[2:])
    for row in late:
        alone = rows()[row.id]
        finish(make_engine(ToyTarget(LAW, VOCAB)), alone)
        assert output(row) == output(alone)


@pytest.mark.parametrize("rule", ["chain", "block"])
def test_case_25_sampled_rows_keep_their_own_law(rule: str) -> None:
    """Every row has its own p and q, so a swapped row of q or of cache would show."""
    guess = RandomLaw(VOCAB, 22)
    counts = [Counter() for _ in range(3)]
    n = 1200
    many = [request(3 * i + who, [who], temperature=1.0, seed=i, max_tokens=2) for i in range(n) for who in range(3)]
    finish(make_engine(ToyTarget(LAW, VOCAB, max_rows=48), SampledToy(guess, VOCAB), 3, rule, max_rows=48), *many)
    for row in many:
        counts[row.id % 3][output(row)[1]] += 1
    for who in range(3):
        second = [0.0] * VOCAB
        for first, weight in enumerate(LAW((who,))):
            for t, share in enumerate(LAW((who, first))):
                second[t] += weight * share
        assert total_variation(counts[who], second) < 0.07
