"""Case 02: the recorded q is the law the draft was drawn from; a draft without q is a point mass."""

from collections.abc import Callable

import pytest
import torch

from slipstream.testing import (
    SampledToy,
    ToyDrafter,
    TraceRngs,
    distance,
    enumerate_traces,
    greedy_toy,
    make_round,
    marginals,
    memoryless,
    plain_law,
    run_law,
)
from slipstream.types import Draft, Draw, Laws, Rngs, Sequence, WorkError
from slipstream.verify import RULES

P, Q = (0.5, 0.3, 0.2), (0.4, 0.35, 0.25)
TARGET = memoryless(*P)
HALF = tuple(torch.tensor(Q).log().bfloat16().softmax(0).double().tolist())

DRAFTERS: dict[str, Callable[[], ToyDrafter]] = {
    "argmax": lambda: greedy_toy(memoryless(*Q), 3),
    "sampled": lambda: SampledToy(memoryless(*Q), 3),
    "sampled in half precision": lambda: SampledToy(memoryless(*HALF), 3),
}


class ScoredWithSoftmax(ToyDrafter):
    """Wrong: drafts the likeliest token but records the softmax it came from as if it had been drawn."""

    def grow(self, rows: list[Sequence], sprouts: list, budget: list[int], rngs: Rngs) -> None:
        for sprout in sprouts:
            sprout.q[0] = Q
            sprout.add(0, 0, Draw.SAMPLED)


@pytest.mark.parametrize("kind", DRAFTERS)
@pytest.mark.parametrize("rule", ["chain", "block", "tree", "coupled", "auto"])
def test_case_02_marginals_are_the_targets(rule: str, kind: str) -> None:
    law = run_law(make_round(TARGET, DRAFTERS[kind](), RULES[rule], 2), (0,), 2)
    assert distance(law, plain_law(TARGET, (0,), 2)) < 1e-12


@pytest.mark.parametrize("rule", ["chain", "block", "tree", "auto"])
def test_case_02_a_draft_without_q_is_a_point_mass(rule: str) -> None:
    """Token 0 stands with probability .5; refused, it is replaced by a draw from [0, .6, .4]."""
    fixed = Draft(torch.tensor([[0, 0]]), torch.tensor([[-1, 0]]), torch.tensor([2]), torch.zeros(1, 2).long())
    p = torch.tensor([[P, P]], dtype=torch.float64)

    def run(traces: list) -> list[tuple[int, int]]:
        verdict = RULES[rule](fixed, Laws(p), TraceRngs(traces))
        return [(int(verdict.accepted), int(verdict.next_token))]

    law = enumerate_traces(run)
    assert sum(w for (n, _), w in law.items() if n == 1) == pytest.approx(0.5, abs=1e-12)
    refused = [law.get((0, t), 0.0) / 0.5 for t in range(3)]
    assert refused == pytest.approx([0.0, 0.6, 0.4], abs=1e-12)


def test_case_02_argmax_scored_with_softmax_is_told_apart() -> None:
    law = run_law(make_round(TARGET, ScoredWithSoftmax(3), RULES["chain"], 1), (0,), 1)
    assert marginals(law, 3)[0] == pytest.approx([1.0, 0.0, 0.0])


@pytest.mark.parametrize("rule", ["chain", "block", "tree", "auto"])
def test_case_02_a_q_that_could_not_have_drawn_the_token_is_an_error(rule: str) -> None:
    q = torch.tensor([[(0.0, 0.5, 0.5)] * 2], dtype=torch.float64)
    draft = Draft(torch.tensor([[0, 0]]), torch.tensor([[-1, 0]]), torch.tensor([2]), torch.tensor([[0, 1]]), q)
    with pytest.raises(WorkError, match="recorded q is not the law drawn from"):
        enumerate_traces(lambda traces: [RULES[rule](draft, Laws(q), TraceRngs(traces)).accepted.item()])


@pytest.mark.parametrize("rule", ["chain", "block", "tree", "auto"])
def test_case_02_drawn_nodes_without_q_are_an_error(rule: str) -> None:
    draft = Draft(torch.tensor([[0, 0]]), torch.tensor([[-1, 0]]), torch.tensor([2]), torch.tensor([[0, 1]]))
    p = Laws(torch.tensor([[P, P]], dtype=torch.float64))
    with pytest.raises(WorkError, match="no q"):
        enumerate_traces(lambda traces: [RULES[rule](draft, p, TraceRngs(traces)).accepted.item()])
