"""Case 26: a drafter that many requests share keeps each one's state apart."""

import pytest
import torch

from slipstream.control.budget import FixedBudget
from slipstream.drafters.draft_model import DraftModel
from slipstream.drafters.lookup import Lookup
from slipstream.engine.engine import Engine, EngineOptions
from slipstream.testing import ToyTarget, one_hot
from slipstream.testing.toy_decoder import ToyDecoder
from slipstream.types import SamplingParams, Sequence
from slipstream.verify import RULES

VOCAB = 15
PROMPTS = {"A": [0, 1, 2, 3, 4, 2], "B": [5, 6, 9, 7, 8], "C": [12, 10, 13, 11, 14, 12, 10]}  # three alphabets


def next_token(prefix):
    """A text of its prompt's own alphabet that repeats itself, with a surprise every few tokens."""
    base, place = prefix[0] // 5 * 5, len(prefix)
    step = 2 if place % 7 == 0 else 0
    return base + (prefix[-min(5, place)] + step) % 5


def draft_logits(prefix):
    """Right but for a surprise now and then."""
    wrong = len(prefix) % 4 == 3
    return torch.tensor([float(t == next_token(prefix)) - 2.0 * wrong * (t % 5 == 0) for t in range(VOCAB)])


def drafters():
    yield Lookup(vocab=VOCAB)
    yield DraftModel(ToyDecoder(draft_logits, vocab=VOCAB), vocab=VOCAB, max_rows=4)


DRAFTERS = [type(drafter).__name__ for drafter in drafters()]


def make(kind):
    return list(drafters())[DRAFTERS.index(kind)]


def engine_of(drafter):
    target = ToyTarget(lambda prefix: one_hot(next_token(prefix), VOCAB), VOCAB)
    return Engine(target, drafter, RULES["chain"], FixedBudget(4), EngineOptions(max_rows=2))


def request(name, row_id):
    prompt = PROMPTS[name]
    return Sequence(row_id, list(prompt), len(prompt), SamplingParams(max_tokens=40))


def result(row):
    stats = row.stats
    counts = (stats.num_drafts, stats.num_draft_tokens, stats.num_accepted_tokens, stats.num_accepted_tokens_per_pos)
    return row.tokens, counts


def solo(kind, name):
    engine, row = engine_of(make(kind)), request(name, 0)
    engine.add(row)
    finish(engine)
    return result(row)


def finish(*engines):
    while not all(engine.idle for engine in engines):
        for engine in engines:
            engine.step()


@pytest.mark.parametrize("kind", DRAFTERS)
class TestCase26:
    def test_case_26_something_is_accepted_and_something_is_not(self, kind):
        for name in PROMPTS:
            _, (_, drafted, accepted, _) = solo(kind, name)
            assert 0 < accepted < drafted

    def test_case_26_batched_with_another_request(self, kind):
        engine, a, b = engine_of(make(kind)), request("A", 0), request("B", 1)
        engine.add(a)
        engine.add(b)
        finish(engine)
        assert (result(a), result(b)) == (solo(kind, "A"), solo(kind, "B"))

    def test_case_26_stepped_alternately_by_two_engines(self, kind):
        drafter = make(kind)
        engines, a, b = [engine_of(drafter), engine_of(drafter)], request("A", 0), request("B", 1)
        engines[0].add(a)
        engines[1].add(b)
        finish(*engines)
        assert (result(a), result(b)) == (solo(kind, "A"), solo(kind, "B"))

    def test_case_26_one_aborted_and_another_in_its_place(self, kind):
        engine, a, b, c = engine_of(make(kind)), request("A", 0), request("B", 1), request("C", 2)
        engine.add(a)
        engine.add(b)
        for _ in range(4):
            engine.step()
        place = a.slot
        engine.abort(a)
        engine.add(c)
        engine.step()
        assert c.slot == place
        finish(engine)
        assert (result(b), result(c)) == (solo(kind, "B"), solo(kind, "C"))

    def test_case_26_the_second_place_alone(self, kind):
        engine, a, b = engine_of(make(kind)), request("A", 0), request("B", 1)
        engine.add(a)
        engine.add(b)
        engine.step()
        engine.abort(a)
        assert b.slot == 1
        finish(engine)
        assert result(b) == solo(kind, "B")

    def test_case_26_nothing_is_left_when_all_have_ended(self, kind):
        drafter = make(kind)
        engine = engine_of(drafter)
        for i, name in enumerate("ABCABC"):
            engine.add(request(name, i))
        finish(engine)
        if kind == "Lookup":
            assert not drafter._indexes
        else:
            assert not drafter._cache._held
            assert not drafter._cache.decoder.slots


def test_case_26_copies_stay_within_their_own_text():
    drafter, rows = Lookup(vocab=VOCAB), [request("A", 0), request("B", 1)]
    for _ in range(30):
        for row in rows:
            assert set(drafter.guess(row, 6)) <= set(row.tokens)
            drafter.observe([row], [row.tokens[-1:]], [{}])
            row.tokens.append(next_token(row.tokens))
