"""The drafters that need nothing of the target, run through what every drafter owes the engine."""

from typing import ClassVar

from drafter_contract import VOCAB, Contract

from slipstream.drafters.draft_model import DraftModel, DraftModelOptions
from slipstream.drafters.lookup import Lookup, LookupOptions
from slipstream.drafters.none import NoDraft
from slipstream.testing.toy_decoder import ToyDecoder, hashed_logits


def draft_model(width=VOCAB, **options):
    decoder = ToyDecoder(hashed_logits(width), vocab=width)
    return DraftModel(decoder, vocab=VOCAB, max_rows=8, options=DraftModelOptions(**options))


class TestContract(Contract):
    DRAFTERS: ClassVar = {
        "none": NoDraft,
        "lookup": lambda: Lookup(vocab=VOCAB),
        "lookup 1-3": lambda: Lookup(LookupOptions(min_ngram=1, max_ngram=3), vocab=VOCAB),
        "draft_model": draft_model,
        "draft_model min_prob": lambda: draft_model(min_prob=0.3),
        "draft_model wider": lambda: draft_model(16),
        "draft_model narrower": lambda: draft_model(7),
    }

    def keeps(self, name):
        return name in {"lookup", "lookup 1-3"} or name.startswith("draft_model")

    def state_size(self, drafter):
        if isinstance(drafter, Lookup):
            return len(drafter._indexes)
        if isinstance(drafter, DraftModel):
            return len(drafter._cache._held) + len(drafter._cache.decoder.slots)
        return len(vars(drafter)) - 1
