"""Case 19: penalties and processors see exactly the prefix of each place, through the whole engine."""

from __future__ import annotations

import pytest
import torch
from cases_kit import chain_target, finish, make_engine, output, request, same_as_plain

from slipstream.testing import ToyTarget, every_toy, greedy_toy, scripted

LOOP = [3, 4]
SETTINGS = [
    {"frequency_penalty": 0.5},
    {"presence_penalty": 0.5},
    {"repetition_penalty": 1.3},
    {"frequency_penalty": 1.5, "repetition_penalty": 1.1},
    {"min_tokens": 7},
]


def no_repeat_3gram(prefix, row: torch.Tensor) -> torch.Tensor:
    """Ban what would complete a 3-gram that is already there."""
    banned = [prefix[i + 2] for i in range(len(prefix) - 2) if list(prefix[i : i + 2]) == list(prefix[-2:])]
    row = row.clone()
    row[banned] = -torch.inf
    return row


def force_nine_after_three(prefix, row: torch.Tensor) -> torch.Tensor:
    """A thinking budget: after three tokens since the prompt, token 9 is forced once."""
    if len(prefix) - 2 == 3:
        forced = torch.full_like(row, -torch.inf)
        forced[9] = 0.0
        return forced
    return row


SETTINGS += [{"logits_processors": [no_repeat_3gram]}, {"logits_processors": [force_nine_after_three]}]


@pytest.mark.parametrize("nodes", range(1, 7))
@pytest.mark.parametrize("every", [0, 2])
@pytest.mark.parametrize("setting", range(len(SETTINGS)))
def test_case_19_greedy_ids_equal_plain(nodes: int, every: int, setting: int) -> None:
    def target() -> ToyTarget:
        return ToyTarget(scripted(LOOP, 16, 2, 0.5), 16)

    unpenalised = every_toy(target().law, 16, every)
    row = same_as_plain(target, unpenalised, lambda: request(max_tokens=14, eos=(4,), **SETTINGS[setting]), nodes=nodes)
    if SETTINGS[setting].get("logits_processors") == [force_nine_after_three]:
        assert output(row)[:1] == [3]  # the end of text (4) comes before the budget: nothing is forced behind it
    if "min_tokens" in SETTINGS[setting]:
        assert len(output(row)) >= 7


@pytest.mark.parametrize("nodes", [1, 3, 6])
def test_case_19_a_forced_token_appears_at_its_place(nodes: int) -> None:
    target = chain_target(LOOP)
    row = request(max_tokens=8, logits_processors=[force_nine_after_three])
    finish(make_engine(target, greedy_toy(target.law, 16), nodes), row)
    assert output(row)[3] == 9
    assert output(row)[:3] == [3, 4, 3]


@pytest.mark.parametrize("nodes", [1, 4])
def test_case_19_the_recorded_context_of_each_emitted_token_is_its_prefix(nodes: int) -> None:
    seen: set[tuple[int, ...]] = set()

    def record(prefix, row: torch.Tensor) -> torch.Tensor:
        seen.add(tuple(prefix))
        return row

    target = chain_target([3, 4, 5])
    row = request(max_tokens=10, logits_processors=[record])
    finish(make_engine(target, every_toy(target.law, 16, 2), nodes), row)
    for i in range(10):
        assert tuple(row.tokens[: row.prompt_len + i]) in seen
