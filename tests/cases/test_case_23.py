"""Case 23: a seeded request gives the same text whatever runs beside it, before it, or in its row."""

from __future__ import annotations

import pytest
from cases_kit import finish, make_engine, output, request

from slipstream.testing import RandomLaw, SampledToy, ToyTarget, TreeToy
from slipstream.types import Draw

VOCAB = 16
LAW, GUESS = RandomLaw(VOCAB, 1), RandomLaw(VOCAB, 2)


def drafter(kind: str):
    return TreeToy(GUESS, VOCAB, [Draw.SAMPLED, Draw.FIXED], 2) if kind == "tree" else SampledToy(GUESS, VOCAB)


def engine(kind: str, rule: str, **options):
    return make_engine(ToyTarget(LAW, VOCAB), drafter(kind), 3, rule, **options)


def seeded(id: int = 0, seed: int = 7):
    return request(id, [1, 2, 3], temperature=1.0, seed=seed, max_tokens=40)


def alone(kind: str, rule: str, seed: int = 7) -> list[int]:
    row = seeded(seed=seed)
    finish(engine(kind, rule), row)
    return output(row)


@pytest.mark.parametrize(
    ("kind", "rule"),
    [("chain", "chain"), ("chain", "block"), ("tree", "tree"), ("chain", "coupled"), ("chain", "auto")],
)
def test_case_23_the_neighbours_do_not_matter(kind: str, rule: str) -> None:
    expected = alone(kind, rule)
    assert alone(kind, rule) == expected
    assert alone(kind, rule, seed=8) != expected

    crowded = engine(kind, rule, max_rows=5)
    others = [request(i, [4, i % 3], temperature=1.0, max_tokens=5 + i % 9) for i in range(1, 30)]
    others += [request(50 + i, [5, 6], temperature=0.7, top_k=5, seed=i, max_tokens=11) for i in range(20)]
    others += [request(90 + i, [6], max_tokens=13) for i in range(5)]
    early, late = seeded(200), seeded(201)
    finish(crowded, early, *others, late)
    assert output(early) == output(late) == expected
    greedy = [output(r) for r in others if r.params.greedy]
    lone = request(0, [6], max_tokens=13)
    finish(make_engine(ToyTarget(LAW, VOCAB)), lone)
    assert greedy == [output(lone)] * 5


def test_case_23_an_unseeded_request_can_be_repeated_from_its_recorded_seed() -> None:
    first = request(0, [1, 2, 3], temperature=1.0, max_tokens=40)
    finish(engine("chain", "auto"), first)
    assert alone("chain", "auto", seed=first.seed) == output(first)


@pytest.mark.parametrize("kind", ["chain", "tree"])
@pytest.mark.parametrize("nodes", [0, 1, 3, 6])
def test_case_23_coupled_gives_the_text_of_plain_decoding(kind: str, nodes: int) -> None:
    plain, drafted = seeded(), seeded()
    finish(make_engine(ToyTarget(LAW, VOCAB), rule="coupled"), plain)
    finish(make_engine(ToyTarget(LAW, VOCAB), drafter(kind), nodes, "coupled"), drafted)
    assert output(drafted) == output(plain)
