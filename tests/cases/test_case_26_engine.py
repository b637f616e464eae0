"""Case 26: two conversations share an engine, never a drafter's memory."""

from __future__ import annotations

from cases_kit import finish, make_engine, output, request

from slipstream.drafters.lookup import Lookup, LookupOptions
from slipstream.testing import ToyTarget, scripted


def target() -> ToyTarget:
    low, high = scripted([3, 4, 5, 3, 4, 6], 32, 4, 0.9), scripted([20, 21, 22, 20, 21, 23], 32, 4, 0.9)
    return ToyTarget(lambda prefix: low(prefix) if prefix[0] < 10 else high(prefix), 32)


def low(id: int):
    return request(id, [3, 4, 5, 6], max_tokens=30)


def high(id: int):
    return request(id, [20, 21, 22, 23], max_tokens=30)


def solo(row):
    finish(make_engine(target(), Lookup(LookupOptions(min_ngram=1), vocab=32), 4), row)
    return output(row), row.stats.num_accepted_tokens, row.stats.num_draft_tokens


def counts(row):
    return output(row), row.stats.num_accepted_tokens, row.stats.num_draft_tokens


def test_case_26_ids_and_acceptance_equal_the_solo_runs() -> None:
    drafter = Lookup(LookupOptions(min_ngram=1), vocab=32)
    seen = []
    engine = make_engine(target(), drafter, 4, max_rows=2, trace=seen.append)
    a, b = low(1), high(2)
    finish(engine, a, b)
    assert counts(a) == solo(low(1))
    assert counts(b) == solo(high(2))
    for round_ in seen:
        drafted = round_.tokens[1:]
        assert all((t < 10) == (round_.sequence is a) for t in drafted)


def test_case_26_another_takes_the_place_of_an_aborted_one() -> None:
    engine = make_engine(target(), Lookup(LookupOptions(min_ngram=1), vocab=32), 4, max_rows=2)
    a, b, c = low(1), high(2), high(3)
    engine.add(a)
    engine.add(b)
    for _ in range(3):
        engine.step()
    engine.abort(a)
    finish(engine, c)
    assert counts(b) == solo(high(2))
    assert counts(c) == solo(high(3))


def test_case_26_the_second_slot_alone_works_like_the_first() -> None:
    engine = make_engine(target(), Lookup(LookupOptions(min_ngram=1), vocab=32), 4, max_rows=2)
    a, b = low(1), low(2)
    engine.add(a)
    engine.add(b)
    engine.step()
    engine.abort(a)
    finish(engine)
    assert counts(b) == solo(low(2))
