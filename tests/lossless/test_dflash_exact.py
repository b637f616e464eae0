"""DFlash through the engine, every branch: chains drawn slot by slot and trees over the slots keep the target's law.

Two drafters that break the third and the fourth law show that the harness would see it.
"""

import functools

import pytest
import torch
from sampling_reference import plain_run_law
from test_engine_rounds_exact import EOS, PROMPT, SETTINGS, Eager, P, V, engine_law

from draft_zoo import body, tables, tiny
from slipstream.drafters.dflash import DFlash, DFlashOptions
from slipstream.engine import Engine
from slipstream.nets.dflash import DFlashNet
from slipstream.nets.draft_config import Block, Features, Vocab
from slipstream.sampling import RequestRngs
from slipstream.testing import RandomLaw, ToyTarget, distance
from slipstream.types import SamplingParams, Sequence
from slipstream.verify import RULES

FULL, MIXED = (False, False), (True, False)
KINDS = {
    "dflash": {"block": Block(4, V, False, FULL)},
    "anchor predicts": {"block": Block(3, V, True, FULL)},
    "sliding, causal": {"block": Block(4, V, False, MIXED), "body": body(2, qk_norm=True, windows=(2, None))},
    "reduced": {"block": Block(4, V, False, FULL), "vocab": Vocab(V, 2, own_head=True)},
}
CHAIN_RULES = ("chain", "block", "coupled", "auto")
SPARSE = RandomLaw(V, 1, zeros=True)


class Steady(DFlashNet):
    """Branches share a batch, and the last bits of a matrix product depend on its size: they must not branch."""

    def logits(self, states):
        return super().logits(states).round(decimals=9)


@functools.cache
def net_of(kind):
    found = tiny("dflash", scale=0.7, seed=3, features=Features((0,), 2), **{"vocab": V, **KINDS[kind]})
    return Steady(found.config, found.tensors, tables(V), max_rows=64, max_len=24, max_nodes=8)


def drafter(kind="dflash", shape="chain", make=DFlash):
    net = net_of(kind)
    for slot in range(64):
        net.layers.keep(slot, 0)
    return make(net, vocab=V, max_rows=64, options=DFlashOptions(shape=shape))


def want(law=P, eos=(), **params):
    return plain_run_law(law, V, PROMPT, SamplingParams(**{"temperature": 1.0, "max_tokens": 4, **params}), eos)


@pytest.mark.parametrize("rule", CHAIN_RULES)
@pytest.mark.parametrize("kind", KINDS)
def test_chains_and_rules(kind, rule):
    found = engine_law(lambda: drafter(kind), rule, budget=3 if rule == "block" else 2)
    assert distance(found, want()) < 1e-12


@pytest.mark.parametrize("rule", ["tree", "auto", "coupled"])
@pytest.mark.parametrize("kind", ["dflash", "anchor predicts", "reduced"])
def test_trees_and_rules(kind, rule):
    assert distance(engine_law(lambda: drafter(kind, "tree"), rule, budget=4), want()) < 1e-12


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize(("shape", "rule"), [("chain", "block"), ("chain", "coupled"), ("tree", "auto")])
def test_every_sampling_parameter(shape, rule, setting):
    params = SETTINGS[setting]
    found = engine_law(lambda: drafter(shape=shape), rule, **params)
    plain = {k: v for k, v in params.items() if k != "eos"}
    assert distance(found, want(eos=params.get("eos", ()), **plain)) < 1e-12


@pytest.mark.parametrize("rule", CHAIN_RULES)
def test_zeros_and_end_of_text(rule):
    found = engine_law(drafter, rule, law=SPARSE, eos=(EOS,))
    assert distance(found, want(SPARSE, (EOS,), ignore_eos=False)) < 1e-12


class Claims(DFlash):
    """WRONG: records another law than the one drawn from."""

    def propose(self, rows, budget, rngs):
        draft = super().propose(rows, budget, rngs)
        if draft.q is not None:
            draft.q.copy_(draft.q.sqrt() / draft.q.sqrt().sum(-1, keepdim=True).clamp(min=1e-300))
        return draft


class Picky(DFlash):
    """WRONG: drops a token after it was drawn because it is not a likely one."""

    def propose(self, rows, budget, rngs):
        draft = super().propose(rows, budget, rngs)
        for b in range(len(rows)):
            if draft.q is not None and int(draft.length[b]) > 1:
                last = int(draft.length[b]) - 1
                if float(draft.q[b, last - 1, draft.tokens[b, last]]) < 0.4:
                    draft.length[b] = last
                    draft.draw[b, last] = 0
        return draft


@pytest.mark.parametrize("make", [Claims, Picky])
def test_a_drafter_that_breaks_a_law_is_seen(make):
    assert distance(engine_law(lambda: drafter(make=make), "chain"), want()) > 1e-3


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("shape", "rule"), [("chain", "block"), ("tree", "auto")])
def test_greedy_text_is_the_plain_one(kind, shape, rule):
    law = RandomLaw(V, 4)
    target = ToyTarget(law, V)
    engine = Engine(target, drafter(kind, shape), RULES[rule], Eager(3), make_rngs=RequestRngs)
    prompts = [[0, 1], [2], [1, 1, 0, 2], [0]]
    params = SamplingParams(max_tokens=15, ignore_eos=True)
    rows = [Sequence(i, list(p), len(p), params) for i, p in enumerate(prompts)]
    for row in rows:
        engine.add(row)
    while not engine.idle:
        engine.step()
    for row, prompt in zip(rows, prompts, strict=True):
        text = list(prompt)
        while len(text) < len(row.tokens):
            text.append(int(torch.tensor(law(tuple(text))).argmax()))
        assert row.tokens == text
        assert row.generated == 15
    assert any(token.by == "dflash" for row in rows for token in row.emitted), "something was accepted"
