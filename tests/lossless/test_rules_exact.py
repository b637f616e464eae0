"""Every rule with every kind of draft it takes: the exact law of the first tokens is the target's own."""

import itertools

import pytest

from slipstream.testing import (
    RandomLaw,
    SampledToy,
    ScriptedToy,
    ToyDrafter,
    TreeToy,
    distance,
    greedy_toy,
    make_round,
    memoryless,
    one_hot,
    plain_law,
    run_law,
)
from slipstream.types import Draw
from slipstream.verify import RULES, here

F, S, D = Draw.FIXED, Draw.SAMPLED, Draw.DISTINCT
V = 3
PROMPT = (0,)
EXACT = 1e-12

PAIRS = {
    "full support": (RandomLaw(V, 1), RandomLaw(V, 2)),
    "zeros in p and q": (RandomLaw(V, 1, zeros=True), RandomLaw(V, 2, zeros=True)),
    "p = q": (RandomLaw(V, 3), RandomLaw(V, 3)),
    "p one-hot": (lambda s: one_hot(len(s) % V, V), RandomLaw(V, 4)),
    "q one-hot": (RandomLaw(V, 5), lambda s: one_hot(sum(s) % V, V)),
    "disjoint": (memoryless(0.4, 0.6, 0.0), memoryless(0.0, 0.0, 1.0)),
    "nearly equal": (memoryless(0.5, 0.3, 0.2), memoryless(0.5 + 1e-13, 0.3 - 1e-13, 0.2)),
}


def kept_short(prefix: tuple[int, ...], drafted: tuple[int, ...]) -> bool:
    """Stop after a kept token of odd parity: a stopping time that looks at kept tokens."""
    return bool(drafted) and drafted[-1] % 2 == 1


class WholeRow(TreeToy):
    """Records q with the fixed children in it: only a DISTINCT child is then drawn without its earlier siblings."""

    def _plan(self, row, sprout, level):  # type: ignore[no-untyped-def]
        plan = super()._plan(row, sprout, level)
        for parent in level:
            sprout.q[parent] = list(self.law((*row.tokens, *sprout.path(parent))))
        return plan


CHAINS = {
    "sampled": lambda q: SampledToy(q, V),
    "sampled, stopping time": lambda q: SampledToy(q, V, stop=kept_short),
    "distinct chain": lambda q: SampledToy(q, V, draw=D),
    "greedy": lambda q: greedy_toy(q, V),
    "scripted": lambda q: ScriptedToy(lambda s, n: [sum(s) % V, 1, 2][:n], V),
}
TREES = {
    "SpecInfer, with replacement": lambda q: TreeToy(q, V, (S, S), 1),
    "with replacement, 3 wide": lambda q: TreeToy(q, V, (S, S, S), 1),
    "without replacement": lambda q: TreeToy(q, V, (D, D), 1),
    "without replacement, whole vocabulary": lambda q: TreeToy(q, V, (D, D, D), 1),
    "without replacement, two levels": lambda q: TreeToy(q, V, (D, D), 2),
    "top-2, two levels": lambda q: TreeToy(q, V, (F, F), 2),
    "hybrid": lambda q: TreeToy(q, V, (S, F), 1),
    "hybrid, FIXED first": lambda q: TreeToy(q, V, (F, S), 1),
    "hybrid, two levels": lambda q: TreeToy(q, V, (S, F), 2),
    "hybrid, two drawn": lambda q: TreeToy(q, V, (D, F, D), 1),
    "distinct after a fixed one of the same row": lambda q: WholeRow(q, V, (F, D), 1),
}


def law_error(rule: str, pair: str, make: object, budget: int, n: int) -> float:
    p, q = PAIRS[pair]
    drafter: ToyDrafter = make(q)  # type: ignore[operator]
    law = run_law(make_round(p, drafter, RULES[rule], budget), PROMPT, n)
    assert abs(sum(law.values()) - 1) < EXACT
    return distance(law, plain_law(p, PROMPT, n))


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("kind", CHAINS)
@pytest.mark.parametrize("rule", ["chain", "block"])
def test_chain_drafts_are_exact_by_the_operations_of_accelerators(
    rule: str, kind: str, pair: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(here, "applies", lambda p: False)
    for budget in (1, 3) if pair == "full support" else (2,):
        assert law_error(rule, pair, CHAINS[kind], budget, 3) < EXACT


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("kind", CHAINS)
@pytest.mark.parametrize("rule", ["chain", "block", "tree", "coupled", "auto"])
def test_chain_drafts_are_exact(rule: str, kind: str, pair: str) -> None:
    for budget in (0, 1, 3) if pair == "full support" else (2,):
        assert law_error(rule, pair, CHAINS[kind], budget, 3) < EXACT


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("kind", TREES)
@pytest.mark.parametrize("rule", ["tree", "coupled", "auto"])
def test_tree_drafts_are_exact(rule: str, kind: str, pair: str) -> None:
    assert law_error(rule, pair, TREES[kind], 16, 2) < EXACT


@pytest.mark.parametrize("budget", [1, 2, 3, 4, 5])
def test_a_tree_cut_by_its_budget_is_exact(budget: int) -> None:
    for kind in ("without replacement, two levels", "hybrid, two levels"):
        assert law_error("tree", "full support", TREES[kind], budget, 2) < EXACT


def test_two_token_vocabulary() -> None:
    p, q = RandomLaw(2, 1), RandomLaw(2, 2)
    for rule, kinds in itertools.product(["tree", "coupled"], [(S, S), (D, D), (S, F)]):
        law = run_law(make_round(p, TreeToy(q, 2, kinds, 2), RULES[rule], 16), PROMPT, 3)
        assert distance(law, plain_law(p, PROMPT, 3)) < EXACT
