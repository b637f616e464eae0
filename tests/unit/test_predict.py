"""The formulas: the published table of best lengths, special cases, simulation, and what is refused."""

from __future__ import annotations

import random

import pytest

from slipstream.measure.predict import (
    break_even,
    marginal_length,
    parallel_cost,
    predict,
    sequential_cost,
    shorthand,
    survival_of,
    tokens_per_round,
)
from slipstream.measure.predict_report import headline, plot, report
from slipstream.types import RequestError

COSTS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3)
TABLE = {
    0.5: ((5, 1.88), (4, 1.79), (3, 1.63), (2, 1.46), (1, 1.25), (1, 1.15)),
    0.6: ((7, 2.30), (6, 2.17), (4, 1.92), (3, 1.67), (2, 1.40), (1, 1.23)),
    0.7: ((9, 2.97), (8, 2.76), (6, 2.35), (4, 1.98), (3, 1.58), (2, 1.37)),
    0.8: ((14, 4.23), (11, 3.82), (8, 3.09), (6, 2.47), (4, 1.87), (3, 1.55)),
    0.9: ((24, 7.49), (19, 6.37), (13, 4.67), (10, 3.43), (7, 2.37), (5, 1.87)),
}


@pytest.mark.parametrize("alpha", TABLE)
@pytest.mark.parametrize("column", range(6))
def test_best_length_and_speed_up_are_those_of_the_table(alpha, column):
    length, speed = TABLE[alpha][column]
    found = predict(alpha, COSTS[column])
    assert found.best_tokens == found.draft_tokens == length
    assert found.speedup == pytest.approx(speed, abs=0.0051)
    assert marginal_length(survival_of(alpha, 64), COSTS[column]) == length


def test_tokens_per_round_is_the_geometric_sum():
    assert tokens_per_round(survival_of(0.8, 5)) == pytest.approx((1 - 0.8**6) / (1 - 0.8))
    assert tokens_per_round(survival_of(1.0, 5)) == 6
    assert survival_of([0.9, 0.5, 0.1], 2) == pytest.approx([0.9, 0.45])


@pytest.mark.parametrize("seed", range(20))
def test_the_marginal_rule_is_the_scan_for_falling_acceptance(seed):
    rand = random.Random(seed)
    rates = sorted((rand.random() for _ in range(30)), reverse=True)
    cost = rand.choice(COSTS)
    found = predict(rates, cost)
    assert marginal_length(survival_of(rates, 30), cost) == found.best_tokens
    assert found.speedup == max(p.speedup for p in found.curve)


def test_the_shorthand_is_the_sequential_model_with_tokens_per_round():
    tokens = tokens_per_round(survival_of(0.7, 4))
    assert shorthand(tokens, 0.1, 4) == pytest.approx(predict(0.7, 0.1, 4).speedup)
    with pytest.raises(RequestError, match="below 1"):
        shorthand(0.7, 0.1, 4)


def test_a_parallel_drafter_pays_once_per_round_and_scoring_may_cost():
    flat = predict(0.8, 0.2, 4, parallel=True)
    assert flat.speedup == pytest.approx(tokens_per_round(survival_of(0.8, 4)) / 1.2)
    assert flat.curve[0].speedup == 1.0  # no draft, no drafter
    steep = predict(0.8, 0.2, parallel=True, scoring=[1.1, 1.3, 2.6, 3.9])
    assert steep.best_tokens == 2
    assert steep.speedup == pytest.approx(2.44 / 1.5)
    assert len(steep.curve) == 5
    assert predict(0.8, 0.1, 2, scoring=[1.1, 1.3]).speedup == pytest.approx(2.44 / 1.5)


def test_break_even_is_where_the_speed_up_is_one():
    even = predict(0.8, 0.1, 4).break_even
    assert predict(even, 0.1, 4).speedup == pytest.approx(1.0, abs=1e-9)
    assert break_even(sequential_cost(0.1), 1) == pytest.approx(0.1)
    assert break_even(parallel_cost(2.5), 1) is None
    none = predict(0.05, 0.1)
    assert none.best_tokens == 0
    assert none.break_even == pytest.approx(0.1)
    assert "draft nothing" in headline(none)


@pytest.mark.parametrize(("rates", "cost"), [([0.8] * 6, 0.1), ([0.9, 0.8, 0.5, 0.2, 0.2, 0.1], 0.05)])
def test_simulated_rounds_reach_the_predicted_speed(rates, cost):
    rand, rounds, length = random.Random(1), 40_000, 4
    tokens = 0
    for _ in range(rounds):
        kept = 0
        while kept < length and rand.random() < rates[kept]:
            kept += 1
        tokens += kept + 1
    assert tokens / (rounds * (1 + cost * length)) == pytest.approx(predict(rates, cost, length).speedup, rel=0.01)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((1.2, 0.1), "acceptance 1.2 must be a probability"),
        (([], 0.1), "acceptance is empty"),
        ((0.8, -1.0), "cost ratio -1.0"),
        (([0.8, 0.7], 0.1, 3), "must be 0 to 2"),
        ((float("nan"), 0.1), "must be a probability"),
    ],
)
def test_impossible_values_are_refused(arguments, words):
    with pytest.raises(RequestError, match=words):
        predict(*arguments)


def test_the_plot_marks_the_best_and_the_page_stands_alone():
    found = predict(0.9, 0.01)
    drawn = plot(found)
    assert drawn.count("<- best") == 1
    assert next(line for line in drawn.splitlines() if "<- best" in line).split()[0] == "24"
    html = report(found, "a <b> title", "lead", [("model", "<script>alert(1)</script>")])
    assert "<script" not in html
    assert "http" not in html.replace("http://www.w3.org", "")
    assert "7.49x" in html
