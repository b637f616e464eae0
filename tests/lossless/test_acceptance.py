"""How much is accepted: closed forms and orderings. A rule may be exact and still waste drafts; this sees it."""

import math
from collections.abc import Callable
from statistics import mean

import pytest

from slipstream.testing import (
    RandomLaw,
    SampledToy,
    ScriptedToy,
    ToyDrafter,
    TreeToy,
    greedy_toy,
    make_round,
    mean_emitted,
)
from slipstream.testing.rounds import Tokens
from slipstream.testing.toys import Law
from slipstream.types import Draw
from slipstream.verify import RULES

F, S, D = Draw.FIXED, Draw.SAMPLED, Draw.DISTINCT
V, PROMPT = 3, (0,)


def pair(seed: int) -> tuple[Law, Law]:
    """A target, and a drafter that is a noisy copy of it."""
    p, noise = RandomLaw(V, 1000 + seed), RandomLaw(V, 5000 + seed)
    return p, lambda s: [0.6 * a + 0.4 * b for a, b in zip(p(s), noise(s), strict=True)]


PAIRS = [pair(seed) for seed in range(6)]


def emitted(p: Law, drafter: ToyDrafter, rule: str, budget: int) -> float:
    return mean_emitted(make_round(p, drafter, RULES[rule], budget)(PROMPT))


def overlap(p: Law, q: Law, prefix: Tokens) -> float:
    return sum(min(a, b) for a, b in zip(p(prefix), q(prefix), strict=True))


@pytest.mark.parametrize(("p", "q"), PAIRS)
def test_one_drawn_node_stands_with_the_overlap_of_p_and_q(p: Law, q: Law) -> None:
    for rule in ("chain", "block", "tree", "auto"):
        assert emitted(p, SampledToy(q, V), rule, 1) - 1 == pytest.approx(overlap(p, q, PROMPT), abs=1e-12)


@pytest.mark.parametrize(("p", "q"), PAIRS)
def test_a_drawn_chain_survives_by_products_of_accepts(p: Law, q: Law) -> None:
    def survival(prefix: Tokens, depth: int) -> float:
        if depth == 0:
            return 0.0
        shares = (min(a, b) for a, b in zip(p(prefix), q(prefix), strict=True))
        return sum(w * (1 + survival((*prefix, t), depth - 1)) for t, w in enumerate(shares))

    for rule in ("chain", "tree"):
        assert emitted(p, SampledToy(q, V), rule, 3) - 1 == pytest.approx(survival(PROMPT, 3), abs=1e-12)


@pytest.mark.parametrize(("p", "q"), PAIRS)
def test_block_accepts_the_mean_capped_ratio_and_never_less_than_chain(p: Law, q: Law) -> None:
    def ratios(prefix: Tokens, weight: float, r: float, depth: int) -> float:
        if depth == 0:
            return 0.0
        total = 0.0
        for t, (a, b) in enumerate(zip(p(prefix), q(prefix), strict=True)):
            kept = min(1.0, r * a / b)
            total += weight * b * kept + ratios((*prefix, t), weight * b, kept, depth - 1)
        return total

    block = emitted(p, SampledToy(q, V), "block", 3)
    assert block - 1 == pytest.approx(ratios(PROMPT, 1.0, 1.0, 3), abs=1e-12)
    assert block >= emitted(p, SampledToy(q, V), "chain", 3)


def test_block_gains_on_drawn_chains() -> None:
    gains = [emitted(p, SampledToy(q, V), "block", 3) - emitted(p, SampledToy(q, V), "chain", 3) for p, q in PAIRS]
    assert mean(gains) > 0.01


@pytest.mark.parametrize("rule", ["chain", "block", "tree", "coupled", "auto"])
def test_fixed_drafts_stand_with_the_targets_own_probability(rule: str) -> None:
    """The upper bound for any rule: the draft's prefixes, weighed by the target. Block cannot gain here."""
    p, _ = PAIRS[0]
    draft = (1, 0, 2)
    bound = sum(math.prod(p((*PROMPT, *draft[:i]))[draft[i]] for i in range(k)) for k in (1, 2, 3))
    drafter = ScriptedToy(lambda _prefix, n: draft[:n], V)
    assert emitted(p, drafter, rule, 3) - 1 == pytest.approx(bound, abs=1e-12)


@pytest.mark.parametrize("rule", ["tree", "coupled", "auto"])
def test_a_fixed_tree_stands_with_the_probability_of_its_nodes(rule: str) -> None:
    p, q = PAIRS[1]

    def nodes(prefix: Tokens, depth: int) -> float:
        if depth == 0:
            return 0.0
        row = q(prefix)
        best = sorted(range(V), key=lambda t: -row[t])[:2]
        return sum(p(prefix)[t] * (1 + nodes((*prefix, t), depth - 1)) for t in best)

    found = emitted(p, TreeToy(q, V, (F, F), 2), rule, 6) - 1
    assert found == pytest.approx(nodes(PROMPT, 2), abs=1e-12)


@pytest.mark.parametrize(("p", "q"), PAIRS)
def test_the_hybrid_node_meets_its_optimum(p: Law, q: Law) -> None:
    """P(S) + sum of min(p, q') outside S: the optimal transport bound of this set of children (2502.18779)."""
    row, target = q(PROMPT), p(PROMPT)
    top = max(range(V), key=lambda t: row[t])
    rest = [0.0 if t == top else row[t] / (1 - row[top]) for t in range(V)]
    best = target[top] + sum(min(a, b) for t, (a, b) in enumerate(zip(target, rest, strict=True)) if t != top)
    assert emitted(p, TreeToy(q, V, (S, F), 1), "tree", 2) - 1 == pytest.approx(best, abs=1e-12)


def test_orderings_of_two_children() -> None:
    def of(make: Callable[[Law], ToyDrafter]) -> list[float]:
        return [emitted(p, make(q), "tree", 2) for p, q in PAIRS]

    hybrid, without = of(lambda q: TreeToy(q, V, (S, F), 1)), of(lambda q: TreeToy(q, V, (D, D), 1))
    replaced = of(lambda q: TreeToy(q, V, (S, S), 1))
    assert mean(hybrid) > mean(without) > mean(replaced)
    one = [1 + overlap(p, q, PROMPT) for p, q in PAIRS]
    assert all(two >= alone - 1e-12 for two, alone in zip(replaced, one, strict=True))


@pytest.mark.parametrize(("p", "q"), PAIRS)
def test_shared_noise_agrees_as_often_as_races_do(p: Law, q: Law) -> None:
    """Two races of one noise end alike with sum_i 1 / sum_v max(p_v / p_i, q_v / q_i), at least (1 - TV) / (1 + TV)."""
    a, b = p(PROMPT), q(PROMPT)
    alike = sum(1 / sum(max(a[v] / a[i], b[v] / b[i]) for v in range(V)) for i in range(V))
    found = emitted(p, SampledToy(q, V), "coupled", 1) - 1
    assert found == pytest.approx(alike, abs=1e-12)
    share = overlap(p, q, PROMPT)
    assert share / (2 - share) <= found <= share


def test_an_oracle_is_accepted_whole_and_a_stranger_never() -> None:
    def p(prefix: Tokens) -> tuple[float, ...]:
        return tuple(float(t == (sum(prefix) + len(prefix)) % V) for t in range(V))

    for rule in ("chain", "block", "tree", "coupled", "auto"):
        assert emitted(p, greedy_toy(p, V), rule, 4) == 5
        stranger = ScriptedToy(lambda s, n: [(sum(s) + len(s) + 1) % V] * n, V)
        assert emitted(p, stranger, rule, 4) == 1
