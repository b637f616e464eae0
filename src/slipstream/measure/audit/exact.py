"""Exact enumeration: rule, controller, laws, endings and the real engine, on three tokens, every branch.

In: the rule and controller to be audited and the user's sampling parameters. Out: `Check`s; each compares the law of
whole requests with plain decoding written out from the definitions (`testing.reference`), to 1e-12.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import torch

from slipstream.drafters.draft_model import DraftModel
from slipstream.drafters.lookup import Lookup, LookupOptions
from slipstream.engine import Engine, EngineOptions
from slipstream.measure.audit.findings import Check
from slipstream.testing import (
    NoneToy,
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
from slipstream.testing.reference import plain_run_law
from slipstream.testing.toy_decoder import ToyDecoder
from slipstream.testing.toys import Law, logits_of
from slipstream.types import (
    Controller,
    Draft,
    Drafter,
    Draw,
    Laws,
    SamplingParams,
    Sequence,
    Target,
    Verdict,
    VerifyRule,
)

V, PROMPT, EOS = 3, (0, 1), (2,)
P, Q = RandomLaw(V, 1), RandomLaw(V, 2)
WIDTH = 64
EXACT = 1e-12


class Learning:
    """A controller that learns from earlier rounds: one node after a refusal, `most` otherwise."""

    def __init__(self, most: int = 2) -> None:
        self.most, self._next = most, dict[int, int]()

    def begin(self) -> None:
        """Tell nobody anything."""

    def budget(self, rows: list[Sequence]) -> list[int]:
        """Return what the last round suggests."""
        return [self._next.get(row.id, self.most) for row in rows]

    def record(self, rows: list[Sequence], draft: Draft, verdict: Verdict, laws: Laws) -> None:
        """Remember whether anything stood."""
        for row, n in zip(rows, verdict.accepted.tolist(), strict=True):
            self._next[row.id] = self.most if n else 1


@dataclass(frozen=True)
class Setting:
    """What is enumerated, all but the drafter. `engine` and `around` (of the target) are where errors are planted."""

    rule: VerifyRule
    params: SamplingParams
    controller: Callable[[], Controller] = Learning
    law: Law = P
    engine: type[Engine] = Engine
    around: Callable[[Target], Target] = lambda target: target


def engine_law(setting: Setting, drafter: Callable[[], Drafter]) -> dict[tuple[int, ...], float]:
    """Return the exact law of a request's tokens; `WIDTH` branches decode as one batch."""

    def run(traces: list[Trace]) -> list[tuple[int, ...]]:
        target = setting.around(ToyTarget(setting.law, V, max_rows=WIDTH))
        engine = setting.engine(
            target,
            drafter(),
            setting.rule,
            setting.controller(),
            EngineOptions(max_rows=WIDTH),
            make_rngs=TraceFactory(traces, shared_noise=setting.rule.shared_noise),
        )
        rows = [Sequence(i, list(PROMPT), len(PROMPT), setting.params, eos_ids=EOS) for i in range(len(traces))]
        for row in rows:
            engine.add(row)
        while not engine.idle:
            engine.step()
        return [tuple(row.tokens[row.prompt_len :]) for row in rows]

    return enumerate_traces(run, WIDTH)


def error(setting: Setting, drafter: Callable[[], Drafter]) -> float:
    """Return the total variation between what the engine emits and plain decoding, missing mass included."""
    found = engine_law(setting, drafter)
    want = plain_run_law(setting.law, V, PROMPT, setting.params, EOS)
    return distance(found, want) + abs(sum(found.values()) - 1.0)


def small(params: SamplingParams, tokens: int) -> SamplingParams:
    """Return the user's parameters on a vocabulary of three: ids are folded, texts and counts left out."""
    bias = {token % V: value for token, value in (params.logit_bias or {}).items()}
    return dataclasses.replace(
        params,
        logit_bias=bias or None,
        max_tokens=tokens,
        min_tokens=min(params.min_tokens, tokens - 1),
        stop=(),
        stop_token_ids=tuple({token % V for token in params.stop_token_ids}),
        n=1,
        seed=None,
        logprobs=None,
    )


def drafters(q: Law, tree: bool) -> dict[str, Callable[[], Drafter]]:
    """Return every way a node can be drawn, and the production drafters that run on a toy network."""

    def draft_model() -> Drafter:
        decoder = ToyDecoder(lambda prefix: torch.tensor(logits_of(q(tuple(prefix))), dtype=torch.float64), vocab=V)
        return DraftModel(decoder, vocab=V, max_rows=WIDTH)

    found: dict[str, Callable[[], Drafter]] = {
        "no draft": lambda: NoneToy(V),
        "drawn chain": lambda: SampledToy(q, V),
        "fixed chain": lambda: greedy_toy(q, V),
        "lookup": lambda: Lookup(LookupOptions(min_ngram=1, max_ngram=3), vocab=V),
        "draft_model": draft_model,
    }
    if tree:
        found["distinct siblings"] = lambda: TreeToy(q, V, (Draw.DISTINCT, Draw.DISTINCT), 1)
        found["drawn and fixed siblings"] = lambda: TreeToy(q, V, (Draw.SAMPLED, Draw.FIXED), 1)
    return found


def pairs() -> dict[str, tuple[Law, Law]]:
    """Return pairs of p and q: random, with zeros, equal, nearly one-hot."""
    return {
        "random p and q": (P, Q),
        "zeros": (RandomLaw(V, 1, zeros=True), RandomLaw(V, 2, zeros=True)),
        "q equals p": (P, P),
        "peaked p": (RandomLaw(V, 3, lean=20), Q),
        "peaked q": (P, RandomLaw(V, 4, lean=20)),
    }


def enumerate_rule(
    name: str, rule: VerifyRule, controller: Controller, params: SamplingParams, tokens: int = 4
) -> list[Check]:
    """Return one check per pair of laws and per drafter of what a rule emits under the user's parameters."""
    found = []
    makers: dict[str, Callable[[], Controller]] = {"a learning controller": Learning}
    makers["the controller"] = lambda: copy.deepcopy(controller)
    warm = dataclasses.replace(small(params, tokens), temperature=params.temperature or 1.0)
    for label, (p, q) in pairs().items():
        for who, drafter in drafters(q, rule.tree).items():
            worst = 0.0
            for make in makers.values():
                worst = max(worst, error(Setting(rule, warm, make, p), drafter))
            found.append(_check(f"rule {name}: {who}, {label}", worst))
    if params.greedy:
        cold = Setting(rule, small(params, tokens), makers["the controller"])
        found.append(_check(f"rule {name}: greedy", error(cold, drafters(Q, False)["fixed chain"])))
    return found


def _check(name: str, worst: float) -> Check:
    said = f"total variation {worst:.1e} over every branch"
    return Check(name, "proved", said, passed=worst < EXACT, numbers={"total_variation": worst})
