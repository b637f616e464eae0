"""Drafters that know a text by heart: trained on the formulas, run through the engine, they are nearly always accepted.

The training never sees the drafter, its cache or its bookkeeping, so taps, token shift, positions and feedback must
all be wired as the formulas say; each of them wired otherwise costs much of the acceptance.
"""

import dataclasses

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

import draft_zoo as zoo
import eagle_reference as ref
import overfit
from slipstream.control.budget import FixedBudget
from slipstream.drafters.eagle import Eagle
from slipstream.drafters.eagle3 import Eagle3
from slipstream.drafters.feature_rows import FeatureRows
from slipstream.drafters.none import NoDraft
from slipstream.drafters.peagle import PEagle
from slipstream.engine import Engine, EngineOptions
from slipstream.nets.decoder import load_decoder
from slipstream.nets.draft_config import Block, DraftCheckpoint, Features, Rows, Tables, Vocab
from slipstream.nets.eagle import EagleNet
from slipstream.nets.eagle3 import Eagle3Net, PEagleNet
from slipstream.targets.native import NativeTarget
from slipstream.types import SamplingParams, Sequence
from slipstream.verify import RULES
from tiny_model import make_model

TOKENS, DEPTH, WIDTH, WRITTEN = 44, 3, 32, 24
KINDS = {"eagle": (EagleNet, Eagle), "eagle3": (Eagle3Net, Eagle3), "peagle": (PEagleNet, PEagle)}
PROMPT = [9, 5, 1]


class World:
    """A tiny random target, the text it writes, and what it feels there."""

    def __init__(self, folder) -> None:
        self.decoder = load_decoder(make_model(folder, seed=1), max_rows=2, max_len=80, max_nodes=16)
        net, c = self.decoder.net, self.decoder.config
        head = load_file(folder / "model.safetensors")["lm_head.weight"]  # as a plain product, for autograd
        self.tables = Tables(
            net.embed,
            lambda x: x @ head.T,
            vocab=c.vocab,
            rows=c.vocab,
            hidden=WIDTH,
            dtype=torch.float32,
            device=net.device,
        )
        # few tokens, often repeated: what follows one is not to be guessed without the features
        self.params = SamplingParams(
            max_tokens=TOKENS, ignore_eos=True, logit_bias=dict.fromkeys(range(WRITTEN, c.vocab), -100.0)
        )
        self.text = torch.tensor(self.run(NoDraft()).tokens)
        self.taps = self.decoder.extend(0, self.text[:-1].tolist(), (-1, 0, 1, 2))
        self.decoder.release(0)

    def run(self, drafter) -> Sequence:
        """Let the target write its text with this drafter, `DEPTH` tokens at a time."""
        target = NativeTarget(self.decoder, drafter.needs.taps)
        engine = Engine(target, drafter, RULES["auto"], FixedBudget(DEPTH), EngineOptions(prefill_chunk=2))
        row = Sequence(0, list(PROMPT), len(PROMPT), self.params)
        engine.add(row)
        while not engine.idle:
            engine.step()
        return row

    def accepted(self, found) -> float:
        """The share of drafted tokens that a drafter of this checkpoint gets accepted."""
        net, make = KINDS[found.config.algorithm]
        built = net(found.config, found.tensors, self.tables, max_rows=1, max_len=80, max_nodes=16)
        row = self.run(make(built, vocab=self.tables.vocab, max_rows=1))
        assert row.tokens == self.text.tolist()
        return (TOKENS / row.rounds - 1) / DEPTH


def blank(kind, vocab):
    """An untrained checkpoint of the target's size in float32."""
    body = zoo.body(2 if kind == "peagle" else 1, hidden=WIDTH, mlp=96)
    features = Features((-1,), WIDTH, bias=True) if kind == "eagle" else Features((0, 1, 2), WIDTH)
    block = Block(4, vocab - 1, True, (True, True)) if kind == "peagle" else None
    ids = Vocab(vocab, vocab, own_head=kind != "eagle")
    found = zoo.tiny(kind, vocab=ids, scale=WIDTH**-0.5, body=body, features=features, block=block)
    return DraftCheckpoint(found.config, {k: x.float().requires_grad_() for k, x in found.tensors.items()})


def train(world, kind, steps=120):
    """Learn the text by heart."""
    found = blank(kind, world.tables.vocab)
    loss = masked if kind == "peagle" else rolled
    overfit.minimise(found.tensors, lambda w: loss(world, found), steps, 2e-2)
    return DraftCheckpoint(found.config, {k: x.detach() for k, x in found.tensors.items()})


def grid(n):
    """Rows (t, s): t the last target-fed row seen, s steps of the drafter's own; which of them sees which."""
    t = torch.cat([torch.arange(n - s) for s in range(DEPTH)])
    s = torch.cat([torch.full((n - s,), s) for s in range(DEPTH)])
    real = (s[None] == 0) & (t[None] <= t[:, None])
    own = (t[None] == t[:, None]) & (s[None] <= s[:, None])
    return t, s, real | own


def rolled(world, found):
    """The loss of all steps, each fed with the states of the one before (formats: training-time test)."""
    x, n = world.text, len(world.text) - 2
    t, s, seen = grid(n)
    features = ref.fuse(found, world.taps)[:n]
    loss = 0.0
    for step in range(DEPTH):
        m = len(features)
        tt, ss = t[:m], s[:m]
        states = ref.states(found, world.tables, x[tt + ss + 1], features, tt + ss, seen[:m, :m])
        last = states[-(n - step) :]
        loss = loss + F.cross_entropy(ref.logits(found, world.tables, last), x[2 + step :])
        features = torch.cat([features, last[:-1]])
    return loss


def masked(world, found):
    """The loss of all depths of one pass."""
    x, n = world.text, len(world.text) - 2
    t, s, seen = grid(n)
    parts = found.tensors["mask_hidden"].view(3, 1, WIDTH)
    mask = ref.fuse(found, dict(enumerate(parts)))
    features = torch.where(s[:, None] == 0, ref.fuse(found, world.taps)[t], mask)
    tokens = torch.where(s == 0, x[t + 1], found.config.block.mask_token)
    states = ref.states(found, world.tables, tokens, features, t + s, seen)
    return F.cross_entropy(ref.logits(found, world.tables, states), x[t + s + 2])


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return World(tmp_path_factory.mktemp("oracle") / "m")


@pytest.fixture(scope="module")
def learned(world):
    torch.manual_seed(0)
    return {kind: train(world, kind) for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_learned_by_heart_is_accepted(kind, world, learned):
    assert world.accepted(learned[kind]) > 0.95


@pytest.mark.parametrize("kind", ["eagle3", "peagle"])
def test_taps_one_off_or_out_of_order_are_refused(kind, world, learned):
    found = learned[kind]
    for taps in ((1, 2, -1), (1, 0, 2), (0, 2, 1)):
        features = dataclasses.replace(found.config.features, taps=taps)
        config = dataclasses.replace(found.config, features=features)
        assert world.accepted(DraftCheckpoint(config, found.tensors)) < 0.8


@pytest.mark.parametrize("change", [Rows(feedback="post"), Rows(residual_norm=True)])
def test_another_reading_of_the_rows_is_refused(change, world, learned):
    found = learned["eagle3"]
    assert world.accepted(DraftCheckpoint(dataclasses.replace(found.config, rows=change), found.tensors)) < 0.8


@pytest.mark.parametrize("kind", KINDS)
def test_features_beside_the_wrong_token_are_refused(kind, world, learned, monkeypatch):
    """Row t holds the token at t + 1, not the one whose feature it holds."""
    piece = FeatureRows._piece

    def unshifted(self, row, new, taps):
        made = piece(self, row, new, taps)
        return None if made is None else dataclasses.replace(made, tokens=list(new))

    monkeypatch.setattr(FeatureRows, "_piece", unshifted)
    assert world.accepted(learned[kind]) < 0.8


@pytest.mark.parametrize("kind", ["eagle3", "peagle"])
def test_drafted_rows_at_the_wrong_positions_are_refused(kind, world, learned, monkeypatch):
    step = FeatureRows.step

    def late(self, which, tokens, states, depth, seen=None):
        depths = [depth] * len(which) if isinstance(depth, int) else depth
        return step(self, which, tokens, states, [d + 3 for d in depths], seen)

    monkeypatch.setattr(FeatureRows, "step", late)
    assert world.accepted(learned[kind]) < 0.8
