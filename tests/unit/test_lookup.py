"""Drafter `lookup`: what it copies, what it costs, what it keeps."""

import random

import pytest

from slipstream.drafters.lookup import Lookup, LookupOptions, NgramIndex, _grown
from slipstream.types import RequestError, SamplingParams, Sequence


def row_of(tokens, *, row_id=0, eos=(), **params):
    return Sequence(row_id, list(tokens), len(tokens), SamplingParams(**params), eos_ids=eos)


def guess(tokens, budget=8, *, low=1, high=4, reach=0, **row):
    drafter = Lookup(LookupOptions(min_ngram=low, max_ngram=high, reach=reach))
    return drafter.guess(row_of(tokens, **row), budget)


def slow_guess(tokens, budget, low, high):
    """The definition: copy what followed the longest, then most recent, earlier tail; a periodic tail goes on."""
    root = len(tokens) - 1
    for n in range(min(high, len(tokens)), low - 1, -1):
        for end in range(root - 1, n - 2, -1):
            if tokens[end - n + 1 : end + 1] != tokens[root - n + 1 :]:
                continue
            period = root - end
            copy = tokens[end + 1 :]
            if len(tokens) >= 2 * period and tokens[-period:] == tokens[-2 * period : -period]:
                while len(copy) < budget:
                    copy = copy + copy[-period:]
            return copy[:budget]
    return []


def test_copies_what_followed_the_longest_most_recent_match():
    assert guess([1, 2, 3, 4, 9, 2, 3], 2) == [4, 9]
    assert guess([1, 2, 5, 8, 1, 2, 6, 8, 1, 2], 2) == [6, 8], "the most recent of two"
    assert guess([7, 1, 2, 5, 0, 0, 9, 1, 2, 6, 0, 0, 7, 1, 2], 1) == [5], "the longest before the most recent"


@pytest.mark.parametrize("seed", range(6))
def test_equals_the_definition_on_random_texts(seed):
    rng = random.Random(seed)
    for _ in range(150):
        low = rng.randint(1, 3)
        high = rng.randint(low, low + 4)
        text = [rng.randrange(rng.choice((2, 3, 6))) for _ in range(rng.randint(1, 60))]
        budget = rng.randint(0, 12)
        assert guess(text, budget, low=low, high=high) == slow_guess(text, budget, low, high)[:budget], (
            text,
            low,
            high,
        )


@pytest.mark.parametrize("seed", range(3))
def test_observed_piecemeal_equals_built_from_scratch(seed):
    rng = random.Random(seed)
    text = [rng.randrange(4) for _ in range(200)]
    drafter, row = Lookup(), row_of(text[:1])
    at = 0
    while at < len(text) - 1:
        step = rng.randint(0, 5)
        new = text[at : min(at + step, len(text) - 1)]
        at += len(new)
        row.tokens[:] = text[: at + 1]
        drafter.observe([row], [new], [{}])
        assert drafter.guess(row, 6) == Lookup().guess(row_of(row.tokens), 6)


def test_single_tokens_are_not_indexed_before_one_comes_again():
    index = NgramIndex(LookupOptions(max_ngram=4))
    for token in range(5):
        index.extend([token])
        assert index.look(token + 1, 3) == ([], 0)
    assert not index.last
    assert index.look(1, 3) == ([2], 1)
    assert len(index.last) == 1 + 2 + 3 + 4 + 4


def test_a_repeated_block_is_copied_as_far_as_the_budget_goes():
    block = [3, 1, 4, 1, 5, 9]
    for n in (12, 14, 30):
        text = (block * 10)[:n]
        assert guess(text, 20, low=2) == (block * 20)[n : n + 20]


def test_a_repeat_not_yet_seen_twice_in_full_is_not_continued():
    assert guess([1, 2, 3, 4, 5, 1, 2], 20, low=2) == [3, 4, 5, 1, 2]


@pytest.mark.parametrize("reach, right", [(0, 9), (1, 2), (2, 5), (3, 8)])
def test_a_short_match_is_trusted_for_less(reach, right):
    text = [1, 2, 3, *range(10, 30), 1, 2, 3]
    assert guess(text, 9, reach=reach) == list(range(10, 10 + right))
    assert guess(text, 9, high=3, reach=reach) == list(range(10, 19)), "a match of max_ngram tokens is not short"


def test_stops_at_a_stop_id_and_before_an_id_outside_the_vocabulary():
    assert guess([7, 8, 5, 6, 0, 7, 8], stop_token_ids=(5,)) == [5]
    row = row_of([7, 8, 5, 99, 0, 7, 8])
    assert Lookup(vocab=50).guess(row, 4) == [5]
    assert Lookup(vocab=50).guess(row_of([7, 8, -1, 99, 0, 7, 8]), 4) == []


def test_a_row_that_was_never_observed_or_came_back_different_is_indexed_anew():
    drafter = Lookup()
    row = row_of([1, 2, 3, 4, 1, 2])
    assert drafter.guess(row, 2) == [3, 4]
    row.tokens[:] = [1, 2, 8, 9, 5, 6, 7, 1, 2]
    assert drafter.guess(row, 2) == [8, 9]
    row.tokens[:] = [1, 2, 5, 1, 2]
    assert drafter.guess(row, 1) == [5]


def test_two_ngrams_with_one_hash_are_told_apart():
    index = NgramIndex(LookupOptions(min_ngram=2, max_ngram=2))
    index.extend([1, 2, 3, 4, 5])
    (key,) = _grown(index._hashes, 7)[1:]
    index.last[key] = 3  # as if (3, 4) had the hash of (5, 7)
    assert index.follow(7, 4) == []


class Counted(dict):
    """A table that counts how often it is touched."""

    touched = 0

    def get(self, key, default=None):
        self.touched += 1
        return super().get(key, default)

    def __setitem__(self, key, value):
        self.touched += 1
        super().__setitem__(key, value)


class Watched(list):
    """A list that counts the elements read from it and refuses to be scanned."""

    read = 0

    def __getitem__(self, at):
        found = super().__getitem__(at)
        self.read += len(found) if isinstance(at, slice) else 1
        return found

    def __iter__(self):
        raise AssertionError("the whole text was scanned")

    def __contains__(self, value):
        raise AssertionError("the whole text was scanned")


def test_cost_of_a_round_does_not_grow_with_the_text():
    rng = random.Random(0)
    text = [rng.randrange(50) for _ in range(100_000)]
    drafter, row, other = Lookup(), row_of(text, row_id=3), row_of([1, 2, 1])
    drafter.observe([other, row], [[1, 2], text[:-1]], [{}, {}])
    index = drafter._indexes[3]
    index.last, index.text, row.tokens = Counted(index.last), Watched(index.text), Watched(row.tokens)
    for token in (3, 4, 5):
        index.last.touched = index.text.read = row.tokens.read = 0
        drafter.observe([row], [row.tokens[-1:]], [{}])
        row.tokens.append(token)
        drafter.guess(row, 10)
        high = drafter.options.max_ngram
        assert 0 < index.last.touched <= 2 * high
        assert index.text.read <= high + high * high + 2 * 10
        assert row.tokens.read <= high + 4


@pytest.mark.parametrize(
    "options, words",
    [
        ({"min_ngram": 0}, "min_ngram=0"),
        ({"max_ngram": 2.5}, "max_ngram=2.5"),
        ({"max_ngram": True}, "max_ngram=True"),
        ({"max_ngram": 65}, "1 to 64"),
        ({"reach": -1}, "reach=-1"),
        ({"reach": 1.5}, "reach=1.5"),
        ({"min_ngram": 5, "max_ngram": 4}, "min_ngram=5 must not be larger than max_ngram=4"),
    ],
)
def test_wrong_bounds_are_refused(options, words):
    with pytest.raises(RequestError, match=words):
        LookupOptions(**options)


def test_what_followed_is_found_behind_tokens_that_are_not_in_the_text_yet():
    index = NgramIndex(LookupOptions(max_ngram=4))
    index.extend([1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2])
    assert index.ahead([3], 9) == [4, 5, 6, 7, 8], "three tokens agree: twice as many, less one"
    assert index.ahead([3, 4, 5], 9) == [6, 7, 8, 9, 1, 2, 3, 4, 5], "four and more are trusted"
    assert index.ahead([3, 4, 5], 11) == [6, 7, 8, 9, 1, 2, 3, 4, 5, 6, 7], "and a period goes on"
    assert index.ahead([3, 4, 5], 2) == [6, 7]
    assert index.ahead([3, 9], 9) == [1]
    assert index.ahead([3, 2, 2], 1) == [3] != index.ahead([3, 2, 3], 1) == [4]
    assert index.ahead([3, 11], 9) == []
    assert index.follow(3, 9) == [4, 5, 6, 7, 8], "nothing of it was learned"
