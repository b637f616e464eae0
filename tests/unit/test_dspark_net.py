"""DSpark's heads against their formulas written out in numpy, and the network that holds them on a DFlash body."""

import dataclasses

import numpy as np
import pytest
import torch

from draft_zoo import VOCAB, H, tables, tiny
from slipstream.nets.draft_config import Block, Markov, Vocab
from slipstream.nets.draft_layers import Cast, Segment
from slipstream.nets.dspark import DSparkNet, SlotHeads, fingerprint
from slipstream.types import RequestError

RANK = 6
KINDS = ("vanilla", "gated", "rnn")


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def checkpoint(kind, confidence="markov", **changes):
    return tiny("dspark", markov=Markov(kind, 0 if kind == "none" else RANK, confidence), **changes)


def heads_of(found, ids=VOCAB):
    cast = Cast(found.tensors, torch.float64, torch.device("cpu"))
    return SlotHeads(found.config.markov, cast, ids=ids)


def net_of(found, **changes):
    return DSparkNet(found.config, found.tensors, tables(**changes), max_rows=3, max_len=40, max_nodes=8)


def by_hand(kind, tensors, hidden, base, previous):
    """A chain of slots of ONE row: hidden [G, H], base [G, Vd], previous [G] -> logits [G, Vd], confidence [G]."""
    w = {name: x.numpy() for name, x in tensors.items()}
    out, sure, state = [], [], np.zeros(RANK)
    for h, u, token in zip(hidden.numpy(), base.numpy(), previous, strict=True):
        e = w["markov.w1.weight"][token]
        if kind == "vanilla":
            x = e
        elif kind == "gated":
            x = sigmoid(w["markov.gate.weight"] @ np.concatenate([h, e]) + w["markov.gate.bias"]) * e
        else:
            z = w["markov.joint.weight"] @ np.concatenate([state, e, h]) + w["markov.joint.bias"]
            g, c, o = z[:RANK], z[RANK : 2 * RANK], z[2 * RANK :]
            state = sigmoid(g) * state + (1 - sigmoid(g)) * np.tanh(c)
            x = np.tanh(o)
        out.append(u + w["markov.w2.weight"] @ x)
        sure.append(float(w["confidence.weight"][0] @ np.concatenate([h, e]) + w["confidence.bias"][0]))
    return np.array(out), np.array(sure)


def walk(heads, hidden, base, previous):
    """The same through the heads, for rows [R, G, ...] at once."""
    state, logits, sure = None, [], []
    for k in range(hidden.shape[1]):
        found = heads(hidden[:, k], base[:, k], previous[:, k], state)
        state = found.state
        logits.append(found.logits)
        sure.append(found.confidence)
    return torch.stack(logits, 1), torch.stack(sure, 1)


@pytest.mark.parametrize("draft", [VOCAB, 7])
@pytest.mark.parametrize("kind", KINDS)
def test_heads_are_their_formulas_over_a_chain_of_slots(kind, draft):
    found = checkpoint(kind)
    found.tensors["markov.w2.weight"] = found.tensors["markov.w2.weight"][:draft]
    g = torch.Generator().manual_seed(3)
    hidden = torch.randn(2, 4, H, generator=g, dtype=torch.float64)
    base = torch.randn(2, 4, draft, generator=g, dtype=torch.float64)
    previous = torch.tensor([[11, 0, 5, 5], [2, 9, 11, 3]])  # target ids, beyond the drafter's own where it has fewer
    logits, sure = walk(heads_of(found), hidden, base, previous)
    for row in range(2):
        want, want_sure = by_hand(kind, found.tensors, hidden[row], base[row], previous[row].tolist())
        np.testing.assert_allclose(logits[row].numpy(), want, atol=1e-12)
        np.testing.assert_allclose(sure[row].numpy(), want_sure, atol=1e-12)


def test_confidence_on_the_state_alone_does_not_see_the_token():
    heads = heads_of(checkpoint("vanilla", "hidden"))
    hidden, base = torch.randn(1, H, dtype=torch.float64), torch.zeros(1, VOCAB, dtype=torch.float64)
    one, two = (heads(hidden, base, torch.tensor([t])) for t in (1, 2))
    assert torch.equal(one.confidence, two.confidence)
    assert not torch.equal(one.logits, two.logits)


def test_no_heads_change_nothing():
    heads = heads_of(checkpoint("none", "none"))
    base = torch.randn(2, VOCAB, dtype=torch.float64)
    found = heads(torch.randn(2, H, dtype=torch.float64), base, torch.tensor([1, 2]))
    assert torch.equal(found.logits, base)
    assert found.confidence is None
    assert found.state is None
    assert heads.nbytes == 0


def test_confidence_without_markov_head_may_read_the_state_only():
    found = checkpoint("none", "hidden")
    hidden = torch.randn(1, H, dtype=torch.float64)
    sure = heads_of(found)(hidden, torch.zeros(1, VOCAB), torch.tensor([0])).confidence
    want = hidden[0] @ found.tensors["confidence.weight"][0] + found.tensors["confidence.bias"][0]
    assert float(sure) == pytest.approx(float(want), abs=1e-12)
    with pytest.raises(RequestError, match="no such head"):
        SlotHeads(Markov("none", 0, "markov"), Cast({}, torch.float64, torch.device("cpu")), ids=3)


def test_an_id_the_file_has_no_row_for_corrects_nothing():
    heads = heads_of(checkpoint("vanilla"), ids=VOCAB + 4)
    base = torch.randn(1, VOCAB, dtype=torch.float64)
    found = heads(torch.zeros(1, H, dtype=torch.float64), base, torch.tensor([VOCAB + 3]))
    assert torch.equal(found.logits, base)


@pytest.mark.parametrize("kind", KINDS)
def test_half_precision_adds_in_single(kind):
    cast = Cast(checkpoint(kind).tensors, torch.bfloat16, torch.device("cpu"))
    heads = SlotHeads(checkpoint(kind).config.markov, cast, ids=VOCAB)
    found = heads(torch.randn(2, H).bfloat16(), torch.randn(2, VOCAB).bfloat16(), torch.tensor([1, 2]))
    assert found.logits.dtype == torch.float32
    assert found.confidence.dtype == torch.float32


class TestNet:
    @pytest.mark.parametrize(("anchor", "first"), [(True, 0), (False, 1)])
    def test_the_slot_that_drafts_first(self, anchor, first):
        net = net_of(checkpoint("vanilla", block=Block(4, VOCAB, anchor, (False, False))))
        assert net.first == first

    def test_a_pass_from_features_to_corrected_logits(self):
        net = net_of(checkpoint("gated"))
        taps = {tap: torch.randn(5, H, dtype=torch.float64) for tap in net.config.features.taps}
        net.context(taps, [Segment(1, 0, range(5))])
        states = net.block(torch.tensor([3]), [1])
        found = net.correct(states[:, 0], net.logits(states[:, 0]), torch.tensor([3]))
        assert states.shape == (1, 4, H)
        assert found.logits.shape == (1, VOCAB)
        assert net.layers.length(1) == 5
        assert net.nbytes == sum(x.nbytes for x in checkpoint("gated").tensors.values())
        assert net.row_bytes == net.layers.row_bytes

    def test_own_smaller_vocabulary(self):
        found = checkpoint("vanilla")
        config = dataclasses.replace(found.config, vocab=Vocab(VOCAB, 7, own_head=True))
        extra = {
            "head.weight": torch.randn(7, H, dtype=torch.float64),
            "vocab_map": torch.arange(0, 14, 2)[:7],
            "markov.w2.weight": found.tensors["markov.w2.weight"][:7],
        }
        net = DSparkNet(config, {**found.tensors, **extra}, tables(14), max_rows=1, max_len=8, max_nodes=8)
        states = net.block(torch.tensor([13]), [0])
        assert net.correct(states[:, 0], net.logits(states[:, 0]), torch.tensor([13])).logits.shape == (1, 7)


def test_fingerprints_tell_drafters_apart_and_survive_a_change_of_format():
    one, two = checkpoint("vanilla"), checkpoint("vanilla", seed=1)
    assert fingerprint(one.tensors) != fingerprint(two.tensors)
    halves = {name: x.bfloat16() for name, x in one.tensors.items()}
    widened = {name: x.float() for name, x in halves.items()}
    assert fingerprint(halves) == fingerprint(widened)
