"""What is known of drafters: in common from all requests, and of one request, on top of it.

In: values of reached positions. Out: the chances that drafted nodes stand, the gain a row has had, and what it would
be worth to find out. A request's record dies with its sequence; the common one is kept apart for greedy and sampled
rows, whose acceptance differs.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection
from collections.abc import Sequence as Seq

from slipstream.control.acceptance import (
    COMMON_DECAY,
    OWN_DECAY,
    OWN_WEIGHT,
    PRIOR_WEIGHT,
    STEERED_DECAY,
    STEERED_WEIGHT,
    Rates,
    survival,
)
from slipstream.control.arms import Arm, Offer, Plan
from slipstream.control.profile import Profile
from slipstream.control.shadows import Shadows

WENT_ON = -1  # in place of a strength: how often a drafter that may stop drafted each token of its plan
_PROBE = 2  # nodes drafted to see how a drafter does, while nothing is drafted
_GAIN_DECAY = 0.98
_START = 10.0  # rounds at plain speed that a request starts with, in each sort of stretch
_STRETCHES = (1, 3)  # least strengths of what can be copied: nothing, chance matches, passages
_CREDIT, _MOST_CREDIT = 0.3, 4.0  # plain rounds


class Common:
    """Rates of every arm over all requests, starting from the profile's, or from a guess."""

    def __init__(self, arms: Seq[Arm], profile: Profile) -> None:
        self.arms, self._profile = arms, profile
        self._rates: dict[tuple[int, int, bool], Rates] = {}

    def rates(self, arm: int, strength: int, greedy: bool) -> Rates:
        """Return the record to count in."""
        key = (arm, strength, greedy)
        if key not in self._rates:
            self._rates[key] = Rates(COMMON_DECAY, tree=self.arms[arm].tree)
        return self._rates[key]

    def shares(self, arm: int, strength: int, greedy: bool, n: int) -> list[float]:
        """Return the estimates for the first n positions."""
        stored = self._profile.rates.get(self.arms[arm].cost, {}).get(rate_key(greedy, strength))
        prior = stored or _guess(self.arms[arm], strength, greedy)
        known = self._rates.get((arm, strength, greedy))
        if known is None:
            return [prior[min(k, len(prior) - 1)] for k in range(n)]
        return known.shares(n, prior, STEERED_WEIGHT if self.arms[arm].steer is not None else PRIOR_WEIGHT)

    def table(self) -> dict[str, dict[str, list[float]]]:
        """Return what was found, in the form of a profile's `rates`."""
        found: dict[str, dict[str, list[float]]] = {}
        for (arm, strength, greedy), rates in self._rates.items():
            shares = self.shares(arm, strength, greedy, len(rates.hits))
            found.setdefault(self.arms[arm].cost, {})[rate_key(greedy, strength)] = shares
        return found


class Own:
    """What one request has shown. `free`: its decisions may use clocks and other rows (see `adaptive`)."""

    def __init__(self, arms: Seq[Arm], common: Common, greedy: bool, free: bool) -> None:
        self.greedy, self.free = greedy, free
        self.plan, self.offers = Plan(-1, 0), list[Offer]()
        self.offered = False  # anything, by anyone
        self.sure: list[float] = []  # what the drafter said of its tokens in the round under way
        self.stopped = False  # the draft was ended for lack of sureness
        self.ahead: tuple[list[float], float] = ([], 0.0)  # seconds of the planned drafter's rounds, and the row's rate
        self.missed = self.missing = 0.0  # what a drafter that has not read the text would have saved, in plain rounds
        self.unread: Collection[int] = ()  # drafters that would have to read first
        self.shadows = Shadows()
        self.credit, self.turn = _CREDIT, 0
        self._arms, self._common = arms, common
        self._spent = [(_START, _START)] * (len(_STRETCHES) + 1)  # tokens and plain rounds, by the sort of stretch
        self._rates: dict[tuple[int, int], Rates] = {}

    def rates(self, arm: int, strength: int) -> Rates:
        """Return the record to count in."""
        key = (arm, strength)
        if key not in self._rates:
            one = self._arms[arm]
            self._rates[key] = Rates(STEERED_DECAY if one.steer is not None else OWN_DECAY, tree=one.tree)
        return self._rates[key]

    def survival(self, arm: int, strength: int, n: int) -> list[float]:
        """Return the chance that each of n drafted nodes stands."""
        shares = self._common.shares(arm, strength, self.greedy, n)
        own = self._rates.get((arm, strength))
        if own is not None:
            shares = own.shares(n, shares, OWN_WEIGHT)
        return survival(shares, self._arms[arm].tree)

    def gain(self) -> float:
        """Return how many times as fast as plain the row has been of late in stretches like this one; plain is always
        to be had. A text's stretches have to be gone through whatever is done in others: each has a rate of its own."""
        tokens, cost = self._spent[self._stretch()]
        return max(1.0, tokens / cost)

    def after(self, tokens: float, cost: float, curiosity: float) -> None:
        """Hear of a round: tokens it gave, and its time in plain rounds."""
        at = self._stretch()
        had, spent = self._spent[at]
        self.missed, self.missing = self.missed + self.missing, 0.0
        self._spent[at] = (_GAIN_DECAY * had + tokens, _GAIN_DECAY * spent + cost)
        self.credit = min(_MOST_CREDIT, self.credit + curiosity * cost)
        if self.plan.price >= 0.0:
            # a trial that cost nothing after all is followed up at once, where its draft ends by itself
            paid = self.plan.idle and tokens >= cost and self._arms[self.plan.arm].steer is not None
            if not paid:
                self.credit -= self.plan.price
                self.turn += 1

    def _stretch(self) -> int:
        strength = 0
        for offer in self.offers:
            strength = max(strength, offer.strength)
        return bisect_right(_STRETCHES, strength) if strength else 0

    def questions(self) -> list[tuple[int, int]]:
        """List what could be tried instead of the plan, in turn, as (arm, nodes): drafters that cannot be looked at."""
        found = []
        for i, arm in enumerate(self._arms):
            if arm.look is not None:
                continue
            probe = 1 if arm.steer is not None else _PROBE  # where it is sure it goes on by itself
            length = self.plan.length + 2 if self.plan.arm == i else probe
            length = min(length, self.offers[i].length)
            if length > (self.plan.length if self.plan.arm == i else 0):
                found.append((i, length))
        at = self.turn % len(found) if found else 0
        return found[at:] + found[:at]


def rate_key(greedy: bool, strength: int) -> str:
    """Return the name of a record in a profile."""
    return f"{'greedy' if greedy else 'sampled'} {strength}"


def _guess(arm: Arm, strength: int, greedy: bool) -> list[float]:
    """What to think of a drafter before it has drafted."""
    if strength == WENT_ON:
        return [1.0]
    if arm.tree:
        return [0.5 / (k + 1) ** 0.7 for k in range(arm.most)]
    if arm.steer is not None:
        return [0.75]  # a model of the family, mostly; too little hope would leave it untried where drafting is dear
    if arm.look is None:
        return [0.5]
    # a drawn token is another one more often; too little hope costs nothing, for what is looked at is scored unused
    first = min(0.9, 0.25 + 0.13 * strength if greedy else 0.15 * strength)
    return [first, (1.0 + first) / 2]
