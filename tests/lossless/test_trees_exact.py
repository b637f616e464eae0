"""Trees of learned drafters through the real engine, every branch: whatever their shape, the target's law comes out."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from statistics import mean
from typing import Any

import pytest
import torch
from sampling_reference import plain_run_law
from test_engine_rounds_exact import V, engine_law

from slipstream.drafters.marginals import marginal_tree
from slipstream.testing import RandomLaw, distance, make_round, mean_emitted, plain_law, run_law
from slipstream.testing.toys import Law
from slipstream.types import Draft, Drafter, Draw, Needs, Rngs, SamplingParams, Sequence
from slipstream.verify import RULES
from toy_feed import GrowingToy

PROMPT = (0, 1)
P, Q = RandomLaw(V, 1), RandomLaw(V, 2)
SPARSE_P, SPARSE_Q = RandomLaw(V, 1, zeros=True), RandomLaw(V, 2, zeros=True)


class MarginalToy:
    """The `Drafter` role over `marginal_tree`: slot s knows the row but not what was drafted before it."""

    name = "toy-marginals"
    needs = Needs(tree=True)

    def __init__(self, law: Law, *, slots: int = 2, seconds: Callable[[int], float] | None = None) -> None:
        self.law, self.slots, self.seconds = law, slots, seconds

    def propose(self, rows: list[Sequence], budget: list[int], rngs: Rngs) -> Draft:
        laws = [[self.law((*row.tokens, s)) for s in range(self.slots)] for row in rows]
        return marginal_tree(rows, torch.tensor(laws, dtype=torch.float64).log(), budget, seconds=self.seconds)

    def observe(self, rows: list[Sequence], tokens: list[list[int]], taps: list[Mapping[int, Any]]) -> None:
        """Needs nothing."""

    def forget(self, row: Sequence) -> None:
        """Keeps nothing."""


DRAFTERS: dict[str, Callable[[Law], Drafter]] = {
    "dynamic, fixed": lambda q: GrowingToy(q, depth=2, top_k=2, drawn=False),
    "dynamic, hybrid": lambda q: GrowingToy(q, depth=2, top_k=2),
    "dynamic, hybrid, deep": lambda q: GrowingToy(q, depth=3, top_k=2),
    "dynamic, drawn chain": lambda q: GrowingToy(q, depth=2, top_k=1),
    "marginals": MarginalToy,
    "marginals, sized by cost": lambda q: MarginalToy(q, seconds=lambda n: 1 + 0.2 * n),
}


def error(make: Callable[[Law], Drafter], rule: str, p: Law = P, q: Law = Q, budget: int = 4, **params: Any) -> float:
    eos = params.pop("eos", ())
    settings = {"temperature": 1.0, "max_tokens": 3, **params}
    # trees sized by cost look at the whole batch, and the branches of an enumeration are not one batch
    width = 1 if getattr(make(q), "seconds", None) else 64
    found = engine_law(lambda: make(q), rule, law=p, budget=budget, eos=eos, width=width, **settings)
    return distance(found, plain_run_law(p, V, PROMPT, SamplingParams(**settings), eos))


@pytest.mark.parametrize("rule", ["auto", "tree", "coupled"])
@pytest.mark.parametrize("kind", DRAFTERS)
def test_trees_are_exact(kind: str, rule: str) -> None:
    assert error(DRAFTERS[kind], rule, max_tokens=5) < 1e-12  # a round drafts no more nodes than tokens are left
    assert error(DRAFTERS[kind], rule, SPARSE_P, SPARSE_Q, eos=(2,), max_tokens=5) < 1e-12


SETTINGS: dict[str, dict[str, Any]] = {
    "temperature .5": {"temperature": 0.5},
    "top-k 2": {"top_k": 2},
    "top-p .8": {"top_p": 0.8},
    "penalties": {"presence_penalty": 0.9, "repetition_penalty": 1.4},
    "bias, min tokens": {"logit_bias": {0: 1.5}, "min_tokens": 2, "eos": (2,)},
}


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("kind", ["dynamic, fixed", "dynamic, hybrid", "marginals"])
def test_every_sampling_parameter(kind: str, setting: str) -> None:
    assert error(DRAFTERS[kind], "auto", max_tokens=5, **SETTINGS[setting]) < 1e-12


@pytest.mark.parametrize("budget", [1, 2, 3, 5, 7, 11])
@pytest.mark.parametrize("kind", ["dynamic, fixed", "dynamic, hybrid", "dynamic, hybrid, deep", "marginals"])
def test_every_budget(kind: str, budget: int) -> None:
    found = run_law(make_round(P, DRAFTERS[kind](Q), RULES["auto"], budget), PROMPT, 4)  # type: ignore[arg-type]
    assert distance(found, plain_law(P, PROMPT, 4)) < 1e-12


def test_rows_of_both_kinds_in_one_batch_keep_their_laws() -> None:
    """The greedy row has a fixed tree and a sure output, its neighbour a hybrid tree and the target's law."""
    from slipstream.testing import Trace, TraceRngs, enumerate_traces, rows_after
    from slipstream.types import Laws

    def run(traces: list[Trace]) -> list[tuple[int, ...]]:
        cold = Sequence(0, list(PROMPT), 1, SamplingParams())
        warm = Sequence(1, list(PROMPT), 1, SamplingParams(temperature=1.0))
        rngs = TraceRngs([Trace(), traces[0]])
        draft = GrowingToy(Q, depth=2, top_k=2).propose([cold, warm], [4, 4], rngs)
        assert (draft.draw[0] == Draw.FIXED).all()
        verdict = RULES["auto"](draft, Laws(rows_after(P, PROMPT, draft)), rngs)
        return [int(draft.tokens[1, verdict.path[1, 0]]) if int(verdict.accepted[1]) else int(verdict.next_token[1])]  # type: ignore[list-item]

    law = enumerate_traces(run)
    assert [law.get(t, 0.0) for t in range(V)] == pytest.approx(list(P(PROMPT)), abs=1e-12)  # type: ignore[call-overload]


@pytest.mark.parametrize("kind", DRAFTERS)
def test_greedy_is_plain_greedy(kind: str) -> None:
    assert error(DRAFTERS[kind], "auto", temperature=0.0, max_tokens=12, budget=9) == 0.0


class Pruning(GrowingToy):
    """Wrong: a drawn child that the drafter thinks unlikely is dropped, with all its kind below it."""

    def propose(self, rows: list[Sequence], budget: list[int], rngs: Rngs) -> Draft:
        draft = super().propose(rows, budget, rngs)
        if draft.q is None:
            return draft
        unlikely = draft.q[:, 0].gather(1, draft.tokens[:, 1:2])[:, 0] < 0.4
        return replace(draft, length=torch.where(unlikely, 1, draft.length))


class PruningFixed(GrowingToy):
    """Right, though alike: fixed children are dropped by their own score."""

    def propose(self, rows: list[Sequence], budget: list[int], rngs: Rngs) -> Draft:
        draft = super().propose(rows, budget, rngs)
        if draft.nodes == 1:
            return draft
        mass = torch.tensor([Q(tuple(row.tokens))[t] for row, t in zip(rows, draft.tokens[:, 1].tolist(), strict=True)])
        return replace(draft, length=torch.where(mass < 0.6, 1, draft.length))


class Mislabelled(GrowingToy):
    """Wrong: the likeliest children, tested with their softmax q."""

    def propose(self, rows: list[Sequence], budget: list[int], rngs: Rngs) -> Draft:
        draft = super().propose(rows, budget, rngs)
        q = torch.tensor([[Q(tuple(row.tokens))] for row in rows], dtype=torch.float64).expand(-1, draft.nodes, -1)
        drawn = torch.full_like(draft.draw, int(Draw.SAMPLED))
        drawn[:, 0] = int(Draw.FIXED)
        return replace(draft, q=q, draw=drawn)


class Unconditioned(GrowingToy):
    """Wrong: the drawn child of a hybrid node is tested with q, not with q less its fixed siblings."""

    def propose(self, rows: list[Sequence], budget: list[int], rngs: Rngs) -> Draft:
        draft = super().propose(rows, budget, rngs)
        q = torch.tensor([[Q(tuple(row.tokens))] for row in rows], dtype=torch.float64).expand(-1, draft.nodes, -1)
        return draft if draft.q is None else replace(draft, q=q)


@pytest.mark.parametrize(
    ("wrong", "drawn", "least"), [(Pruning, True, 0.02), (Mislabelled, False, 0.05), (Unconditioned, True, 0.02)]
)
def test_control_wrong_trees_are_flagged(wrong: type[GrowingToy], drawn: bool, least: float) -> None:
    top_k = 1 if wrong is Pruning else 2
    assert error(lambda q: wrong(q, depth=1, top_k=top_k, drawn=drawn), "tree") > least
    assert error(lambda q: GrowingToy(q, depth=1, top_k=top_k, drawn=drawn), "tree") < 1e-12


def test_fixed_nodes_may_be_pruned_by_score() -> None:
    assert error(lambda q: PruningFixed(q, depth=2, top_k=2, drawn=False), "tree") < 1e-12


def accepted(drawn: bool, k: int, depth: int, budget: int, seed: int) -> float:
    """The mean length of a round when the drafter is a noisy copy of the target."""
    p, noise = RandomLaw(V, 1000 + seed), RandomLaw(V, 5000 + seed)

    def q(s: tuple[int, ...]) -> list[float]:
        return [0.6 * a + 0.4 * b for a, b in zip(p(s), noise(s), strict=True)]

    toy = GrowingToy(q, depth=depth, top_k=k, drawn=drawn)
    return mean_emitted(make_round(p, toy, RULES["tree"], budget)((0,)))


@pytest.mark.parametrize(("k", "depth", "budget"), [(1, 1, 1), (2, 1, 2), (2, 2, 6)])
def test_hybrid_trees_accept_more_than_fixed_ones_of_the_same_size(k: int, depth: int, budget: int) -> None:
    hybrid, fixed = (mean(accepted(drawn, k, depth, budget, s) for s in range(20)) for drawn in (True, False))
    assert hybrid > fixed + 0.02
