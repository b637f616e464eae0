"""Case 05: trees of a deterministic top-k at temperature above 0 keep the target's law."""

import pytest

from slipstream.testing import (
    ToyDrafter,
    TreeToy,
    distance,
    make_round,
    marginals,
    memoryless,
    one_hot,
    plain_law,
    run_law,
)
from slipstream.types import Draw, Rngs, Sequence
from slipstream.verify import RULES

F, D = Draw.FIXED, Draw.DISTINCT
TWO, THREE = memoryless(0.51, 0.49), memoryless(0.5, 0.3, 0.2)


class TopOneDrawn(ToyDrafter):
    """Wrong: the likeliest child, tested with its softmax q."""

    def grow(self, rows: list[Sequence], sprouts: list, budget: list[int], rngs: Rngs) -> None:
        for sprout in sprouts:
            sprout.q[0] = (0.51, 0.49)
            sprout.add(0, 0, Draw.SAMPLED)


@pytest.mark.parametrize("rule", ["tree", "auto", "coupled"])
@pytest.mark.parametrize("kind", [F, D])
@pytest.mark.parametrize("k", [1, 2])
def test_case_05_two_tokens(k: int, kind: Draw, rule: str) -> None:
    law = run_law(make_round(TWO, TreeToy(TWO, 2, (kind,) * k, 1), RULES[rule], 4), (0,), 2)
    assert marginals(law, 2) == [pytest.approx([0.51, 0.49], abs=1e-12)] * 2
    assert distance(law, plain_law(TWO, (0,), 2)) < 1e-12


@pytest.mark.parametrize("rule", ["tree", "auto", "coupled"])
@pytest.mark.parametrize("kind", [F, D])
def test_case_05_three_tokens_two_children(kind: Draw, rule: str) -> None:
    law = run_law(make_round(THREE, TreeToy(THREE, 3, (kind, kind), 1), RULES[rule], 4), (0,), 2)
    assert marginals(law, 3) == [pytest.approx([0.5, 0.3, 0.2], abs=1e-12)] * 2


def test_case_05_refused_children_are_removed_before_the_next_test() -> None:
    """Child 0 stands with .5, then child 1 with .6 of the rest, else token 2."""
    one_round = make_round(THREE, TreeToy(THREE, 3, (F, F), 1), RULES["tree"], 4)((0,))
    by_child = {t: sum(w for s, w in one_round.items() if len(s) == 2 and s[0] == t) for t in (0, 1)}
    assert by_child == pytest.approx({0: 0.5, 1: 0.3}, abs=1e-12)
    assert one_round[(2,)] == pytest.approx(0.2, abs=1e-12)


def test_case_05_testing_the_top_child_with_its_softmax_is_told_apart() -> None:
    law = run_law(make_round(TWO, TopOneDrawn(2), RULES["tree"], 1), (0,), 1)
    assert marginals(law, 2)[0] == pytest.approx(one_hot(0, 2))
