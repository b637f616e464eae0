"""Case 35: three hundred requests leave nothing behind."""

from __future__ import annotations

import gc

import torch
from cases_kit import chain_target, make_engine, output, request

from slipstream.drafters.lookup import Lookup, LookupOptions

TEXT = [3, 4, 5, 3, 4, 5, 6, 7]


def live_tensors() -> int:
    gc.collect()
    return sum(1 for o in gc.get_objects() if type(o) is torch.Tensor)


def test_case_35_slots_and_state_are_given_back() -> None:
    target, drafter = chain_target(TEXT), Lookup(LookupOptions(min_ngram=1), vocab=16)
    engine = make_engine(target, drafter, 4, max_rows=2)
    counts, rates = [], []
    for i in range(300):
        row = request(i, max_tokens=16)
        engine.add(row)
        if i % 7 == 3:  # aborted half-way
            engine.step()
            engine.abort(row)
        elif i % 7 == 5:  # a round fails, the request is given up
            target.fail_at = frozenset([target.calls + 2])
            engine.step()
            try:
                engine.step()
            except RuntimeError:
                engine.abort(row)
        while not engine.idle:
            engine.step()
        if row.finish_reason == "length":
            assert output(row) == TEXT * 2
            rates.append((row.stats.num_accepted_tokens, row.stats.num_draft_tokens))
        assert not target.cache
        assert sorted(engine.scheduler._free) == [0, 1]
        assert not drafter._indexes
        if i in (20, 299):
            del row
            counts.append(live_tensors())
    assert len(set(rates)) == 1
    assert rates[0][0] > 0
    assert counts[1] <= counts[0]
