"""Case 07: the first drafted token is checked like any other."""

from __future__ import annotations

import pytest
from cases_kit import chain_target, finish, make_engine, output, request

from slipstream.drafters.lookup import Lookup, LookupOptions
from slipstream.testing import never_toy


@pytest.mark.parametrize("nodes", [1, 2, 5])
def test_case_07_a_one_token_copy_is_refused_when_the_target_disagrees(nodes: int) -> None:
    target = chain_target([2, 5, 6, 7])
    row = request(prompt=[1, 1, 1], max_tokens=3)
    target.law = lambda prefix: [0.9 if t == [2, 5, 6][len(prefix) - 3] else 0.1 / 15 for t in range(16)]
    finish(make_engine(target, Lookup(LookupOptions(min_ngram=1), vocab=16), nodes), row)
    assert output(row) == [2, 5, 6]
    assert row.stats.num_accepted_tokens == 0
    assert row.stats.num_draft_tokens > 0


@pytest.mark.parametrize("nodes", range(1, 6))
def test_case_07_never_right_emits_one_token_a_round(nodes: int) -> None:
    target = chain_target([3, 4, 5, 6, 7])
    row = request(max_tokens=12)
    deltas = finish(make_engine(target, never_toy(target.law, 16), nodes), row)
    assert [len(d.tokens) for d in deltas] == [1] * 12
    assert row.stats.num_accepted_tokens == 0
    assert output(row) == ([3, 4, 5, 6, 7] * 3)[:12]
