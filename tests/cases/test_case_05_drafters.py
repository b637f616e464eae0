"""Case 05 with tree drafters: deterministic and hybrid trees at temperature above 0 keep the target's law."""

import pytest
import torch

from slipstream.drafters.marginals import marginal_tree
from slipstream.testing import ToyDrafter, distance, make_round, marginals, memoryless, one_hot, plain_law, run_law
from slipstream.types import Draft, Draw, Rngs, Sequence
from slipstream.verify import RULES
from toy_feed import GrowingToy

TWO, THREE = memoryless(0.51, 0.49, 0.0), memoryless(0.5, 0.3, 0.2)


class MarginalTree(ToyDrafter):
    """The best tree of a block drafter whose every slot says the target's own law."""

    def propose(self, rows: list[Sequence], budget: list[int], rngs: Rngs) -> Draft:
        logits = torch.tensor(THREE(()), dtype=torch.float64).log().expand(len(rows), 2, 3)
        return marginal_tree(rows, logits, budget)


DRAFTERS = {
    "dynamic, fixed": lambda law: GrowingToy(law, depth=2, top_k=2, drawn=False),
    "dynamic, hybrid": lambda law: GrowingToy(law, depth=2, top_k=2),
    "marginals": lambda law: MarginalTree(3),
}


@pytest.mark.parametrize("law", [TWO, THREE])
@pytest.mark.parametrize("rule", ["tree", "auto", "coupled"])
@pytest.mark.parametrize("kind", DRAFTERS)
def test_case_05_tree_drafters(kind: str, rule: str, law: object) -> None:
    found = run_law(make_round(law, DRAFTERS[kind](law), RULES[rule], 5), (0,), 3)
    assert distance(found, plain_law(law, (0,), 3)) < 1e-12
    assert marginals(found, 3) == [pytest.approx(list(law(())), abs=1e-12)] * 3


def test_case_05_the_control_is_flagged() -> None:
    """Wrong: the same tree, its children tested with their softmax q instead of as point masses."""

    class Wrong(GrowingToy):
        def propose(self, rows: list[Sequence], budget: list[int], rngs: Rngs) -> Draft:
            draft = super().propose(rows, budget, rngs)
            q = torch.tensor(TWO(()), dtype=torch.float64).expand(*draft.tokens.shape, 3)
            draw = torch.full_like(draft.draw, int(Draw.SAMPLED))
            return Draft(draft.tokens, draft.parents, draft.length, draw, q, draft.chain)

    found = run_law(make_round(TWO, Wrong(TWO, depth=1, top_k=1, drawn=False), RULES["tree"], 1), (0,), 1)
    assert marginals(found, 3)[0] == pytest.approx(one_hot(0, 3))
