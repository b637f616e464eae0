"""Case 40, at run time: a drafter fed with the wrong layers writes the right text: only a warning shows it."""

from __future__ import annotations

import warnings

import pytest
from cases_kit import chain_target, finish, make_engine, output, request

from slipstream.testing import ScriptedToy
from slipstream.types import Needs

TEXT = [3, 4, 5, 6, 7, 8]


def engine_of(right_every: int, taps: tuple[int, ...] = (1,)):
    """An engine whose drafter is right in every so many-th draft (0: never)."""
    target, drafts = chain_target(TEXT), [0]
    target.taps = taps

    def guess(prefix, n: int) -> list[int]:
        drafts[0] += 1
        right = right_every and drafts[0] % right_every == 0
        return [TEXT[(len(prefix) - 2) % 6] if right else 15] * min(n, 1)

    drafter = ScriptedToy(guess, 16)
    drafter.needs = Needs(taps=taps)
    return make_engine(target, drafter, 1)


def test_case_40_hardly_any_accepted_draft_is_told_once_and_the_text_stays() -> None:
    row = request(max_tokens=700)
    with pytest.warns(RuntimeWarning, match=r"0.0% of 200 drafts.*slipstream doctor") as told:
        finish(engine_of(0), row)
    assert len(told) == 1
    assert output(row) == (TEXT * 120)[:700]


@pytest.mark.parametrize(("right_every", "taps", "tokens"), [(20, (1,), 500), (0, (), 500), (0, (1,), 190)])
def test_case_40_no_warning_where_it_would_be_wrong(right_every: int, taps: tuple[int, ...], tokens: int) -> None:
    """Right often enough; a drafter that reads no features, such as lookup; too few drafts to judge."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        finish(engine_of(right_every, taps), request(max_tokens=tokens))
