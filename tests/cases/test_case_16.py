"""Case 16: stop strings inside a block, across blocks, inside a token; text, ids, logprobs and stream agree."""

from __future__ import annotations

import pytest
from cases_kit import Bytes, finish, make_engine, outcome, output, request, same_as_plain

from slipstream.testing import ToyTarget, greedy_toy, scripted

TEXT = list(b"one two stop! three four")


def target() -> ToyTarget:
    return ToyTarget(scripted(TEXT, 128, 2, 0.9), 128)


@pytest.mark.parametrize("nodes", [1, 2, 3, 5, 7, 16])
@pytest.mark.parametrize("shown", [False, True])
@pytest.mark.parametrize(
    ("stop", "text"),
    [
        (["ne"], "o"),
        (["one two stop"], ""),
        (["stop"], "one two "),
        (["three", "two"], "one "),
        (["two", "e t"], "on"),
        (["zebra", "r "], "one two stop! three fou" + "?"),
    ],
)
def test_case_16_stop_strings_in_a_block(nodes: int, shown: bool, stop: list[str], text: str) -> None:
    oracle = greedy_toy(target().law, 128)

    def make():
        return request(max_tokens=24, stop=stop, include_stop_str_in_output=shown, logprobs=1)

    row = same_as_plain(target, oracle, make, nodes=nodes, detokenizer=Bytes)
    if text.endswith("?"):
        assert row.finish_reason == "length"
        assert row.text == bytes(TEXT).decode()
        return
    assert row.finish_reason == "stop"
    assert row.stop_reason in stop
    assert row.text == (text + row.stop_reason if shown else text)
    whole = bytes(output(row)).decode()
    assert whole.endswith(row.stop_reason)
    assert whole == text + row.stop_reason


def test_case_16_nothing_streamed_is_withdrawn() -> None:
    engine = make_engine(target(), greedy_toy(target().law, 128), 16, detokenizer=Bytes)
    row = request(max_tokens=24, stop=["stop!!", "stop! three"])
    deltas = finish(engine, row)
    streamed = ""
    for delta in deltas:
        streamed += delta.text
        assert "one two ".startswith(streamed)
    assert outcome(row, deltas)[1] == streamed == "one two "


def test_case_16_a_stop_that_is_part_of_a_token() -> None:
    class Words:
        """Tokens are words: the stop string lies inside one."""

        words = ("", "say ", "unstoppable ", "things ")

        def push(self, token: int) -> str:
            return self.words[token]

        def flush(self) -> str:
            return ""

    for nodes in (0, 1, 4):
        toy = ToyTarget(scripted([1, 2, 3], 4, 2, 0.9), 4)
        row = request(prompt=[1, 1], stop=["stop"], max_tokens=9)
        finish(make_engine(toy, greedy_toy(toy.law, 4), nodes, detokenizer=Words), row)
        assert row.text == "say un"
        assert output(row) == [1, 2]
