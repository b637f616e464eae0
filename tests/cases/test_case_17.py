"""Case 17: the edge cases of prompt lookup, at the drafter. An empty draft has no node but the root."""

import pytest

from slipstream.drafters.lookup import Lookup, LookupOptions
from slipstream.types import SamplingParams, Sequence

EOS = 0

NO_RNGS = object()  # any draw would fail


def drafted(tokens, budget=8, *, bounds=(1, 4), eos=()):
    row = Sequence(0, list(tokens), len(tokens), SamplingParams(), eos_ids=eos)
    drafter = Lookup(LookupOptions(min_ngram=bounds[0], max_ngram=bounds[1]))
    drafter.observe([row], [row.tokens[:-1]], [{}])
    draft = drafter.propose([row], [budget], NO_RNGS)
    assert int(draft.length[0]) == draft.nodes
    return draft.tokens[0, 1:].tolist()


def test_case_17_a_the_copy_ends_at_the_end_of_text_id():
    assert drafted([5, 7, 8, EOS, 9, 9, 4, 7, 8], eos=(EOS,)) == [EOS]


def test_case_17_b_a_model_without_an_end_of_text_id():
    assert drafted([5, 7, 8, EOS, 9, 9, 4, 7, 8], 3, eos=()) == [EOS, 9, 9]


def test_case_17_c_a_prompt_shorter_than_the_lower_bound():
    assert drafted([5], bounds=(2, 4)) == []
    assert drafted([5], bounds=(1, 4)) == []


def test_case_17_d_no_match():
    assert drafted([1, 2, 3, 4, 5]) == []


@pytest.mark.parametrize("bounds, right", [((2, 4), [40]), ((2, 2), [20]), ((2, 3), [40]), ((5, 6), [])])
def test_case_17_e_the_longest_match_inside_the_bounds(bounds, right):
    text = [1, 2, 3, 4, 40, 9, 8, 3, 4, 20, 9, 7, 1, 2, 3, 4]
    assert drafted(text, 1, bounds=bounds) == right


def test_case_17_f_the_tail_does_not_match_itself():
    assert drafted([1, 2, 3, 9, 7, 8], bounds=(2, 4)) == []


@pytest.mark.parametrize(
    "text, bounds, right",
    [([1, 6, 3, 6], (1, 1), [3, 6]), ([7, 8, 5, 7, 8], (2, 4), [5, 7, 8]), ([1, 6, 3, 6], (1, 4), [3])],
)
def test_case_17_g_a_match_close_to_the_end_gives_a_shorter_draft(text, bounds, right):
    assert drafted(text, 8, bounds=bounds) == right
