"""Drafter `none`: the root alone, at next to no cost."""

import timeit

import torch

from slipstream.drafters.none import NoDraft
from slipstream.types import Draw, SamplingParams, Sequence

NO_RNGS = object()  # any draw would fail


def rows_of(*texts):
    return [Sequence(i, list(t), len(t), SamplingParams()) for i, t in enumerate(texts)]


def test_the_draft_is_the_last_committed_token():
    rows = rows_of([5, 6, 7], [9])
    draft = NoDraft().propose(rows, [4, 0], NO_RNGS)
    assert draft.tokens.tolist() == [[7], [9]]
    assert draft.parents.tolist() == [[-1], [-1]]
    assert draft.length.tolist() == [1, 1]
    assert draft.draw.tolist() == [[Draw.FIXED], [Draw.FIXED]]
    assert draft.q is None
    assert draft.chain
    assert draft.tokens.dtype == draft.parents.dtype == draft.length.dtype == draft.draw.dtype == torch.int64


def test_nothing_is_remembered_between_rounds():
    drafter, rows = NoDraft(), rows_of([5, 6, 7])
    first = drafter.propose(rows, [4], NO_RNGS)
    drafter.observe(rows, [[7]], [{}])
    rows[0].tokens.append(8)
    second = drafter.propose(rows, [4], NO_RNGS)
    drafter.forget(rows[0])
    assert (first.tokens.item(), second.tokens.item()) == (7, 8)


def test_costs_no_more_than_a_few_tensor_calls():
    drafter, rows = NoDraft(), rows_of([5, 6, 7])
    drafter.propose(rows, [4], NO_RNGS)
    own = min(timeit.repeat(lambda: drafter.propose(rows, [4], NO_RNGS), number=200, repeat=7)) / 200
    unit = min(timeit.repeat(lambda: torch.tensor([[7]], dtype=torch.int64), number=200, repeat=7)) / 200
    assert own < 15 * unit, f"{own * 1e6:.1f} us against {unit * 1e6:.1f} us for one small tensor"
