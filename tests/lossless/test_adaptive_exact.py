"""The adaptive controller and mixed drafters in the loop: every branch of whole requests, state of earlier rounds
included, has the target's law; turning to another drafter for a drawn token's sake has not."""

from collections.abc import Callable

import pytest
import torch
from sampling_reference import plain_run_law

from control_kit import profile_of
from slipstream.control.adaptive import AdaptiveBudget, AdaptiveOptions
from slipstream.control.arms import Arm
from slipstream.drafters.draft_model import DraftModel
from slipstream.drafters.lookup import Lookup, LookupOptions
from slipstream.drafters.mixed import Mixed
from slipstream.engine import Engine, EngineOptions
from slipstream.testing import (
    RandomLaw,
    SampledToy,
    ToyTarget,
    Trace,
    TraceFactory,
    TreeToy,
    distance,
    enumerate_traces,
    greedy_toy,
)
from slipstream.testing.toy_decoder import ToyDecoder
from slipstream.testing.toys import logits_of
from slipstream.types import Draft, Drafter, Draw, SamplingParams, Sequence
from slipstream.verify import RULES

V, PROMPT, WIDTH = 3, (0, 1), 64
P, Q, OTHER = RandomLaw(V, 1), RandomLaw(V, 2), RandomLaw(V, 3)
FLAT, STEEP = {1: 1.0, 32: 1.1}, {1: 1.0, 2: 1.4, 3: 2.0, 8: 5.0}


def lookup() -> Lookup:
    return Lookup(LookupOptions(min_ngram=1, max_ngram=3), vocab=V)


def draft_model() -> DraftModel:
    decoder = ToyDecoder(lambda prefix: torch.tensor(logits_of(Q(tuple(prefix))), dtype=torch.float64), vocab=V)
    return DraftModel(decoder, vocab=V, max_rows=WIDTH)


MIXES: dict[str, Callable[[], list[Drafter]]] = {
    "lookup": lambda: [lookup()],
    "drawn": lambda: [SampledToy(Q, V)],
    "lookup + draft model": lambda: [lookup(), draft_model()],
    "lookup + drawn": lambda: [lookup(), SampledToy(Q, V)],
    "two drawn": lambda: [SampledToy(Q, V), SampledToy(OTHER, V)],
    "greedy + drawn": lambda: [greedy_toy(Q, V), SampledToy(OTHER, V)],
    "lookup + hybrid tree": lambda: [lookup(), TreeToy(Q, V, (Draw.SAMPLED, Draw.FIXED), 1)],
}


def law_of(
    parts: list[Drafter],
    rule: str,
    table: dict[int, float],
    *,
    tokens: int = 4,
    width: int = WIDTH,
    mix: type[Mixed] = Mixed,
) -> tuple[dict[tuple[int, ...], float], set[tuple[int, int]]]:
    """Return the exact law of what is emitted, and which plans there were."""
    plans: set[tuple[int, int]] = set()
    settings = SamplingParams(temperature=1.0, max_tokens=tokens, ignore_eos=True)
    options = AdaptiveOptions(curiosity=0.2, shared_noise=RULES[rule].shared_noise)

    def run(traces: list[Trace]) -> list[tuple[int, ...]]:
        for part in parts:
            for i in range(WIDTH):
                part.forget(Sequence(i, [], 0, settings))
        arms = [Arm(p.name, 2, look=getattr(p, "look", None), tree=p.needs.tree) for p in parts]
        costs = {arm.name: 0.05 for arm in arms}
        controller = AdaptiveBudget(arms, profile_of(table, costs), options, clock=lambda: 0.0)
        drafter = mix(parts, controller.route)
        rngs = TraceFactory(traces, shared_noise=RULES[rule].shared_noise)
        target = ToyTarget(P, V, max_rows=WIDTH)
        engine = Engine(target, drafter, RULES[rule], controller, EngineOptions(max_rows=WIDTH), make_rngs=rngs)
        rows = [Sequence(i, list(PROMPT), len(PROMPT), settings) for i in range(len(traces))]
        for row in rows:
            engine.add(row)
        while not engine.idle:
            engine.step()
            plans.update((own.plan.arm, own.plan.length) for own in controller._rows.values())
        return [tuple(row.tokens[len(PROMPT) :]) for row in rows]

    found = enumerate_traces(run, width)
    assert sum(found.values()) == pytest.approx(1, abs=1e-12)
    return found, plans


def plain(tokens: int = 4) -> dict[tuple[int, ...], float]:
    return plain_run_law(P, V, PROMPT, SamplingParams(temperature=1.0, max_tokens=tokens))


@pytest.mark.parametrize("table", [FLAT, STEEP], ids=["flat", "steep"])
@pytest.mark.parametrize("kind", MIXES)
def test_every_branch_has_the_targets_law(kind, table):
    found, plans = law_of(MIXES[kind](), "auto", table)
    assert distance(found, plain()) < 1e-12
    assert any(length for _, length in plans)
    assert len(plans) > 1 or (table == FLAT and kind in {"drawn", "lookup + hybrid tree"}), "the controller decides"


@pytest.mark.parametrize("rule", ["chain", "block", "coupled"])
def test_every_rule(rule):
    # rows of the coupled rule share a budget, so that branches would not be each other's twins in one batch
    width, tokens = (1, 3) if rule == "coupled" else (WIDTH, 4)
    found, plans = law_of(MIXES["two drawn"](), rule, FLAT, width=width, tokens=tokens)
    assert distance(found, plain(tokens)) < 1e-12
    assert {arm for arm, _ in plans} >= {0}


def test_turns_change_within_a_request():
    _, plans = law_of(MIXES["greedy + drawn"](), "auto", FLAT, tokens=4)
    assert {arm for arm, _ in plans} >= {0, 1}


class Peeking(Mixed):
    """Breaks law 4: lets the first drafter draw, and turns to the second when the token drawn looks unlikely."""

    def propose(self, rows, budget, rngs):
        turns = {row.id: 0 for row in rows}
        self.route = lambda row: turns[row.id]
        first = super().propose(rows, budget, rngs)
        again = []
        for b, row in enumerate(rows):
            if int(first.length[b]) > 1 and Q(tuple(row.tokens))[int(first.tokens[b, 1])] < 0.4:
                turns[row.id] = 1
                again.append(b)
        if not again:
            return first
        second = self.drafters[1].propose(rows, budget, rngs)
        width = max(first.nodes, second.nodes)
        return _mended(first, second, again, width)


def _mended(first: Draft, second: Draft, again: list[int], width: int) -> Draft:
    from slipstream.drafters.trees import widen

    kept, new = widen(first, width), widen(second, width)
    q = kept.q.clone() if kept.q is not None else torch.zeros(len(kept.length), width, V, dtype=torch.float64)
    tokens, length, draw = kept.tokens.clone(), kept.length.clone(), kept.draw.clone()
    for b in again:
        tokens[b], length[b], draw[b] = new.tokens[b], new.length[b], new.draw[b]
        q[b] = new.q[b] if new.q is not None else 0.0
    return Draft(tokens, kept.parents, length, draw, q)


def test_control_turning_away_from_a_drawn_token_is_flagged():
    parts = [SampledToy(Q, V), greedy_toy(OTHER, V)]
    wrong, _ = law_of(parts, "chain", FLAT, tokens=2, mix=Peeking)
    assert distance(wrong, plain(2)) > 0.02
    right, _ = law_of(parts, "chain", FLAT, tokens=2)
    assert distance(right, plain(2)) < 1e-12
