"""Case 14: exactly max_tokens, never more and never fewer."""

from __future__ import annotations

import pytest
from cases_kit import chain_target, finish, make_engine, output, request, same_as_plain

from slipstream.drafters.lookup import Lookup, LookupOptions
from slipstream.testing import TreeToy, greedy_toy
from slipstream.types import Draw

TEXT = [3, 4, 5, 3, 4, 5, 6, 7, 3, 4] * 4


def drafters() -> list:
    law = chain_target(TEXT).law
    return [
        greedy_toy(law, 16),
        Lookup(LookupOptions(min_ngram=1), vocab=16),
        TreeToy(law, 16, [Draw.FIXED, Draw.FIXED], depth=3),
    ]


@pytest.mark.parametrize("limit", [*range(1, 11), 39, 40])
@pytest.mark.parametrize("kind", [0, 1, 2])
def test_case_14_exactly_max_tokens(limit: int, kind: int) -> None:
    row = same_as_plain(
        lambda: chain_target(TEXT), drafters()[kind], lambda: request(max_tokens=limit, logprobs=0), nodes=8
    )
    assert len(output(row)) == len(row.emitted) == row.stats.completion_tokens == limit
    assert row.finish_reason == "length"


def test_case_14_drafting_beyond_the_budget_does_not_happen() -> None:
    law = chain_target(TEXT).law
    row = request(max_tokens=4)
    finish(make_engine(chain_target(TEXT), greedy_toy(law, 16), 8), row)
    assert row.stats.num_draft_tokens == 3
    assert row.stats.target_passes == 1


@pytest.mark.parametrize("nodes", [1, 4, 8])
def test_case_14_the_context_is_a_limit_too(nodes: int) -> None:
    law = chain_target(TEXT).law
    row = same_as_plain(
        lambda: chain_target(TEXT, max_len=12), greedy_toy(law, 16), lambda: request(max_tokens=40), nodes=nodes
    )
    assert len(row.tokens) == 12
    assert row.finish_reason == "length"
