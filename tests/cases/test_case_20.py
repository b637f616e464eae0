"""Case 20: a grammar as a logits processor: every place of a draft has its own mask, the bonus place too."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from cases_kit import finish, make_engine, output, request, same_as_plain, total_variation

from slipstream.drafters.lookup import Lookup, LookupOptions
from slipstream.testing import RandomLaw, SampledToy, ToyTarget, TreeToy, greedy_toy, never_toy
from slipstream.types import Draw

VOCAB, END, START = 12, 11, 10  # ids 0..4 are digits, 5..9 letters
LAW = RandomLaw(VOCAB, 8)


def three_digits(prefix, row: torch.Tensor, start: int = 2) -> torch.Tensor:
    """Three digits, then the end: a pure function of the prefix, so there is no state to roll back."""
    done = len(prefix) - start
    allowed = list(range(5)) if done < 3 else [END]
    masked = torch.full_like(row, -torch.inf)
    masked[allowed] = row[allowed]
    return masked


def after_start(prefix, row: torch.Tensor) -> torch.Tensor:
    """Free text until START appears, then the grammar."""
    out = list(prefix[2:])
    return three_digits(prefix, row, 2 + out.index(START) + 1) if START in out else row


def drafters() -> list:
    return [
        Lookup(LookupOptions(min_ngram=1), vocab=VOCAB),
        never_toy(LAW, VOCAB),
        greedy_toy(LAW, VOCAB),
        TreeToy(LAW, VOCAB, [Draw.FIXED, Draw.FIXED], depth=3),
        SampledToy(LAW, VOCAB),
    ]


@pytest.mark.parametrize("kind", range(5))
@pytest.mark.parametrize("nodes", [1, 4, 8])
@pytest.mark.parametrize("grammar", [three_digits, after_start])
def test_case_20_the_output_matches_and_equals_plain(kind: int, nodes: int, grammar) -> None:
    def make():
        return request(prompt=[7, 8], max_tokens=12, eos=(END,), logits_processors=[grammar])

    row = same_as_plain(lambda: ToyTarget(LAW, VOCAB), drafters()[kind], make, nodes=nodes)
    out = output(row)
    if grammar is three_digits:
        assert len(out) == 4
        assert all(t < 5 for t in out[:3])
        assert out[3] == END


def strict(prefix, row: torch.Tensor) -> torch.Tensor:
    """A grammar that knows no way on from a text it does not allow, as grammars do."""
    if any(token >= 5 for token in prefix[2:]):
        raise ValueError(f"{prefix} is not in the language")
    return three_digits(prefix, row)


@pytest.mark.parametrize("kind", range(4))
@pytest.mark.parametrize("nodes", [1, 4, 8])
def test_case_20_a_grammar_that_rejects_a_refused_guess_does_not_end_the_request(kind: int, nodes: int) -> None:
    def make():
        return request(prompt=[7, 8], max_tokens=12, eos=(END,), logits_processors=[strict])

    row = same_as_plain(lambda: ToyTarget(LAW, VOCAB), drafters()[kind], make, nodes=nodes)
    assert output(row)[3:] == [END]


@pytest.mark.parametrize("nodes", [0, 4])
def test_case_20_a_processor_that_raises_on_the_text_itself_is_heard(nodes: int) -> None:
    def fails_late(prefix, row: torch.Tensor) -> torch.Tensor:
        if len(prefix) >= 5:
            raise ValueError("no way on")
        return row

    row = request(prompt=[7, 8], max_tokens=12, logits_processors=[fails_late])
    engine = make_engine(ToyTarget(LAW, VOCAB), greedy_toy(LAW, VOCAB), nodes)
    with pytest.raises(ValueError, match="no way on"):
        finish(engine, row)
    assert len(output(row)) == 3


@pytest.mark.parametrize("kind", [0, 4])
def test_case_20_at_temperature_1_the_law_is_the_masked_one(kind: int) -> None:
    counts: Counter[int] = Counter()
    rows = [
        request(i, [7, 8], max_tokens=2, temperature=1.0, seed=i, logits_processors=[three_digits]) for i in range(4000)
    ]
    finish(make_engine(ToyTarget(LAW, VOCAB), drafters()[kind], 3, max_rows=64), *rows)
    for row in rows:
        counts[output(row)[1]] += 1
    digits = [LAW((7, 8))[t] for t in range(5)]
    second = [0.0] * VOCAB
    for first, weight in enumerate(digits):
        after = LAW((7, 8, first))[:5]
        for t in range(5):
            second[t] += weight / sum(digits) * after[t] / sum(after)
    assert total_variation(counts, second) < 0.03
