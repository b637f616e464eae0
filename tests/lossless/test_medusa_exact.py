"""Medusa inside the real engine, every branch: the law is the target's whatever the heads think."""

from __future__ import annotations

import functools
from typing import Any

import pytest
from sampling_reference import plain_run_law
from test_engine_rounds_exact import PROMPT, SETTINGS, Eager, P, V, engine_law

import draft_zoo as zoo
from feature_target import FeatureTarget
from slipstream.drafters.medusa import Medusa, MedusaOptions
from slipstream.drafters.none import NoDraft
from slipstream.engine import Engine
from slipstream.nets.draft_config import Heads, Vocab
from slipstream.nets.medusa import MedusaNet
from slipstream.sampling import RequestRngs
from slipstream.testing import RandomLaw, distance
from slipstream.types import SamplingParams, Sequence
from slipstream.verify import RULES

KINDS: dict[str, MedusaOptions] = {
    "tree": MedusaOptions(),
    "static tree": MedusaOptions(choices="0 2 0,1 0,0 2,0"),
    "chain": MedusaOptions(shape="chain"),
}
EOS = (2,)


def drafter(kind: str, *, seconds: Any = None) -> Medusa:
    found = zoo.tiny("medusa", scale=0.7, vocab=Vocab(V, V), heads=Heads(2))
    net = MedusaNet(found.config, found.tensors, zoo.tables(V), max_rows=64, max_len=24, max_nodes=16)
    exact = net.logits
    # a product's last bits depend on the batch, and a branch must find the same choices each time it is visited
    net.logits = lambda features, count: exact(features, count).round(decimals=6)  # type: ignore[method-assign]
    return Medusa(net, vocab=V, max_rows=64, options=KINDS[kind], seconds=seconds)


def error(kind: str, rule: str, *, seconds: Any = None, width: int = 64, **params: Any) -> float:
    make = functools.partial(FeatureTarget, taps=(-1,))
    settings = {"temperature": 1.0, "max_tokens": 5, **params}
    found = engine_law(
        lambda: drafter(kind, seconds=seconds), rule, make_target=make, budget=4, width=width, **settings
    )
    plain = {k: v for k, v in settings.items() if k != "eos"}
    return distance(found, plain_run_law(P, V, PROMPT, SamplingParams(**plain), settings.get("eos", ())))


@pytest.mark.parametrize(
    ("kind", "rule"), [(k, r) for k in KINDS for r in ("auto", "tree", "coupled")] + [("chain", "block")]
)
def test_every_rule(kind: str, rule: str) -> None:
    assert error(kind, rule) < 1e-12


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("kind", ["tree", "static tree"])
def test_every_sampling_parameter(kind: str, setting: str) -> None:
    assert error(kind, "auto", **{"max_tokens": 4, **SETTINGS[setting]}) < 1e-12


def test_trees_sized_by_cost_are_exact() -> None:
    assert error("tree", "auto", seconds=lambda n: 1 + 0.3 * n, width=1) < 1e-12


@pytest.mark.parametrize("kind", KINDS)
def test_greedy_outputs_are_those_of_plain_decoding(kind: str) -> None:
    for seed in range(3):
        law = RandomLaw(V, seed, order=3)
        assert greedy_run(drafter(kind), law) == greedy_run(NoDraft(), law)


def greedy_run(one: Any, law: Any) -> list[list[int]]:
    engine = Engine(FeatureTarget(law, V, max_rows=3), one, RULES["auto"], Eager(5), make_rngs=RequestRngs)
    params = SamplingParams(max_tokens=9, ignore_eos=True)
    rows = [Sequence(i, [(i + j) % V for j in range(2 + i)], 2 + i, params) for i in range(3)]
    for row in rows:
        engine.add(row)
    while not engine.idle:
        engine.step()
    return [row.tokens for row in rows]
