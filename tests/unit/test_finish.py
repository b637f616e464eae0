"""Endings: every token offered in one block must end exactly where tokens offered one by one would."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from slipstream.engine.finish import Ending
from slipstream.types import SamplingParams


class Letters:
    """A detokenizer whose tokens are letters; token 0 is an incomplete character that shows with the next one."""

    def __init__(self) -> None:
        self.pending = ""

    def push(self, token: int) -> str:
        if token == 0:
            self.pending += "\N{REPLACEMENT CHARACTER}"
            return ""
        text, self.pending = self.pending + chr(96 + token), ""
        return text

    def flush(self) -> str:
        text, self.pending = self.pending, ""
        return text


def run(params: SamplingParams, ids: list[int], blocks: list[int], eos: tuple[int, ...] = (), room: int | None = None):
    """Feed ids in blocks of the given sizes (cycled); return ids kept, joined text, reason, stop reason."""
    ending = Ending(params, eos, room=room, detokenizer=Letters())
    kept, text, pieces = [], "", 0
    while ids:
        size = blocks[pieces % len(blocks)]
        block, ids = ids[:size], ids[size:]
        taken = ending.take(block)
        kept += block[: taken.kept]
        text += taken.text
        pieces += 1
        if taken.reason:
            return kept, text, taken.reason, taken.stop_reason
    return kept, text + ending.close(), None, None


def word(text: str) -> list[int]:
    return [ord(c) - 96 for c in text]


@pytest.mark.parametrize("block", range(1, 9))
def test_end_of_text_inside_a_block(block: int) -> None:
    params = SamplingParams(max_tokens=50)
    assert run(params, word("abcdef"), [block], eos=(3,)) == (word("abc"), "ab", "stop", None)
    assert run(params, word("abcdef"), [block], eos=(5, 3)) == (word("abc"), "ab", "stop", None)
    ignoring = SamplingParams(max_tokens=50, ignore_eos=True)
    assert run(ignoring, word("abcdef"), [block], eos=(3,))[0] == word("abcdef")


@pytest.mark.parametrize("block", range(1, 9))
def test_stop_ids_say_which_and_wait_for_min_tokens(block: int) -> None:
    params = SamplingParams(max_tokens=50, stop_token_ids=[2], min_tokens=3)
    assert run(params, word("abcbde"), [block]) == (word("abcb"), "abc", "stop", 2)
    shown = SamplingParams(max_tokens=50, stop_token_ids=[2], min_tokens=3, include_stop_str_in_output=True)
    assert run(shown, word("abcbde"), [block]) == (word("abcb"), "abcb", "stop", 2)


@pytest.mark.parametrize("block", range(1, 9))
@pytest.mark.parametrize(
    ("stop", "kept", "text", "reason"),
    [
        (["cd"], "abcd", "ab", "cd"),
        (["bcde", "cd"], "abcd", "ab", "cd"),  # the one that ends first wins
        (["d", "cd"], "abcd", "ab", "cd"),  # the longest of those that end together
        (["a"], "a", "", "a"),
        (["xx", "f"], "abcdef", "abcde", "f"),
    ],
)
def test_stop_strings(block: int, stop: list[str], kept: str, text: str, reason: str) -> None:
    assert run(SamplingParams(max_tokens=50, stop=stop), word("abcdefg"), [block]) == (word(kept), text, "stop", reason)
    shown = SamplingParams(max_tokens=50, stop=stop, include_stop_str_in_output=True)
    assert run(shown, word("abcdefg"), [block])[1] == kept


def test_text_that_may_be_a_stop_string_is_held_back_and_released() -> None:
    ending = Ending(SamplingParams(stop=["abx"]), detokenizer=Letters())
    assert [ending.take([t]).text for t in word("abab")] == ["", "", "ab", ""]
    assert ending.take(word("c")).text == "abc"
    assert ending.take(word("ab")).text == ""
    assert ending.close() == "ab"


def test_length_wins_nothing_over_a_stop_at_the_same_token() -> None:
    assert run(SamplingParams(max_tokens=3), word("abc"), [8], eos=(3,))[2] == "stop"
    assert run(SamplingParams(max_tokens=3, stop="c"), word("abc"), [8])[2:] == ("stop", "c")
    assert run(SamplingParams(max_tokens=3), word("abcd"), [8]) == (word("abc"), "abc", "length", None)
    assert run(SamplingParams(max_tokens=9), word("abcd"), [8], room=2) == (word("ab"), "ab", "length", None)


def test_an_unfinished_character_is_shown_at_the_end_only() -> None:
    assert run(SamplingParams(max_tokens=2), [1, 0, 2], [1])[1] == "a\N{REPLACEMENT CHARACTER}"
    assert run(SamplingParams(max_tokens=50), [1, 0, 2], [1], eos=(2,))[1] == "a\N{REPLACEMENT CHARACTER}"


@settings(max_examples=300, deadline=None)
@given(
    ids=st.lists(st.integers(0, 4), min_size=1, max_size=24),
    blocks=st.lists(st.integers(1, 9), min_size=1, max_size=6),
    stop=st.lists(st.text("abcd", min_size=1, max_size=4), max_size=3),
    limit=st.integers(1, 24),
    minimum=st.integers(0, 5),
    shown=st.booleans(),
)
def test_blocks_end_where_single_tokens_end(ids, blocks, stop, limit, minimum, shown) -> None:
    params = SamplingParams(
        max_tokens=limit,
        min_tokens=min(minimum, limit),
        stop=stop,
        stop_token_ids=[4],
        include_stop_str_in_output=shown,
    )
    assert run(params, ids, blocks) == run(params, ids, [1])
