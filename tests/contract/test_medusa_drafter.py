"""Medusa, trees and chains, run through what every drafter owes the engine."""

from typing import ClassVar

from drafter_contract import VOCAB, Contract, Talk, guesses, row_of, warm

import draft_zoo as zoo
from slipstream.drafters.medusa import Medusa, MedusaOptions
from slipstream.nets.draft_config import Heads, Vocab
from slipstream.nets.medusa import MedusaNet


def drafter(vocab=VOCAB, heads=None, seconds=None, **options):
    found = zoo.tiny("medusa", vocab=Vocab(vocab, vocab), heads=heads or Heads(3))
    net = MedusaNet(found.config, found.tensors, zoo.tables(VOCAB), max_rows=8, max_len=100, max_nodes=32)
    return Medusa(net, vocab=VOCAB, max_rows=8, options=MedusaOptions(**options), seconds=seconds)


class TestContract(Contract):
    DRAFTERS: ClassVar = {
        "tree": drafter,
        "tree, padded head": lambda: drafter(VOCAB + 3),
        "tree, shared head": lambda: drafter(heads=Heads(2, 2, own=False)),
        "static tree": lambda: drafter(choices="0 1 2 0,0 0,1 1,0 0,0,0"),
        "chain": lambda: drafter(shape="chain"),
    }

    def state_size(self, drafter):
        return len(drafter._held)

    def test_a_restored_row_needs_no_history(self, name):
        """It has no state until it has been heard from its first token on; nothing is drafted, and nothing breaks."""
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
