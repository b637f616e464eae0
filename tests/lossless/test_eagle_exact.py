"""EAGLE-type drafters inside the real engine, every branch: the law is the target's whatever the network thinks."""

import dataclasses
import functools
from typing import Any

import pytest
import torch
from sampling_reference import plain_run_law
from test_engine_rounds_exact import EOS, PROMPT, SETTINGS, Eager, P, V, engine_law

import draft_zoo as zoo
from feature_target import FeatureTarget
from slipstream.drafters.eagle import Eagle, EagleOptions
from slipstream.drafters.eagle3 import Eagle3
from slipstream.drafters.none import NoDraft
from slipstream.drafters.peagle import PEagle
from slipstream.engine import Engine
from slipstream.nets.draft_config import Vocab
from slipstream.nets.eagle import EagleNet
from slipstream.nets.eagle3 import Eagle3Net, PEagleNet
from slipstream.sampling import RequestRngs
from slipstream.testing import RandomLaw, distance
from slipstream.types import SamplingParams, Sequence
from slipstream.verify import RULES

KINDS: dict[str, tuple[Any, Any]] = {
    "eagle": (EagleNet, Eagle),
    "eagle3": (Eagle3Net, Eagle3),
    "peagle": (PEagleNet, PEagle),
}
REDUCED = Vocab(V, 2, own_head=True)


def drafter(kind: str, *, rows: int = 64, options: Any = None, **changes: Any) -> Any:
    found = zoo.tiny(kind, scale=0.7, **{"vocab": V, **changes})
    net, make = KINDS[kind]
    built = net(found.config, found.tensors, zoo.tables(V), max_rows=rows, max_len=24, max_nodes=16)
    exact = built.logits
    # a product's last bits depend on the batch, and a branch must find the same choices each time it is visited
    built.logits = lambda states: exact(states).round(decimals=6)
    return make(built, vocab=V, max_rows=rows, options=options)


def law_of(kind: str, rule: str, *, changes: Any = None, **settings: Any) -> dict[tuple[int, ...], float]:
    one = drafter(kind, **(changes or {}))

    def fresh() -> Any:
        for row_id in list(one._rows.held):
            one.forget(Sequence(row_id, [0], 1, SamplingParams()))
        return one

    target = functools.partial(FeatureTarget, taps=one.needs.taps)
    return engine_law(fresh, rule, make_target=target, **settings)


@pytest.mark.parametrize("rule", ["chain", "block", "coupled", "auto"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_rule(kind: str, rule: str) -> None:
    want = plain_run_law(P, V, PROMPT, SamplingParams(temperature=1.0, max_tokens=4))
    assert distance(law_of(kind, rule, budget=3 if rule == "block" else 2), want) < 1e-12


@pytest.mark.parametrize("rule", ["tree", "auto"])
@pytest.mark.parametrize("kind", ["eagle", "eagle3"])
@pytest.mark.parametrize("changes", [{}, {"vocab": REDUCED}], ids=["all ids", "reduced"])
def test_hybrid_trees(kind: str, rule: str, changes: dict[str, Any]) -> None:
    options = EagleOptions(shape="tree", depth=2, top_k=2)
    found = law_of(kind, rule, changes={"options": options, **changes}, budget=3, max_tokens=3)
    assert distance(found, plain_run_law(P, V, PROMPT, SamplingParams(temperature=1.0, max_tokens=3))) < 1e-12


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("kind", ["eagle3", "peagle"])
def test_every_sampling_parameter(kind: str, setting: str) -> None:
    params = SETTINGS[setting]
    plain = {k: v for k, v in params.items() if k != "eos"}
    settings = SamplingParams(**{"temperature": 1.0, "max_tokens": 3, **plain})
    found = law_of(kind, "block", **{"max_tokens": 3, **params})
    assert distance(found, plain_run_law(P, V, PROMPT, settings, params.get("eos", ()))) < 1e-12


@pytest.mark.parametrize("rule", ["chain", "block", "auto"])
def test_a_reduced_vocabulary_still_emits_every_token(rule: str) -> None:
    found = law_of("eagle3", rule, changes={"vocab": REDUCED})
    want = plain_run_law(P, V, PROMPT, SamplingParams(temperature=1.0, max_tokens=4))
    assert distance(found, want) < 1e-12
    assert {t for tokens in found for t in tokens} == set(range(V))


def test_end_of_text() -> None:
    want = plain_run_law(P, V, PROMPT, SamplingParams(temperature=1.0, max_tokens=4), (EOS,))
    assert distance(law_of("eagle3", "block", eos=(EOS,)), want) < 1e-12


def test_control_ids_mapped_after_they_were_drawn_are_flagged(monkeypatch: pytest.MonkeyPatch) -> None:
    """The classic mistake with a reduced vocabulary: q speaks of draft ids, the tokens are target ids."""
    honest = Eagle3.propose

    def propose(self: Any, *args: Any) -> Any:
        draft = honest(self, *args)
        mapped = torch.cat([draft.tokens[:, :1], (draft.tokens[:, 1:] + 1) % V], dim=1)
        return dataclasses.replace(draft, tokens=mapped)

    want = plain_run_law(P, V, PROMPT, SamplingParams(temperature=1.0, max_tokens=2))
    assert distance(law_of("eagle3", "block", max_tokens=2), want) < 1e-12
    monkeypatch.setattr(Eagle3, "propose", propose)
    assert distance(law_of("eagle3", "block", max_tokens=2), want) > 0.02


def greedy_run(make: Any, law: Any, rows: int, budget: int) -> list[list[int]]:
    one = make()
    target = FeatureTarget(law, V, max_rows=rows, taps=one.needs.taps)
    engine = Engine(target, one, RULES["auto"], Eager(budget), make_rngs=RequestRngs)
    params = SamplingParams(max_tokens=9, ignore_eos=True)
    found = [Sequence(i, [(i + j) % V for j in range(2 + i)], 2 + i, params) for i in range(rows)]
    for row in found:
        engine.add(row)
    while not engine.idle:
        engine.step()
    return [row.tokens for row in found]


@pytest.mark.parametrize(
    ("kind", "options"), [*((kind, None) for kind in KINDS), ("eagle3", EagleOptions(shape="tree"))]
)
def test_greedy_outputs_are_those_of_plain_decoding(kind: str, options: Any) -> None:
    for seed in range(3):
        law = RandomLaw(V, seed, order=3)
        plain = greedy_run(NoDraft, law, 5, 0)
        assert greedy_run(lambda: drafter(kind, rows=5, options=options), law, 5, 4) == plain
