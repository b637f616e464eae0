"""Case 34: counters mean one thing, and are taken after the end has been cut."""

from __future__ import annotations

import json

import pytest
from cases_kit import chain_target, finish, make_engine, output, request

from slipstream.testing import NoneToy, ScriptedToy, TreeToy, greedy_toy
from slipstream.types import Draw

TEXT = [3, 4, 5, 6, 7, 8, 9, 10]


def scripted_draft(right: list[bool]) -> ScriptedToy:
    return ScriptedToy(
        lambda prefix, n: [TEXT[(len(prefix) - 2 + i) % 8] + (0 if ok else 1) for i, ok in enumerate(right[:n])],
        16,
    )


def first_round(drafter, nodes: int, **params):
    engine = make_engine(chain_target(TEXT), drafter, nodes)
    row = request(**params)
    engine.add(row)
    engine.step()
    return row


def test_case_34_only_the_leading_run_counts() -> None:
    stats = first_round(scripted_draft([True, False, True]), 3).stats
    assert (stats.num_accepted_tokens, stats.num_draft_tokens, stats.completion_tokens) == (1, 3, 2)
    assert stats.num_accepted_tokens_per_pos == [1]


def test_case_34_full_acceptance_adds_the_bonus_to_the_emitted_only() -> None:
    stats = first_round(scripted_draft([True] * 3), 3).stats
    assert (stats.num_accepted_tokens, stats.num_draft_tokens, stats.completion_tokens) == (3, 3, 4)
    assert stats.mean_acceptance_length == 4.0
    assert stats.draft_acceptance_rate == 1.0


def test_case_34_nothing_behind_an_end_is_counted() -> None:
    row = first_round(scripted_draft([True] * 5), 5, eos=(5,))
    assert output(row) == [3, 4, 5]
    stats = row.stats
    assert (stats.num_accepted_tokens, stats.num_draft_tokens, stats.completion_tokens) == (3, 5, 3)
    assert stats.num_accepted_tokens_per_pos == [1, 1, 1]


def test_case_34_a_tree_counts_depths() -> None:
    target = chain_target(TEXT)
    tree = TreeToy(target.law, 16, [Draw.FIXED, Draw.FIXED], depth=2)
    stats = first_round(tree, 6).stats
    assert (stats.num_accepted_tokens, stats.num_draft_tokens, stats.completion_tokens) == (2, 6, 3)
    assert stats.num_accepted_tokens_per_pos == [1, 1]


@pytest.mark.parametrize("drafter", [NoneToy(16), greedy_toy(chain_target(TEXT).law, 16)])
def test_case_34_sums_and_valid_json(drafter) -> None:
    row = request(max_tokens=17)
    deltas = finish(make_engine(chain_target(TEXT), drafter, 4), row)
    stats = row.stats
    assert sum(len(d.tokens) for d in deltas) == stats.completion_tokens == 17
    assert stats.completion_tokens == stats.num_accepted_tokens + sum(t.by == "target" for t in row.emitted)
    assert sum(stats.num_accepted_tokens_per_pos) == stats.num_accepted_tokens
    parsed = json.loads(json.dumps(stats.as_dict(), allow_nan=False))
    if drafter.name == "toy-none":
        assert parsed["num_drafts"] == parsed["num_draft_tokens"] == 0
        assert parsed["draft_acceptance_rate"] == 0.0
        assert parsed["mean_acceptance_length"] == 1.0
    assert parsed["target_passes"] == len(deltas)
    assert min(v for k, v in parsed.items() if k.endswith("seconds")) >= 0
