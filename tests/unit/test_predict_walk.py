"""Walks: expected rounds against simulation, costs between timed sizes, and the interval's coverage."""

from __future__ import annotations

import numpy as np
import pytest

from slipstream.measure.predict_walk import Profile, Walk, mean_survival, predict_walks, round_counts, starts

RNG = np.random.default_rng


def bernoulli_walk(rng, rate: float, tokens: int, longest: int) -> Walk:
    """A text at whose places an independent coin says whether a drafted token would stand."""
    stands = rng.random(tokens) < rate
    survival = np.zeros((tokens, longest))
    for t in range(tokens):
        room = min(longest, tokens - t - 1)
        survival[t, :room] = np.cumprod(stands[t : t + room])
    return Walk(survival, np.minimum(longest, tokens - 1 - np.arange(tokens)))


def profile(rng=None, noise: float = 0.0, cycles: int = 9) -> Profile:
    sizes = [0, 1, 2, 4]
    rounds = np.tile(0.1 * (1 + 0.05 * np.array(sizes)), (cycles, 1))
    drafts = np.tile(0.02 * np.array(sizes), (cycles, 1))
    if rng is not None:
        rounds = rounds * np.exp(noise * rng.standard_normal(rounds.shape))
        drafts = drafts * np.exp(noise * rng.standard_normal(drafts.shape))
    return Profile(sizes, rounds, drafts)


def test_starts_are_those_of_simulated_rounds():
    rng = RNG(3)
    survival = np.cumprod(rng.random((20, 3)), axis=1)
    drafted = np.full(20, 3)
    for t in range(20):
        survival[t, 20 - t - 1 :] = 0.0
        drafted[t] = min(3, 20 - t - 1)
    walk = Walk(survival, drafted)
    seen, rounds = np.zeros(20), 4000
    for _ in range(rounds):
        t = 0
        while t < 20:
            seen[t] += 1
            t += 1 + int((rng.random() < survival[t]).sum())
    assert np.abs(starts(walk) - seen / rounds).max() < 0.04
    assert round_counts(walk).sum() == pytest.approx(starts(walk).sum())


def test_a_text_is_written_whole_whatever_the_rounds():
    walk = bernoulli_walk(RNG(1), 0.7, 50, 4)
    tokens = starts(walk) @ (1 + walk.survival.sum(1))
    assert tokens == pytest.approx(50)
    assert starts(walk.at(0)).tolist() == [1.0] * 50


def test_costs_are_interpolated_and_in_plain_rounds():
    costs = profile().costs(4)
    assert costs == pytest.approx([1.0, 1.25, 1.5, 1.75, 2.0])
    assert profile().redrawn(4, 3, 0) == pytest.approx(np.tile(costs, (3, 1)))


def test_no_draft_is_plain_decoding_and_a_perfect_drafter_reaches_the_limit():
    perfect = predict_walks([bernoulli_walk(RNG(0), 1.1, 100, 4)] * 2, profile(), drift=0.0)
    assert perfect.curve[0].speedup == pytest.approx(1.0)
    assert perfect.best_tokens == 4
    assert perfect.curve[4].speedup == pytest.approx(5 / 2.0)
    assert perfect.low == pytest.approx(perfect.high)
    useless = predict_walks([bernoulli_walk(RNG(0), -1, 100, 4)] * 2, profile())
    assert useless.best_tokens == 0


def test_mean_survival_counts_rounds_not_places():
    walk = bernoulli_walk(RNG(5), 0.6, 4000, 3)
    assert mean_survival([walk]) == pytest.approx([0.6, 0.36, 0.216], abs=0.03)


@pytest.mark.parametrize("texts", [6, 20])
def test_the_interval_contains_the_truth_at_its_rate(texts):
    """Texts differ in their acceptance, timings are noisy; the truth is what very many texts would show."""
    rng, trials, tokens = RNG(7), 150, 40

    def draw(count: int) -> list[Walk]:
        return [bernoulli_walk(rng, rng.beta(6, 3), tokens, 4) for _ in range(count)]

    truth = predict_walks(draw(1500), profile(), 4).speedup
    inside = 0
    for trial in range(trials):
        found = predict_walks(draw(texts), profile(rng, 0.05), 4, seed=trial, drift=0.0)
        inside += found.low <= truth <= found.high
    # binomial, 150 trials at 0.90: 0.83 to 0.97 within three standard errors
    assert 0.83 <= inside / trials <= 0.975
