"""Case 11: cache rewinds: every accept length, an oracle never falls behind, broken rounds can be retried."""

from __future__ import annotations

import pytest
from cases_kit import chain_target, finish, make_engine, output, request

from slipstream.testing import ScriptedToy, ToyTarget, greedy_toy, scripted

TEXT = [3, 4, 5, 6, 7, 8, 9, 10, 11]


def accept_in_turn(lengths: list[int]) -> ScriptedToy:
    """Right for lengths[r] tokens in round r, then wrong."""
    law = scripted(TEXT, 16, 2, 0.9)
    state = {"round": 0}

    def guess(prefix: tuple[int, ...], n: int) -> list[int]:
        right = lengths[state["round"] % len(lengths)]
        state["round"] += 1
        ahead = [TEXT[(len(prefix) - 2 + i) % len(TEXT)] for i in range(n)]
        assert law(prefix)[ahead[0]] == 0.9
        return [t if i < right else (t + 1) % 16 for i, t in enumerate(ahead)]

    return ScriptedToy(guess, 16)


def test_case_11_accept_lengths_in_turn() -> None:
    target = chain_target(TEXT)
    row = request(max_tokens=200)
    deltas = finish(make_engine(target, accept_in_turn([0, 1, 2, 3, 4]), 4), row)
    assert output(row) == (TEXT * 23)[:200]
    assert [len(d.tokens) for d in deltas[:10]] == [1, 2, 3, 4, 5] * 2


def test_case_11_an_oracle_is_accepted_for_the_whole_run() -> None:
    row = request(max_tokens=200)
    finish(make_engine(chain_target(TEXT), greedy_toy(scripted(TEXT, 16, 2, 0.9), 16), 4), row)
    assert row.stats.draft_acceptance_rate == 1.0


@pytest.mark.parametrize("failing", [1, 2, 3])
def test_case_11_a_round_that_raises_can_be_retried(failing: int) -> None:
    target = chain_target(TEXT)
    target.fail_at = frozenset([failing])
    engine = make_engine(target, accept_in_turn([2]), 4)
    row = request(max_tokens=30)
    engine.add(row)
    failures = 0
    while not engine.idle:
        before = (list(row.tokens), row.cached, row.rounds)
        try:
            engine.step()
        except RuntimeError:
            failures += 1
            assert row.tokens == before[0]
            assert row.rounds == before[2]
    assert failures == 1
    assert output(row) == (TEXT * 4)[:30]


def test_case_11_a_prefill_that_raises_starts_again_from_the_prompt() -> None:
    class Stumbling(ToyTarget):
        stumbles = 1

        def prefill(self, slot: int, tokens: list[int]):
            taps = super().prefill(slot, tokens)
            if self.stumbles:
                self.stumbles -= 1
                raise RuntimeError("half-way")
            return taps

    target = Stumbling(scripted(TEXT, 16, 4, 0.9), 16)
    engine = make_engine(target, greedy_toy(target.law, 16), 4)
    row = request(prompt=[1, 2, 1, 2], max_tokens=9)
    engine.add(row)
    with pytest.raises(RuntimeError, match="half-way"):
        engine.step()
    assert not target.cache
    while not engine.idle:
        engine.step()
    assert output(row) == TEXT


def test_case_11_an_aborted_request_leaves_a_clean_row() -> None:
    target = chain_target(TEXT)
    engine = make_engine(target, greedy_toy(target.law, 16), 4, max_rows=1)
    first = request(id=1, max_tokens=100)
    engine.add(first)
    engine.step()
    engine.abort(first)
    assert first.finish_reason == "abort"
    assert not target.cache
    second = request(id=2, max_tokens=9)
    finish(engine, second)
    assert output(second) == TEXT
