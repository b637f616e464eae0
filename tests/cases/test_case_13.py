"""Case 13: an end-of-text token inside an accepted block ends the text there; a refused one does nothing."""

from __future__ import annotations

import pytest
from cases_kit import Bytes, chain_target, finish, make_engine, output, request, same_as_plain

from slipstream.testing import ScriptedToy, greedy_toy

TEXT = [3, 4, 5, 6, 7, 8]


@pytest.mark.parametrize("nodes", range(1, 9))
@pytest.mark.parametrize("eos", [(5,), (9, 5), (8, 5, 6)])
def test_case_13_ends_at_the_token_wherever_it_falls(nodes: int, eos: tuple[int, ...]) -> None:
    def make():
        return request(eos=eos, logprobs=2)

    oracle = greedy_toy(chain_target(TEXT).law, 16)
    row = same_as_plain(lambda: chain_target(TEXT), oracle, make, nodes=nodes, detokenizer=Bytes)
    assert output(row) == [3, 4, 5]
    assert row.finish_reason == "stop"
    assert row.text == "\x03\x04"
    assert len(row.emitted) == row.stats.completion_tokens == 3


@pytest.mark.parametrize("nodes", [1, 3, 8])
def test_case_13_a_refused_end_has_no_effect(nodes: int) -> None:
    ender = ScriptedToy(lambda prefix, n: [15] * n, 16)
    row = same_as_plain(lambda: chain_target(TEXT), ender, lambda: request(eos=(15,), max_tokens=12), nodes=nodes)
    assert row.finish_reason == "length"


@pytest.mark.parametrize("nodes", [1, 3, 8])
def test_case_13_ignore_eos(nodes: int) -> None:
    oracle = greedy_toy(chain_target(TEXT).law, 16)
    row = same_as_plain(
        lambda: chain_target(TEXT), oracle, lambda: request(eos=(5,), ignore_eos=True, max_tokens=12), nodes=nodes
    )
    assert output(row) == TEXT * 2


def test_case_13_nothing_after_the_end_stays_in_the_cache() -> None:
    target = chain_target(TEXT)
    engine = make_engine(target, greedy_toy(target.law, 16), 8)
    finish(engine, request(eos=(5,)))
    assert not target.cache
