"""When a drafter that has not read a row's text should read it: a long prompt may cost more than drafting saves.

In: what each drafter offers, and what reading costs those that have yet to. Out: offers, without those that must wait.
A prompt is read as it arrives where that costs little. Else it is as with skis, which are bought once as much has gone
into hiring them: at worst reading costs as much again as waiting.
It goes by earlier rounds and the number of tokens that may still be written, nothing else (law 4).
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq

from slipstream.control.arms import NO_OFFER, plan_row, worth
from slipstream.control.knowledge import Own
from slipstream.types import Sequence

GLANCE = 64  # unread tokens that nobody reckons with
_SAVED = 0.35  # plain rounds that a drafter may be hoped to save per token
_LITTLE = 0.2  # plain rounds per token that are spent at once: lookup may save as much for nothing
_FEW = 16.0  # and the most, however much may be written: texts end when they end


def left_to_write(row: Sequence) -> float:
    """Return how many tokens a row may still emit, as far as was asked for."""
    limit = row.params.max_tokens
    return float("inf") if limit is None else limit - len(row.tokens) + row.prompt_len


def at_once(price: float, left: float) -> bool:
    """Say whether to read a prompt as it arrives, by its price in plain rounds and what may be written."""
    return price <= min(_FEW, _LITTLE * left)


def hold_back(
    own: Own, prices: Mapping[int, float], left: float, seconds: Seq[Seq[float]], plain: float, rate: float
) -> None:
    """Withdraw the offer of each drafter in `prices` (plain rounds that reading takes it) that must wait.

    It waits until it has missed as much as reading costs, and for good if what is left to write cannot repay that.
    """
    own.missing = 0.0
    for i, price in prices.items():
        offers = [*own.offers]
        own.offers[i] = NO_OFFER
        most, least = (plan_row(each, seconds, plain, rate) for each in (offers, own.offers))
        gained = worth(most, offers, seconds, plain, rate) - worth(least, own.offers, seconds, plain, rate)
        own.missing = max(own.missing, gained / (rate * plain))
        if own.missed >= price and left * _SAVED >= price:
            own.offers[i] = offers[i]
