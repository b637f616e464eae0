"""The hardware-aware prefix scheduler: Algorithm 1 as a table, against a greedy search written out, and its laws."""

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

from slipstream.drafters.schedule import schedule

EXAMPLE = {1: 1.0, 2: 1 / 0.5, 3: 1 / 0.45}  # seconds of the paper's appendix A


def by_hand(survival, limits, seconds):
    """Greedy: of all rows' next tokens take the likeliest while it pays; ties to the earlier place, then row."""
    lengths, rows = [0] * len(survival), len(survival)
    expected, read = float(rows), rows
    while True:
        open_rows = [b for b in range(rows) if lengths[b] < limits[b]]
        if not open_rows:
            return lengths
        b = min(open_rows, key=lambda b: (-survival[b][lengths[b]], lengths[b], b))
        gain = expected + survival[b][lengths[b]]
        if not gain / seconds(read + 1) > expected / seconds(read):
            return lengths
        expected, read = gain, read + 1
        lengths[b] += 1


chances = st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.5, 0.75, 0.9, 1.0])


@st.composite
def problems(draw):
    rows, width = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    conf = [[draw(chances) for _ in range(width)] for _ in range(rows)]
    limits = [draw(st.integers(0, width)) for _ in range(rows)]
    base = draw(st.sampled_from([0.0, 1.0, 5.0, 40.0]))
    jumps = [draw(st.sampled_from([0.0, 0.1, 1.0, 3.0])) for _ in range(rows * width + rows + 1)]

    def seconds(n):
        return base + n * 0.1 + sum(jumps[:n])

    return torch.tensor(conf, dtype=torch.float64).cumprod(1), limits, seconds


@given(problems())
@settings(max_examples=300, deadline=None)
def test_equals_the_greedy_search(problem):
    survival, limits, seconds = problem
    found = schedule(survival, limits, seconds)
    assert found == by_hand(survival.tolist(), limits, seconds)
    assert all(0 <= n <= most for n, most in zip(found, limits, strict=True))


@given(problems())
@settings(max_examples=200, deadline=None)
def test_what_lies_behind_the_last_admitted_token_does_not_matter(problem):
    """Law 4: replace everything that depends on a token by anything; whether it is admitted stays."""
    survival, limits, seconds = problem
    lengths = schedule(survival, limits, seconds)
    for b, most in enumerate(limits):
        for k in range(most):
            for later in (0.0, 1.0):
                other = survival.clone()
                other[b, k + 1 :] = survival[b, k] * later
                assert (schedule(other, limits, seconds)[b] > k) == (lengths[b] > k)


@given(problems(), st.randoms())
@settings(max_examples=100, deadline=None)
def test_rows_may_come_in_any_order_when_no_chances_tie(problem, random):
    survival, limits, seconds = problem
    survival = survival * torch.linspace(0.8, 1.0, len(survival), dtype=torch.float64)[:, None]
    seen = survival[torch.arange(survival.shape[1]) < torch.tensor(limits)[:, None]].tolist()
    if len(set(seen)) < len(seen):
        return
    order = list(range(len(limits)))
    random.shuffle(order)
    moved = schedule(survival[order], [limits[b] for b in order], seconds)
    found = schedule(survival, limits, seconds)
    assert moved == [found[b] for b in order]


@given(problems())
@settings(max_examples=100, deadline=None)
def test_a_dearer_token_is_never_drafted_more(problem):
    survival, limits, seconds = problem
    found = [sum(schedule(survival, limits, lambda n, s=s: seconds(n) + s * n * n)) for s in (0.0, 0.1, 1.0, 10.0)]
    assert found == sorted(found, reverse=True)


def test_free_tokens_are_all_drafted_and_steep_ones_never():
    survival = torch.full((3, 4), 0.6).cumprod(1)
    assert schedule(survival, [4, 2, 0], lambda n: 1.0) == [4, 2, 0]
    assert schedule(survival, [4, 4, 4], lambda n: float(n**2)) == [0, 0, 0]


def test_the_paper_s_example_stops_at_the_first_token_that_does_not_pay():
    for second in (0.9, 0.0):  # appendix A: the value of two tokens depends on what the first one was
        assert schedule(torch.tensor([[0.8, 0.8 * second]]), [2], EXAMPLE.__getitem__) == [0]


def test_a_plateau_of_cost_is_not_climbed_for_what_lies_behind_it():
    seconds = {1: 1.0, 2: 2.0, 3: 2.0, 4: 2.0}
    assert schedule(torch.tensor([[0.9, 0.9, 0.9]]), [3], seconds.__getitem__) == [0]


@pytest.mark.parametrize("bad", [float("nan"), -1.0])
def test_a_chance_that_is_no_number_counts_as_none(bad):
    assert schedule(torch.tensor([[0.9, bad, 0.9]]), [3], lambda n: 1.0 + 0.01 * n) == [1]


def test_only_what_is_read_is_priced():
    asked = []
    schedule(torch.tensor([[0.5, 0.1], [0.4, 0.1]]), [2, 2], lambda n: asked.append(n) or float(n**3))
    assert asked == [2, 3]


def test_nothing_to_schedule():
    assert schedule(torch.zeros(0, 3), [], lambda n: 1.0) == []
    assert schedule(torch.zeros(2, 0), [0, 0], lambda n: 1.0) == [0, 0]
