"""The choice itself: drafters with what they offer, and which of it is worth its time. Pure; keeps nothing.

In: for each drafter the chances that its nodes stand and the seconds of its rounds. Out: plans.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from slipstream.control.sureness import Steer
from slipstream.types import Sequence

Look = Callable[[Sequence, int], tuple[list[int], int]]
Wait = Callable[[Callable[[Sequence], bool] | None], None]
Lead = Callable[[Callable[[Sequence], int] | None], None]


@dataclass(frozen=True)
class Arm:
    """A drafter to choose from: its name, the most nodes it drafts, and the name of its costs and rates in a profile.

    `look(row, n)` returns what it would draft now and how sure it is, a small whole number: for drafters whose drafts
    are a function of the committed text and cost next to nothing. `tree`: its nodes are not a chain. `steer` tells it
    whom to ask whether to draft on: for drafters that know how sure they are. `unread(row)` returns how many tokens it
    would have to be fed first, and `wait` tells it whom to ask whether to leave a prompt unread for now: for drafters
    that read a long prompt only when they are wanted. `room(row)` returns how many tokens fit into its own context.
    """

    name: str
    most: int
    cost: str = ""
    look: Look | None = None
    tree: bool = False
    steer: Steer | None = None
    unread: Callable[[Sequence], int] | None = None
    wait: Wait | None = None
    room: Callable[[Sequence], int] | None = None

    def __post_init__(self) -> None:
        if not self.cost:
            object.__setattr__(self, "cost", self.name)


@dataclass(frozen=True)
class Offer:
    """What a drafter could add to a row now: nodes, how sure it is, and the chance that each stands."""

    length: int
    strength: int
    survival: list[float]


NO_OFFER = Offer(0, 0, [])


@dataclass(frozen=True)
class Plan:
    """Who drafts for a row (-1: nobody) and how much. `price`: what is paid for curiosity, in plain rounds; `idle`:
    nothing would have been drafted otherwise."""

    arm: int
    length: int
    price: float = -1.0  # below 0: it is the choice that is thought best
    idle: bool = False


@dataclass(frozen=True)
class Share:
    """A row's wish in a batch: its drafter, and the chances of the nodes it would have."""

    arm: int
    survival: list[float]


def worth(plan: Plan, offers: Seq[Offer], seconds: Seq[Seq[float]], plain: float, rate: float) -> float:
    """Return E - rate * T of a plan."""
    if not plan.length:
        return 1.0 - rate * plain
    return 1.0 + sum(offers[plan.arm].survival[: plan.length]) - rate * seconds[plan.arm][plan.length]


def plan_row(offers: Seq[Offer], seconds: Seq[Seq[float]], plain: float, rate: float) -> Plan:
    """Return the drafter and length with the largest E - rate * T; the shortest of equals, nothing first.

    `seconds[i][n]` is the time of a round with n nodes of drafter i, `plain` of one with none.
    """
    best, arm, length = 1.0 - rate * plain, -1, 0
    for i, offer in enumerate(offers):
        expected, times = 1.0, seconds[i]
        for n, chance in enumerate(offer.survival, 1):
            expected += chance
            value = expected - rate * times[n]
            if value > best + 1e-12:
                best, arm, length = value, i, n
    return Plan(arm, length)


def plan_batch(shares: Seq[Share], passes: Seq[float], drafts: Seq[Seq[float]], rate: float) -> list[int]:
    """Return how many nodes each row drafts: all rows' nodes in the order of their chances, cut where it pays most.

    `passes[n]` is the pass with n drafted nodes in all, `drafts[i][k]` drafter i's time for k nodes: drafters take
    their rows together. Chances fall along a row and ties go to the earlier place, so every cut is made of prefixes.
    """
    items = sorted(
        (-chance, place, b) for b, share in enumerate(shares) for place, chance in enumerate(share.survival, 1)
    )
    lengths, longest = [0] * len(shares), [0] * len(drafts)
    gained, drafting, best, kept = 0.0, 0.0, -rate * passes[0], 0
    for count, (chance, place, b) in enumerate(items, 1):
        gained -= chance
        arm = shares[b].arm
        if place > longest[arm]:
            drafting += drafts[arm][place] - drafts[arm][longest[arm]]
            longest[arm] = place
        value = gained - rate * (passes[count] + drafting)
        if value > best + 1e-12:
            best, kept = value, count
    for _, place, b in items[:kept]:
        lengths[b] = max(lengths[b], place)
    return lengths
