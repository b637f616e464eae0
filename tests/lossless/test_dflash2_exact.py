"""DFlash 2 through the engine, every branch: paths through a few tokens of each slot keep the target's law.

Drafters that record another law than that of the few they drew from, or that drop what they drew, are seen.
"""

import functools

import pytest
import torch
from sampling_reference import plain_run_law
from test_engine_rounds_exact import EOS, PROMPT, SETTINGS, Eager, P, V, engine_law

from draft_zoo import body, tables, tiny
from slipstream.drafters.dflash2 import DFlash2
from slipstream.engine import Engine
from slipstream.nets.dflash2 import DFlash2Net
from slipstream.nets.draft_config import Block, Features, Paths, Vocab
from slipstream.sampling import RequestRngs
from slipstream.sampling.laws import draft_law
from slipstream.testing import RandomLaw, ToyTarget, distance
from slipstream.types import SamplingParams, Sequence
from slipstream.verify import RULES

FULL = (False, False)
TWO, ALL = Paths(2, 4, 4, 2), Paths(2, 4, 4, V)
KINDS = {
    "two of three": {"block": Block(4, V, False, FULL), "paths": TWO},
    "one of three": {"block": Block(4, V, False, FULL), "paths": Paths(2, 4, 4, 1)},
    "all three": {"block": Block(4, V, False, FULL), "paths": ALL},
    "anchor predicts": {"block": Block(3, V, True, FULL), "paths": TWO},
    "sliding, causal": {
        "block": Block(4, V, False, (True, False)),
        "body": body(2, qk_norm=True, windows=(2, None)),
        "paths": Paths(3, 2, 4, 2),
    },
    "reduced": {"block": Block(4, V, False, FULL), "vocab": Vocab(V, 2, own_head=True), "paths": ALL},
    "scaled": {"block": Block(4, V, False, FULL), "paths": Paths(2, 4, 4, 2, 2.0, 0.5, 1.0)},
}
RULES_OF_CHAINS = ("chain", "block", "coupled", "auto")
SPARSE = RandomLaw(V, 1, zeros=True)


class Steady(DFlash2Net):
    """Branches share a batch, and the last bits of a matrix product depend on its size: they must not branch."""

    def logits(self, states):
        return super().logits(states).round(decimals=9)

    def scores(self, mixed, previous, tokens, logits):
        return super().scores(mixed, previous, tokens, logits).round(decimals=9)


@functools.cache
def net_of(kind):
    found = tiny("dflash2", scale=0.7, seed=3, features=Features((0,), 2), **{"vocab": V, **KINDS[kind]})
    return Steady(found.config, found.tensors, tables(V), max_rows=64, max_len=24, max_nodes=8)


def drafter(kind="two of three", make=DFlash2):
    net = net_of(kind)
    for slot in range(64):
        net.layers.keep(slot, 0)
    return make(net, vocab=V, max_rows=64)


def want(law=P, eos=(), **params):
    return plain_run_law(law, V, PROMPT, SamplingParams(**{"temperature": 1.0, "max_tokens": 4, **params}), eos)


@pytest.mark.parametrize("rule", RULES_OF_CHAINS)
@pytest.mark.parametrize("kind", KINDS)
def test_paths_and_rules(kind, rule):
    found = engine_law(lambda: drafter(kind), rule, budget=3 if rule == "block" else 2)
    assert distance(found, want()) < 1e-12


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("rule", ["block", "coupled"])
def test_every_sampling_parameter(rule, setting):
    params = SETTINGS[setting]
    plain = {k: v for k, v in params.items() if k != "eos"}
    assert distance(engine_law(drafter, rule, **params), want(eos=params.get("eos", ()), **plain)) < 1e-12


@pytest.mark.parametrize("rule", RULES_OF_CHAINS)
def test_zeros_and_end_of_text(rule):
    found = engine_law(drafter, rule, law=SPARSE, eos=(EOS,))
    assert distance(found, want(SPARSE, (EOS,), ignore_eos=False)) < 1e-12


class RecordsAll(DFlash2):
    """WRONG: draws from the few tokens of a slot and records the law over the whole vocabulary."""

    def _chains(self, work):
        rows = [work.rows[b] for b in work.live]
        states = self.context.block(rows, max(work.limits))
        slots, at = self._slots(states), list(range(len(rows)))
        previous = torch.tensor([row.tokens[-1] for row in rows])
        for depth in range(1, max(work.limits) + 1):
            tokens, logits = slots.tokens[at, depth - 1], slots.logits[at, depth - 1]
            mixed, live = slots.mixed[at, depth - 1], list(work.live)
            every = torch.arange(V).expand(len(at), V)
            whole = self.net.scores(mixed, previous, every, self.net.logits(states[at, depth - 1]))
            few = self._spread(tokens, self.net.scores(mixed, previous, tokens, logits))
            going = work.draw(few, depth)
            work._q[live, depth - 1] = draft_law([work.rows[b] for b in live], [[] for _ in live], whole)
            if not going:
                return
            at, previous = [at[i] for i in going], work.last()


class ForgetsTheToken(DFlash2):
    """WRONG: records the law behind the anchor at every depth, whatever was drawn before."""

    def propose(self, rows, budget, rngs):
        draft = super().propose(rows, budget, rngs)
        if draft.q is not None and draft.q.shape[1] > 2:
            draft.q[:, 1] = draft.q[:, 0]
        return draft


class Picky(DFlash2):
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


@pytest.mark.parametrize("make", [RecordsAll, ForgetsTheToken, Picky])
@pytest.mark.parametrize("rule", ["chain", "block"])
def test_a_drafter_that_breaks_a_law_is_seen(make, rule):
    assert distance(engine_law(lambda: drafter(make=make), rule), want()) > 1e-3


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rule", ["chain", "block"])
def test_greedy_text_is_the_plain_one(kind, rule):
    law = RandomLaw(V, 4)
    engine = Engine(ToyTarget(law, V), drafter(kind), RULES[rule], Eager(3), make_rngs=RequestRngs)
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
    assert any(token.by == "dflash2" for row in rows for token in row.emitted), "something was accepted"
