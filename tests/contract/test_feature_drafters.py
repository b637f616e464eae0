"""EAGLE-type drafters, chains and trees, run through what every drafter owes the engine."""

import warnings
from typing import ClassVar

import pytest
import torch
from drafter_contract import VOCAB, Contract, Talk, guesses, row_of, warm

import draft_zoo as zoo
from slipstream.drafters.eagle import Eagle, EagleOptions
from slipstream.drafters.eagle3 import Eagle3
from slipstream.drafters.peagle import PEagle, PEagleOptions
from slipstream.nets.draft_config import Rows, Vocab
from slipstream.nets.eagle import EagleNet
from slipstream.nets.eagle3 import Eagle3Net, PEagleNet
from slipstream.types import RequestError, WorkError

KINDS = {"eagle": (EagleNet, Eagle), "eagle3": (Eagle3Net, Eagle3), "peagle": (PEagleNet, PEagle)}
TREE = EagleOptions(shape="tree", depth=4, top_k=3)
REDUCED = Vocab(VOCAB + 1, 5, own_head=True)  # the last id is one the target has no row for


def drafter(kind, options=None, *, max_len=400, max_rows=8, **changes):
    found = zoo.tiny(kind, scale=0.7, **{"vocab": VOCAB, **changes})
    net, make = KINDS[kind]
    tables = zoo.tables(VOCAB)
    built = net(found.config, found.tensors, tables, max_rows=max_rows, max_len=max_len, max_nodes=24)
    return make(built, vocab=VOCAB, max_rows=max_rows, options=options)


class TestContract(Contract):
    DRAFTERS: ClassVar = {
        "eagle": lambda: drafter("eagle"),
        "eagle3": lambda: drafter("eagle3"),
        "eagle3 two layers": lambda: drafter("eagle3", body=zoo.body(2, windows=(None, 5))),
        "eagle3 reduced": lambda: drafter("eagle3", vocab=REDUCED),
        "eagle3 post": lambda: drafter("eagle3", rows=Rows(feedback="post", residual_norm=True)),
        "eagle tree": lambda: drafter("eagle", TREE),
        "eagle3 tree": lambda: drafter("eagle3", TREE),
        "eagle3 reduced tree": lambda: drafter("eagle3", EagleOptions(shape="tree", depth=2, top_k=5), vocab=REDUCED),
        "peagle": lambda: drafter("peagle"),
        "peagle depth 2": lambda: drafter("peagle", PEagleOptions(depth=2)),
    }

    def state_size(self, drafter):
        held, layers = drafter._rows.held, drafter.net.layers
        assert len(held) + len(held.free) == held.count
        return len(held) + sum(layers.length(slot) > 0 for slot in range(held.count))

    def test_a_restored_row_needs_no_history(self, name):
        """It has none of the features of its past: nothing is drafted, and nothing breaks, until it ends."""
        talk, row, other = Talk(self.DRAFTERS[name]()), warm(2), warm(3)
        talk.join(other)
        for _ in range(3):
            draft = talk.round([row, other], [5, 5])
            assert guesses(draft, 0) == [int(draft.tokens[0, 0])]
            assert len(guesses(draft, 1)) > 1
        talk.forget(row)
        again = row_of(2)
        talk.join(again)
        assert len(guesses(talk.propose([again], [5]), 0)) > 1


def endless(row_id, **settings):
    """A row that no token ends."""
    row = row_of(row_id, **settings)
    row.eos_ids = ()
    return row


@pytest.mark.parametrize("kind", KINDS)
class TestDamage:
    def test_features_that_are_not_finite_end_one_draft_and_leave_nothing_behind(self, kind):
        for bad in (torch.nan, torch.inf):
            talk, rows = Damaged(drafter(kind)), [endless(i) for i in range(2)]
            for row in rows:
                talk.join(row)
            talk.damage = {rows[0].id: bad}
            talk.round(rows, [3, 3])
            talk.damage = {}
            with pytest.warns(RuntimeWarning, match="drafter's logits are not finite"):
                draft = talk.propose(rows, [3, 3])
            assert draft.length.tolist() == [1, 4]
            assert talk.drafter.dropped == 1
            talk.round(rows, [3, 3])
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                draft = talk.propose(rows, [3, 3])
            assert draft.length.tolist() == [4, 4], "the next accepted token heals it"

    def test_more_rows_than_slots_say_so(self, kind):
        talk = Talk(drafter(kind, max_rows=2))
        for i in range(2):
            talk.join(endless(i, length=4))
        with pytest.raises(WorkError, match="2 rows, all in use"):
            talk.join(endless(2, length=4))

    def test_a_row_too_long_for_the_network_is_decoded_without_drafts(self, kind):
        talk, row = Talk(drafter(kind, max_len=10)), endless(1, length=9)
        talk.join(row)
        lengths = [int(talk.round([row], [2]).length[0]) for _ in range(6)]
        assert lengths[0] == 3
        assert lengths[-1] == 1

    def test_drafts_reach_no_further_than_the_scratch(self, kind):
        options = PEagleOptions(depth=90) if kind == "peagle" else None
        talk, row = Talk(drafter(kind, options)), endless(1)
        talk.join(row)
        assert int(talk.propose([row], [80]).length[0]) == 26


class Damaged(Talk):
    """Features of the rows in `damage` come out with one wrong entry."""

    def __init__(self, drafter):
        super().__init__(drafter)
        self.damage = {}
        tell = drafter.observe

        def observe(rows, tokens, taps):
            for row, felts in zip(rows, taps, strict=True):
                if row.id in self.damage:
                    felts[max(felts)][-1, 3] = self.damage[row.id]
            tell(rows, tokens, taps)

        drafter.observe = observe


def test_only_ids_of_the_reduced_vocabulary_that_the_target_has_are_drafted():
    talk, rows = Talk(drafter("eagle3", vocab=REDUCED)), [warm(i) for i in range(6)]
    known = set(talk.drafter.net.vocab_map.tolist()) - {VOCAB}
    for row in rows:
        talk.join(row)
    drafted = set()
    for _ in range(20):
        draft = talk.round(rows, [5] * 6)
        drafted |= {t for b in range(6) for t in guesses(draft, b)[1:]}
        if draft.q is not None:
            outside = [t for t in range(VOCAB) if t not in known]
            assert float(draft.q[:, :, outside].abs().max()) == 0
    assert drafted == known


@pytest.mark.parametrize(("field", "value"), [("shape", "bush"), ("depth", 0), ("top_k", 0)])
def test_options_name_what_is_wrong(field, value):
    with pytest.raises(RequestError, match=f"{field}={value!r}"):
        EagleOptions(**{field: value})
