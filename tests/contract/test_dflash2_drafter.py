"""DFlash 2 owes the engine what every drafter does; its walk through the block, written once more, is here too."""

import dataclasses
import math
import warnings
from typing import ClassVar

import pytest
import torch
from drafter_contract import VOCAB, Contract, Talk, guesses, row_of, warm

import draft_zoo
from slipstream.drafters.dflash2 import DFlash2
from slipstream.nets.dflash2 import DFlash2Net
from slipstream.nets.draft_config import Block, Paths, Vocab
from slipstream.sampling.laws import draft_law
from slipstream.types import Draw, SamplingParams

MASK = VOCAB
FULL = (False, False)
TABLES = draft_zoo.tables(VOCAB)


def dflash2(*, top_k=4, taps=2, max_rows=8, **changes):
    changes = {"vocab": VOCAB, "block": Block(5, MASK, False, FULL)} | changes
    found = draft_zoo.tiny("dflash2", scale=0.6, paths=Paths(taps, 4, 6, top_k), **changes)
    net = DFlash2Net(found.config, found.tensors, TABLES, max_rows=max_rows, max_len=200, max_nodes=8)
    return DFlash2(net, vocab=VOCAB, max_rows=max_rows)


def endless(row_id, *, length=None, **params):
    """A row that no token ends."""
    return dataclasses.replace(row_of(row_id, length=length), params=SamplingParams(ignore_eos=True, **params))


def joined(drafter, rows):
    talk = Talk(drafter)
    for row in rows:
        talk.join(row)
    return talk


class TestContract(Contract):
    DRAFTERS: ClassVar = {
        "dflash2": dflash2,
        "dflash2, one token a slot": lambda: dflash2(top_k=1),
        "dflash2, all tokens": lambda: dflash2(top_k=VOCAB),
        "dflash2, three taps, causal": lambda: dflash2(taps=3, block=Block(5, MASK, False, (True, True))),
        "dflash2, anchor predicts": lambda: dflash2(block=Block(4, MASK, True, FULL)),
        "dflash2, sliding": lambda: dflash2(body=draft_zoo.body(2, qk_norm=True, windows=(3, 3))),
        "dflash2, reduced": lambda: dflash2(vocab=Vocab(VOCAB, 5, own_head=True)),
        "dflash2, fewer ids than tokens a slot": lambda: dflash2(top_k=8, vocab=Vocab(VOCAB, 5, own_head=True)),
        "dflash2, wider": lambda: dflash2(vocab=Vocab(VOCAB + 5, VOCAB + 5, own_embed=True, own_head=True)),
    }

    def state_size(self, drafter):
        layers = drafter.net.layers
        return len(drafter.context.places) + sum(layers.length(slot) > 0 for slot in range(8))

    def test_a_restored_row_needs_no_history(self, name):
        """Nobody has the features of what was never heard: such a row drafts nothing."""
        talk, row, other = Talk(self.DRAFTERS[name]()), warm(2), warm(3)
        talk.join(other)
        draft = talk.propose([row, other], [5, 5])
        assert draft.length[0] == 1
        assert draft.length[1] > 1


def walked(drafter, row, depth, drawn=None):
    """The walk written once more: (tokens, laws [D, V]); `drawn` are tokens to follow, else the likeliest."""
    net, w = drafter.net, dict(zip("abm", tensors_of(drafter), strict=True))
    states = drafter.context.block([row], depth)[0]
    previous, tokens, laws = row.tokens[-1], [], []
    for k in range(depth):
        unary = drafter.reduced.spread(net.logits(states[k][None]))[0]
        best = unary.sort(descending=True).indices[: net.paths.top_k].tolist()
        scores = torch.full((VOCAB,), -math.inf, dtype=torch.float64)
        for token in best:
            pair = (w["a"][previous] * (w["m"] @ states[k]) * w["b"][token]).sum()
            scores[token] = unary[token] + pair
        laws.append(draft_law([row], [row.tokens + tokens], scores[None])[0])
        previous = int(laws[-1].argmax()) if drawn is None else drawn[k]
        tokens.append(previous)
    return tokens, torch.stack(laws)


def tensors_of(drafter):
    net = drafter.net
    return net._before, net._after, net._mix.weight


@pytest.mark.parametrize("block", [Block(5, MASK, False, FULL), Block(4, MASK, True, FULL)])
@pytest.mark.parametrize("changes", [{}, {"top_k": 1}, {"vocab": Vocab(VOCAB, 5, own_head=True)}])
def test_a_greedy_path_is_the_walk_by_hand(block, changes):
    drafter, rows, moved = dflash2(block=block, **changes), [endless(i) for i in range(4)], 0
    talk = joined(drafter, rows)
    for _ in range(8):
        draft = talk.propose(rows, [4, 2, 3, 4])
        for b, row in enumerate(rows):
            tokens, _ = walked(drafter, row, int(draft.length[b]) - 1)
            assert guesses(draft, b)[1:] == tokens
            states = drafter.context.block([row], len(tokens))[0]
            moved += tokens != drafter.reduced.spread(drafter.net.logits(states)).argmax(-1).tolist()
        talk.round(rows, [4, 2, 3, 4])
    assert moved or changes.get("top_k") == 1, "the path is not the likeliest token of every slot"


@pytest.mark.parametrize(
    "params", [{}, {"temperature": 0.6, "top_p": 0.9}, {"presence_penalty": 1.5, "frequency_penalty": 0.5}]
)
def test_q_is_the_law_over_the_few_and_nothing_else(params):
    drafter, rows = dflash2(top_k=3), [endless(i, **{"temperature": 1.2, **params}) for i in range(4)]
    talk, seen = joined(drafter, rows), set()
    for _ in range(10):
        draft = talk.propose(rows, [4] * 4)
        for b, row in enumerate(rows):
            drawn = guesses(draft, b)[1:]
            _, laws = walked(drafter, row, 4, drawn)
            torch.testing.assert_close(draft.q[b, :4].double(), laws, rtol=0, atol=1e-6)
            assert ((draft.q[b, :4] > 0).sum(-1) <= 3).all()
            assert (draft.draw[b, 1:5] == Draw.SAMPLED).all()
            seen |= set(drawn)
        talk.round(rows, [4] * 4)
    assert len(seen) > 4


def test_greedy_and_sampled_rows_share_a_batch():
    drafter, rows = dflash2(), [endless(1, temperature=1.0), endless(2), endless(3, temperature=0.5)]
    talk = joined(drafter, rows)
    draft = talk.propose(rows, [4, 4, 4])
    assert guesses(draft, 1)[1:] == walked(drafter, rows[1], 4)[0]
    assert [draft.draw[b, 1] for b in range(3)] == [Draw.SAMPLED, Draw.FIXED, Draw.SAMPLED]


def test_a_budget_does_not_change_the_first_guesses():
    talk, row = Talk(dflash2()), endless(1, length=9)
    talk.join(row)
    longest = guesses(talk.propose([row], [4]), 0)
    assert len(longest) == 5
    for n in range(1, 4):
        assert guesses(talk.propose([row], [n]), 0) == longest[: n + 1]
    assert guesses(talk.propose([row], [50]), 0) == longest


def test_logits_in_pieces_are_the_same(monkeypatch):
    drafter, rows = dflash2(), [endless(i, temperature=float(i % 2)) for i in range(3)]
    talk = joined(drafter, rows)
    whole = talk.propose(rows, [4, 3, 4])
    monkeypatch.setattr("slipstream.drafters.net_drafters._MOST_LOGITS", 1)
    pieces = talk.propose(rows, [4, 3, 4])
    assert torch.equal(whole.tokens, pieces.tokens)
    torch.testing.assert_close(whole.q, pieces.q)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_features_that_are_not_finite_end_the_drafts_of_their_row_alone(value):
    drafter, rows = dflash2(), [endless(i, length=9, temperature=float(i == 2)) for i in range(3)]
    talk = joined(drafter, [rows[0], rows[2]])
    bad = {tap: torch.full((8, 16), value, dtype=torch.float64) for tap in drafter.needs.taps}
    drafter.observe([rows[1]], [rows[1].tokens[:-1]], [bad])
    with pytest.warns(RuntimeWarning, match="dflash2 drafter's logits are not finite"):
        draft = talk.propose(rows, [4, 4, 4])
    assert draft.length.tolist() == [5, 1, 5]
    assert drafter.dropped == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        talk.propose(rows, [4, 4, 4])
