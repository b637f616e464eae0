"""The block drafters owe the engine what every drafter does; what they owe beyond that is here too."""

import dataclasses
import math
import warnings
from typing import ClassVar

import pytest
import torch
from drafter_contract import EOS, VOCAB, Contract, Talk, guesses, row_of, warm

import draft_zoo
from slipstream.drafters.dflash import DFlash, DFlashOptions
from slipstream.nets.dflash import DFlashNet
from slipstream.nets.draft_config import Block, Vocab
from slipstream.types import Draw, RequestError, SamplingParams, WorkError

MASK = VOCAB  # an unused row of the target's embedding
TABLES = draft_zoo.tables(VOCAB)


def dflash(shape="chain", *, max_rows=8, max_len=200, net=None, vocab=VOCAB, **changes):
    changes = {"block": Block(5, MASK, False, (False, False))} | changes
    found = draft_zoo.tiny("dflash", vocab=vocab, **changes)
    made = DFlashNet(found.config, found.tensors, net or TABLES, max_rows=max_rows, max_len=max_len, max_nodes=8)
    return DFlash(made, vocab=VOCAB, max_rows=max_rows, options=DFlashOptions(shape=shape))


def sliding(layers=2):
    return draft_zoo.body(layers, qk_norm=True, windows=(3, None))


def endless(row_id, *, temperature=0.0, length=None):
    """A row that no token ends."""
    params = SamplingParams(temperature=temperature, ignore_eos=True)
    return dataclasses.replace(row_of(row_id, length=length), params=params)


class TestContract(Contract):
    DRAFTERS: ClassVar = {
        "dflash": dflash,
        "dflash tree": lambda: dflash("tree"),
        "dflash, anchor predicts": lambda: dflash(block=Block(4, MASK, True, (False, False))),
        "dflash, causal": lambda: dflash(block=Block(5, MASK, False, (True, True))),
        "dflash, sliding": lambda: dflash(body=sliding(), block=Block(5, MASK, False, (True, False))),
        "dflash, reduced": lambda: dflash(vocab=Vocab(VOCAB, 5, own_head=True)),
        "dflash tree, reduced": lambda: dflash("tree", vocab=Vocab(VOCAB, 5)),
        "dflash, wider": lambda: dflash(vocab=Vocab(VOCAB + 5, VOCAB + 5, own_embed=True, own_head=True)),
    }

    def state_size(self, drafter):
        net = drafter.net
        return len(drafter.context.places) + sum(net.layers.length(slot) > 0 for slot in range(8))

    def test_a_restored_row_needs_no_history(self, name):
        """Nobody has the features of what was never heard: such a row drafts nothing, for good."""
        talk, row, other = Talk(self.DRAFTERS[name]()), warm(2), warm(3)
        talk.join(other)
        draft = talk.propose([row, other], [5, 5])
        assert draft.length[0] == 1
        assert draft.length[1] > 1
        talk.heard[row.id] = len(row.tokens) - 1
        for _ in range(3):
            assert talk.round([row], [3]).length.tolist() == [1]


def test_a_gap_in_what_was_heard_ends_the_drafting_for_that_row():
    talk, row = Talk(dflash()), endless(1, length=20)
    talk.observe([row], [row.tokens[:6]])
    talk.heard[row.id] = 9
    talk.observe([row], [row.tokens[9:-1]])
    assert talk.propose([row], [3]).length.tolist() == [1]
    talk.forget(row)
    talk.join(row)
    assert talk.propose([row], [3]).length.tolist() == [4]


def test_a_row_longer_than_the_network_s_cache_is_decoded_without_drafts():
    talk, row, short = Talk(dflash(max_len=18)), endless(1, length=17), endless(2, length=6)
    for each in (row, short):
        talk.join(each)
    lengths = [talk.round([row, short], [2, 2]).length.tolist() for _ in range(6)]
    assert lengths[0] == [3, 3]
    assert lengths[-1] == [1, 3]


def test_no_more_than_the_block_has():
    talk, row = Talk(dflash()), endless(1, length=9)
    talk.join(row)
    assert talk.propose([row], [50]).length.tolist() == [5]
    talk = Talk(dflash(block=Block(5, MASK, True, (False, False))))
    talk.join(row)
    assert talk.propose([row], [50]).length.tolist() == [6]


def test_a_tree_is_wider_than_the_block_is_deep_and_all_fixed():
    talk, row = Talk(dflash("tree")), endless(1, length=9, temperature=1.0)
    talk.join(row)
    draft = talk.propose([row], [14])
    assert draft.length.tolist() == [15]
    assert (draft.draw == Draw.FIXED).all()
    assert not draft.chain


def test_a_budget_does_not_change_the_first_guesses():
    """The whole block is fed whatever the budget: fewer masks would be another answer."""
    talk, row = Talk(dflash()), endless(1, length=9)
    talk.join(row)
    longest = guesses(talk.propose([row], [4]), 0)
    for n in range(1, 4):
        assert guesses(talk.propose([row], [n]), 0) == longest[: n + 1]


def test_what_cannot_be_drafted_is_never_drafted():
    drafter = dflash(vocab=Vocab(VOCAB, 4, own_head=True))
    able = set(drafter.net.vocab_map.tolist())
    talk, rows = Talk(drafter), [endless(i, temperature=1.5) for i in range(6)]
    for row in rows:
        talk.join(row)
    for _ in range(10):
        draft = talk.round(rows, [4] * 6)
        drawn = draft.tokens[:, 1:][draft.draw[:, 1:] == Draw.SAMPLED]
        assert set(drawn.tolist()) <= able
        missing = [v for v in range(VOCAB) if v not in able]
        assert float(draft.q[:, :, missing].max()) == 0


def test_nothing_is_drafted_after_an_end():
    found = 0
    talk, rows = Talk(dflash()), [row_of(i, temperature=2.0) for i in range(8)]
    for row in rows:
        talk.join(row)
    for _ in range(20):
        draft = talk.round(rows, [4] * 8)
        for b in range(8):
            drafted = guesses(draft, b)[1:]
            assert EOS not in drafted[:-1]
            found += drafted[-1] == EOS
    assert found


@pytest.mark.parametrize("shape", ["chain", "tree"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_features_that_are_not_finite_end_the_drafts_of_their_row_alone(shape, value):
    drafter = dflash(shape)
    talk, rows = Talk(drafter), [endless(i, length=9) for i in range(3)]
    talk.join(rows[0])
    talk.join(rows[2])
    bad = {tap: torch.full((8, 16), value, dtype=torch.float64) for tap in drafter.needs.taps}
    drafter.observe([rows[1]], [rows[1].tokens[:-1]], [bad])
    with pytest.warns(RuntimeWarning, match="not finite"):
        draft = talk.propose(rows, [4, 4, 4])
    assert draft.length.tolist() == [5, 1, 5]
    assert drafter.dropped == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        talk.propose(rows, [4, 4, 4])
    talk.forget(rows[1])
    talk.join(rows[1])
    assert talk.propose(rows, [4, 4, 4]).length.tolist() == [5, 5, 5]


def test_features_arrive_in_any_dtype():
    drafter, half = dflash(), dflash()
    row = endless(1, length=9)
    taps = {tap: torch.randn(8, 16).bfloat16() for tap in drafter.needs.taps}
    drafter.observe([row], [row.tokens[:-1]], [{tap: x.double() for tap, x in taps.items()}])
    half.observe([row], [row.tokens[:-1]], [taps])
    assert guesses(Talk(half).propose([row], [4]), 0) == guesses(Talk(drafter).propose([row], [4]), 0)


def test_more_rows_than_it_was_made_for_are_refused():
    talk = Talk(dflash(max_rows=2))
    for i in range(2):
        talk.join(endless(i, length=5))
    with pytest.raises(WorkError, match="2 rows, all in use"):
        talk.join(endless(2, length=5))


def test_penalties_see_the_tokens_drafted_before():
    """The second slot's law knows what the first one drew."""
    drafter, params = (
        dflash(),
        SamplingParams(temperature=1.0, presence_penalty=2.0, frequency_penalty=2.0, ignore_eos=True),
    )
    row = dataclasses.replace(endless(1, length=9, temperature=1.0), params=params)
    talk = Talk(drafter)
    talk.join(row)
    draft = talk.propose([row], [4])
    with_none = talk.propose([dataclasses.replace(row, params=endless(1, temperature=1.0).params)], [4])
    first = int(draft.tokens[0, 1])
    assert torch.equal(draft.q[0, 0], with_none.q[0, 0])
    assert draft.q[0, 1, first] < with_none.q[0, 1, first]


def test_a_cost_that_rises_steeply_keeps_trees_small():
    drafter, row = dflash("tree"), endless(1, length=9)
    talk = Talk(drafter)
    talk.join(row)
    drafter.seconds = lambda n: 1.0 + 10.0 * n
    small = int(talk.propose([row], [12]).length)
    drafter.seconds = lambda n: 1.0
    assert small < int(talk.propose([row], [12]).length) == 13


def test_an_unknown_shape_is_refused():
    with pytest.raises(RequestError, match="shape='bush'"):
        DFlashOptions(shape="bush")


@pytest.mark.parametrize("most", [1, 2 * 6 * VOCAB])
def test_logits_computed_a_few_slots_at_a_time_draft_the_same(most, monkeypatch):
    talk, rows = Talk(dflash()), [row_of(i, temperature=(0.0, 2.0)[i % 2]) for i in range(6)]
    for row in rows:
        talk.join(row)
    budget = [4, 1, 3, 4, 2, 4]
    whole = talk.propose(rows, budget)
    monkeypatch.setattr("slipstream.drafters.net_drafters._MOST_LOGITS", most)
    parts = talk.propose(rows, budget)
    assert torch.equal(parts.tokens, whole.tokens)
    assert torch.allclose(parts.q, whole.q, rtol=0, atol=1e-12)
    assert len(set(whole.length.tolist())) > 2, "some rows end before others"
