"""Whole requests through the real engine, every branch: drafter, controller, laws, rule and endings are exact."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from sampling_reference import plain_run_law

from slipstream.drafters.draft_model import DraftModel
from slipstream.drafters.lookup import Lookup, LookupOptions
from slipstream.engine import Engine, EngineOptions
from slipstream.testing import (
    NoneToy,
    PeekingToy,
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
from slipstream.testing.toys import Law, logits_of
from slipstream.types import Draft, Drafter, Draw, Laws, SamplingParams, Sequence, Verdict
from slipstream.verify import RULES

F, S, D = Draw.FIXED, Draw.SAMPLED, Draw.DISTINCT
V, PROMPT, EOS = 3, (0, 1), 2
P, Q = RandomLaw(V, 1), RandomLaw(V, 2)
SPARSE_P, SPARSE_Q = RandomLaw(V, 1, zeros=True), RandomLaw(V, 2, zeros=True)


class Eager:
    """A controller that learns: budget 1 after a refusal, `most` otherwise. It knows earlier rounds only (law 4)."""

    def __init__(self, most: int) -> None:
        self.most, self._next = most, dict[int, int]()

    def begin(self) -> None: ...

    def budget(self, rows: list[Sequence]) -> list[int]:
        return [self._next.get(row.id, self.most) for row in rows]

    def record(self, rows: list[Sequence], draft: Draft, verdict: Verdict, laws: Laws) -> None:
        for row, n in zip(rows, verdict.accepted.tolist(), strict=True):
            self._next[row.id] = self.most if n else 1


def engine_law(
    drafter: Callable[[], Drafter],
    rule: str,
    *,
    law: Law = P,
    budget: int = 2,
    width: int = 64,
    shared_noise: bool | None = None,
    eos: tuple[int, ...] = (),
    make_target: Callable[..., ToyTarget] = ToyTarget,
    **params: Any,
) -> dict[tuple[int, ...], float]:
    """Return the exact law of the emitted tokens; `width` branches decode as one batch."""
    settings = SamplingParams(**{"temperature": 1.0, "max_tokens": 4, "ignore_eos": not eos, **params})
    noise = RULES[rule].shared_noise if shared_noise is None else shared_noise

    def run(traces: list[Trace]) -> list[tuple[int, ...]]:
        target = make_target(law, V, max_rows=width)
        rngs = TraceFactory(traces, shared_noise=noise)
        options = EngineOptions(max_rows=width)
        engine = Engine(target, drafter(), RULES[rule], Eager(budget), options, make_rngs=rngs)
        rows = [
            Sequence(id=i, tokens=list(PROMPT), prompt_len=len(PROMPT), params=settings, eos_ids=eos)
            for i in range(len(traces))
        ]
        for row in rows:
            engine.add(row)
        while not engine.idle:
            engine.step()
            for row in engine.scheduler.rows:
                assert target.cache[row.slot] == row.tokens[:-1]  # law 1
        return [tuple(row.tokens[row.prompt_len :]) for row in rows]

    found = enumerate_traces(run, width)
    assert sum(found.values()) == pytest.approx(1, abs=1e-12)
    return found


def draft_model(scored: int = V) -> DraftModel:
    """The production drafter on a toy network in float64, whose head may have fewer ids than it is fed."""
    law = lambda prefix: torch.tensor(logits_of(Q(tuple(prefix)))[:scored], dtype=torch.float64)  # noqa: E731
    return DraftModel(ToyDecoder(law, vocab=V), vocab=V, max_rows=64, ids=V)


DRAFTS: dict[str, tuple[Callable[[], Drafter], tuple[str, ...]]] = {
    "lookup": (lambda: Lookup(LookupOptions(min_ngram=1, max_ngram=3), vocab=V), ("chain", "coupled", "auto")),
    "draft_model": (draft_model, ("chain", "block", "coupled")),
    "draft_model, two ids": (lambda: draft_model(2), ("chain", "block", "coupled")),
    "none": (lambda: NoneToy(V), ("auto", "coupled")),
    "sampled": (lambda: SampledToy(Q, V), ("chain", "block", "coupled", "auto")),
    "greedy": (lambda: greedy_toy(Q, V), ("chain", "block", "tree", "coupled")),
    "distinct tree": (lambda: TreeToy(Q, V, (D, D), 1), ("tree", "coupled")),
    "hybrid tree": (lambda: TreeToy(Q, V, (S, F), 1), ("auto",)),
}
PAIRS = [(kind, rule) for kind, (_, rules) in DRAFTS.items() for rule in rules]
SETTINGS: dict[str, dict[str, Any]] = {
    "temperature .5": {"temperature": 0.5},
    "temperature 1.7, top-k 2": {"temperature": 1.7, "top_k": 2},
    "top-p .8": {"top_p": 0.8},
    "min-p .3": {"min_p": 0.3},
    "repetition penalty": {"repetition_penalty": 1.7},
    "presence and frequency": {"presence_penalty": 0.875, "frequency_penalty": 0.6},
    "logit bias": {"logit_bias": {0: 1.5, 2: -100.0}},
    "min tokens": {"min_tokens": 2, "eos": (EOS,)},
    "everything": {
        "temperature": 0.8,
        "top_k": 2,
        "top_p": 0.95,
        "min_p": 0.05,
        "repetition_penalty": 1.3,
        "presence_penalty": 0.5,
        "frequency_penalty": -0.3,
        "logit_bias": {1: 0.7},
        "min_tokens": 1,
        "eos": (EOS,),
    },
}


@pytest.mark.parametrize(("kind", "rule"), PAIRS)
def test_plain_settings(kind: str, rule: str) -> None:
    found = engine_law(DRAFTS[kind][0], rule)
    assert distance(found, plain_run_law(P, V, PROMPT, SamplingParams(temperature=1.0, max_tokens=4))) < 1e-12


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize(
    ("kind", "rule"),
    [
        ("sampled", "block"),
        ("sampled", "chain"),
        ("greedy", "tree"),
        ("hybrid tree", "auto"),
        ("sampled", "coupled"),
        ("lookup", "auto"),
        ("draft_model", "block"),
    ],
)
def test_every_sampling_parameter(kind: str, rule: str, setting: str) -> None:
    params = SETTINGS[setting]
    eos = params.get("eos", ())
    settings = SamplingParams(
        **{"temperature": 1.0, "max_tokens": 4, **{k: v for k, v in params.items() if k != "eos"}}
    )
    found = engine_law(DRAFTS[kind][0], rule, **params)
    assert distance(found, plain_run_law(P, V, PROMPT, settings, eos)) < 1e-12


@pytest.mark.parametrize("rule", ["chain", "block", "tree", "coupled", "auto"])
def test_zeros_and_end_of_text(rule: str) -> None:
    found = engine_law(lambda: SampledToy(SPARSE_Q, V), rule, law=SPARSE_P, eos=(EOS,))
    want = plain_run_law(SPARSE_P, V, PROMPT, SamplingParams(temperature=1.0, max_tokens=4), (EOS,))
    assert distance(found, want) < 1e-12


@pytest.mark.parametrize("rule", ["block", "coupled"])
def test_the_law_does_not_depend_on_batch_mates(rule: str) -> None:
    alone = engine_law(DRAFTS["sampled"][0], rule, width=1, max_tokens=2)
    assert distance(alone, engine_law(DRAFTS["sampled"][0], rule, width=64, max_tokens=2)) < 1e-15


def test_user_processors_see_the_prefix_of_their_node() -> None:
    def no_repeat(prefix: Any, row: torch.Tensor) -> torch.Tensor:
        row[prefix[-1]] = -torch.inf
        return row

    params = {"logits_processors": (no_repeat,)}
    found = engine_law(DRAFTS["hybrid tree"][0], "auto", **params)
    want = plain_run_law(P, V, PROMPT, SamplingParams(temperature=1.0, max_tokens=4, **params))  # type: ignore[arg-type]
    assert distance(found, want) < 1e-12


def test_control_a_peeking_drafter_is_flagged_through_the_engine() -> None:
    def unlikely(prefix: tuple[int, ...], drafted: tuple[int, ...]) -> bool:
        return Q((*prefix, *drafted[:-1]))[drafted[-1]] < 0.4

    found = engine_law(lambda: PeekingToy(Q, V, unlikely), "block", max_tokens=2)
    assert distance(found, plain_run_law(P, V, PROMPT, SamplingParams(temperature=1.0, max_tokens=2))) > 0.02


def test_control_noise_of_an_earlier_round_is_flagged_under_block_verification() -> None:
    """Refused tokens of a block took part in its verdict: drawing again with their noise is biased."""
    want = plain_run_law(P, V, PROMPT, SamplingParams(temperature=1.0, max_tokens=4))
    reused = engine_law(DRAFTS["sampled"][0], "block", shared_noise=True)
    assert distance(reused, want) > 1e-4
    fresh = engine_law(DRAFTS["sampled"][0], "block")
    assert distance(fresh, want) < 1e-12
