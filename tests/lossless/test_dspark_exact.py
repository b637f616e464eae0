"""DSpark through the engine, every branch: heads, threshold and scheduler in the loop keep the target's law.

The scheduler looks at all rows of a batch, so its joint law over two rows is enumerated too. Appendix A of 2607.05147,
where looking past the first token that does not pay is biased, must be found by the same harness.
"""

import dataclasses
import functools

import pytest
import torch
from sampling_reference import plain_run_law
from test_engine_rounds_exact import PROMPT, SETTINGS, Eager, engine_law

from draft_zoo import DTYPE, tables, tiny
from slipstream.drafters.chains import chain_draft
from slipstream.drafters.dspark import DSpark, DSparkOptions
from slipstream.drafters.schedule import schedule
from slipstream.engine import Engine, EngineOptions
from slipstream.nets.draft_config import Block, Features, Markov, Vocab
from slipstream.nets.dspark import Corrected, DSparkNet
from slipstream.testing import RandomLaw, ToyTarget, TraceFactory, distance, enumerate_traces, marginals
from slipstream.types import SamplingParams, Sequence
from slipstream.verify import RULES

WIDTH = 64
KINDS = ("vanilla", "gated", "rnn", "none")
WAYS = {
    "all": DSparkOptions(),
    "threshold": DSparkOptions(threshold=0.5),
    "hardware": DSparkOptions(schedule="hardware"),
    "both, tempered": DSparkOptions(schedule="hardware", threshold=0.3, temperatures=(2.0, 0.5)),
}
P = RandomLaw(3, 1)


def seconds(n):
    """A round's time: a fixed part and a part for each token, so that lengths differ from round to round."""
    return 1.0 + 0.3 * n


def blunt(x):
    """Drop the digits that depend on how many rows share a product: they would make branches come and go."""
    return x.round(decimals=9)


class BluntNet(DSparkNet):
    def block(self, anchors, slots, size=None):
        return blunt(super().block(anchors, slots, size))

    def logits(self, states):
        return blunt(super().logits(states))

    def correct(self, hidden, base, previous, state=None):
        found = super().correct(hidden, base, previous, state)
        return Corrected(*(None if x is None else blunt(x) for x in vars(found).values()))


def _say(tensors):
    """Make the token before a slot decide its confidence: near .3 after id 0, .9 after id 1, .6 after id 2."""
    weight, table = tensors["confidence.weight"], tensors["markov.w1.weight"]
    goal = torch.tensor([0.3, 0.9, 0.6], dtype=DTYPE).logit()[: len(table)]
    weight[0, : -table.shape[1]] *= 0.02
    weight[0, -table.shape[1] :] = torch.linalg.pinv(table) @ goal
    tensors["confidence.bias"].zero_()


@functools.cache
def net_of(kind, vocab=3, anchor_predicts=True):
    sure = "hidden" if kind == "none" else "markov"
    found = tiny(
        "dspark",
        vocab=vocab,
        seed=5,
        scale=0.7,
        features=Features((0,), 2),
        block=Block(3, vocab, anchor_predicts, (False, False)),
        markov=Markov(kind, 0 if kind == "none" else 6, sure),
    )
    if sure == "markov":
        _say(found.tensors)
    target = tables(vocab)
    soft = dataclasses.replace(target, head=lambda states: 0.15 * target.head(states))  # so that all tokens are drawn
    return BluntNet(found.config, found.tensors, soft, max_rows=2 * WIDTH, max_len=16, max_nodes=4)


class Watched(DSpark):
    """The production drafter, noting how many tokens it submits."""

    def __init__(self, net, options=None, **more):
        super().__init__(
            net, vocab=net.config.vocab.target, max_rows=2 * WIDTH, options=options, seconds=seconds, **more
        )
        self.seen = set()

    def propose(self, rows, budget, rngs):
        draft = super().propose(rows, budget, rngs)
        lengths = draft.length.tolist()
        self.seen |= {(tuple(row.tokens), n, kept) for row, n, kept in zip(rows, budget, lengths, strict=True)}
        return draft

    def varied(self):
        """True when the same text and budget led to different lengths: the tokens drawn decided."""
        return len({key[:2] for key in self.seen}) < len(self.seen)


class Alone(Watched):
    """Schedule each row as a batch of its own: `WIDTH` branches share a batch, and must not see each other."""

    size, cost = 1, staticmethod(seconds)

    def propose(self, rows, budget, rngs):
        self.ids = [row.id for row in rows]
        return super().propose(rows, budget, rngs)

    def plan(self, survival, drawn):
        return schedule(survival, drawn, self.cost)

    def _lengths(self, survival, drawn):
        lengths = [0] * len(drawn)
        for group in {i // self.size for i in self.ids}:
            own = [b for b, i in enumerate(self.ids) if i // self.size == group]
            for b, n in zip(own, self.plan(survival[own], [drawn[b] for b in own]), strict=True):
                lengths[b] = n
        return lengths


class Pairs(Alone):
    """Schedule rows 2i and 2i + 1 together: a branch is a batch of two."""

    size = 2


class Best(Pairs):
    """WRONG: take the lengths of the highest rate of all, whatever lies between."""

    cost = staticmethod({2: 1.0, 3: 1.6, 4: 1.95, 5: 2.2, 6: 2.35, 1: 0.5}.__getitem__)

    def plan(self, survival, drawn):
        order = [(-float(survival[b, k]), k, b) for b, most in enumerate(drawn) for k in range(most)]
        expected, lengths, best = float(len(drawn)), [0] * len(drawn), len(drawn) / self.cost(len(drawn))
        found = list(lengths)
        for n, (chance, k, b) in enumerate(sorted(order), len(drawn) + 1):
            expected -= chance
            lengths[b] = k + 1
            if expected / self.cost(n) > best:
                best, found = expected / self.cost(n), list(lengths)
        return found


def want(vocab=3, law=P, prompt=PROMPT, **params):
    eos = params.pop("eos", ())
    settings = SamplingParams(**{"temperature": 1.0, "max_tokens": 4, **params})
    return plain_run_law(law, vocab, prompt, settings, eos)


@pytest.mark.parametrize("rule", ["chain", "block", "coupled", "auto"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_head_and_rule(kind, rule):
    found = engine_law(lambda: Alone(net_of(kind)), rule, max_tokens=3)
    assert distance(found, want(max_tokens=3)) < 1e-12


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("rule", ["chain", "block"])
def test_cut_drafts(way, rule):
    made = []

    def drafter():
        made.append(Alone(net_of("gated"), WAYS[way]))
        return made[-1]

    assert distance(engine_law(drafter, rule), want()) < 1e-12
    assert any(d.varied() for d in made) == (way != "all"), "tokens drawn decide how much is kept"


@pytest.mark.parametrize("setting", ["temperature 1.7, top-k 2", "min tokens", "everything"])
def test_every_sampling_parameter(setting):
    found = engine_law(lambda: Alone(net_of("rnn"), WAYS["hardware"]), "block", **SETTINGS[setting])
    assert distance(found, want(**SETTINGS[setting])) < 1e-12


def test_slots_that_predict_their_own_place():
    found = engine_law(lambda: Alone(net_of("rnn", anchor_predicts=False), WAYS["hardware"]), "block")
    assert distance(found, want()) < 1e-12


@pytest.mark.parametrize("kind", KINDS)
def test_greedy_is_plain(kind):
    assert engine_law(lambda: Alone(net_of(kind), WAYS["hardware"]), "chain", temperature=0.0) == want(temperature=0.0)


def pair_law(drafter, rule, law, prompts, *, budget=2, max_tokens=3):
    """The exact joint law of two rows that are scheduled together; many branches share a batch."""
    settings = SamplingParams(temperature=1.0, max_tokens=max_tokens, ignore_eos=True)

    def run(traces):
        rows = [
            Sequence(2 * i + j, list(prompts[j]), len(prompts[j]), settings) for i in range(len(traces)) for j in (0, 1)
        ]
        target = ToyTarget(law, 2, max_rows=len(rows))
        rngs = TraceFactory([t for t in traces for _ in (0, 1)])
        options = EngineOptions(max_rows=len(rows))
        engine = Engine(target, drafter(), RULES[rule], Eager(budget), options, make_rngs=rngs)
        for row in rows:
            engine.add(row)
        while not engine.idle:
            engine.step()
        made = [tuple(row.tokens[row.prompt_len :]) for row in rows]
        return list(zip(made[::2], made[1::2], strict=True))

    return enumerate_traces(run, WIDTH)


PAIR_LAW, PAIR = RandomLaw(2, 4), ((0, 1), (1,))


def pair_want(max_tokens=3):
    one, two = (want(2, PAIR_LAW, prompt, max_tokens=max_tokens) for prompt in PAIR)
    return {(a, b): p * q for a, p in one.items() for b, q in two.items()}


@pytest.mark.parametrize("rule", ["chain", "block"])
@pytest.mark.parametrize("way", ["hardware", "both, tempered"])
def test_two_rows_scheduled_together_are_independent_and_right(way, rule):
    made = []

    def drafter():
        made.append(Pairs(net_of("gated", 2), WAYS[way]))
        return made[-1]

    found = pair_law(drafter, rule, PAIR_LAW, PAIR)
    assert sum(found.values()) == pytest.approx(1, abs=1e-12)
    assert distance(found, pair_want()) < 1e-12
    assert any(d.varied() for d in made)


def test_control_the_best_rate_of_all_is_flagged_over_two_rows():
    found = pair_law(lambda: Best(net_of("gated", 2), WAYS["hardware"]), "chain", PAIR_LAW, PAIR)
    assert distance(found, pair_want()) > 0.01


SPS = {1: 1.0, 2: 0.5, 3: 0.45}


@functools.cache
def appendix_net():
    """Draft A and B (ids 0 and 2) evenly; confidence .8 after the root (id 1), .9 after A, 0 after B."""
    found = tiny(
        "dspark",
        vocab=3,
        features=Features((0,), 2),
        block=Block(2, 3, True, (False, False)),
        markov=Markov("vanilla", 2, "markov"),
    )
    config = dataclasses.replace(found.config, vocab=Vocab(3, 3, own_head=True))
    said = torch.tensor([0.9, 0.8, 0.0], dtype=DTYPE).logit().clamp(min=-1e4)
    sure = torch.zeros(1, config.body.hidden + 2, dtype=DTYPE)
    sure[0, -1] = 1.0
    planted = {
        "head.weight": torch.zeros(3, config.body.hidden, dtype=DTYPE),
        "markov.w1.weight": torch.stack([torch.ones(3, dtype=DTYPE), said], 1),
        "markov.w2.weight": torch.tensor([[0.0, 0.0], [-1e4, 0.0], [0.0, 0.0]], dtype=DTYPE),
        "confidence.weight": sure,
        "confidence.bias": torch.zeros(1, dtype=DTYPE),
    }
    return DSparkNet(config, {**found.tensors, **planted}, tables(3), max_rows=2 * WIDTH, max_len=16, max_nodes=4)


class Appendix(Alone):
    """Appendix A's rates; `early` False looks past the first token that does not pay."""

    def __init__(self, early):
        super().__init__(appendix_net(), WAYS["hardware"])
        self.early = early

    def plan(self, survival, drawn):
        if self.early:
            return schedule(survival, drawn, lambda n: 1 / SPS[n])
        rates = [(1 + float(survival[0, :k].sum())) * SPS[1 + k] for k in range(drawn[0] + 1)]
        return [rates.index(max(rates))]


def first_token(early):
    law = engine_law(lambda: Appendix(early), "chain", law=lambda prefix: (0.7, 0.0, 0.3), max_tokens=3)
    return marginals(law, 3)[0]


def test_appendix_a_with_the_early_break():
    assert first_token(True) == pytest.approx([0.7, 0.0, 0.3], abs=1e-12)


def test_control_appendix_a_without_it():
    assert first_token(False) == pytest.approx([0.85, 0.0, 0.15], abs=1e-12)


class OwnLuck(Alone):
    """WRONG: withdraw a drawn token because of its own probability."""

    def propose(self, rows, budget, rngs):
        draft = super().propose(rows, budget, rngs)
        if draft.q is None:
            return draft
        own = draft.q[:, :-1].gather(2, draft.tokens[:, 1:, None])[..., 0]
        kept = (own >= 0.4).long().cumprod(1).sum(1).tolist()
        lengths = [min(n, k + 1) for n, k in zip(draft.length.tolist(), kept, strict=True)]
        guesses = [draft.tokens[b, 1:n].tolist() for b, n in enumerate(lengths)]
        return chain_draft(rows, guesses, sampled=[True] * len(rows), q=draft.q)


class Uncorrected(Alone):
    """WRONG: draw from the corrected law, record the slot's own."""

    def propose(self, rows, budget, rngs):
        draft = super().propose(rows, budget, rngs)
        if draft.q is None:
            return draft
        live = [b for b, n in enumerate(budget) if n > 0]
        states = self.context.block([rows[b] for b in live], draft.nodes - 1)
        q = draft.q.clone()
        q[live, :-1] = self.net.logits(states.flatten(0, 1)).softmax(-1).unflatten(0, states.shape[:2])
        return dataclasses.replace(draft, q=q)


@pytest.mark.parametrize("wrong", [OwnLuck, Uncorrected])
def test_controls_are_flagged(wrong):
    found = engine_law(lambda: wrong(net_of("gated")), "chain", max_tokens=3)
    assert distance(found, want(max_tokens=3)) > 0.01
