"""Draft as much as pays, by whoever it pays for: the controller behind `--draft-tokens auto`.

In: what earlier rounds showed, and a cost profile. Out: for each row a drafter and a number of nodes, possibly none.
A choice is worth E - lambda T: expected tokens less its time at the rate the row could have otherwise (Dinkelbach's
form of tokens per second). E sums the chances A_k that each drafted node stands, so node k is drafted while
A_k > lambda dT. Only what precedes the round is used: a draft that is looked at beforehand is a function of the
committed text, never a drawn one (law 4). Lengths come from earlier rounds alone, so all of them may be compared; no
early break is needed to be causal, and a step in the costs is no trap.

A greedy row's text does not depend on what is drafted, so its rows share one budget and the clock corrects the
profile. A sampled row's does: the same seed gives the same text again only if the same is drafted again. It is decided
from its own request's counts and the stored profile alone: no clock, no other row, no other request. With shared noise
(the coupled rule) that is not needed, and such rows are treated like greedy ones.
"""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from slipstream.control.acceptance import node_hits, reached
from slipstream.control.arms import NO_OFFER, Arm, Lead, Offer, Plan, Share, plan_batch, plan_row
from slipstream.control.clocks import Clocks
from slipstream.control.knowledge import WENT_ON, Common, Own
from slipstream.control.prices import Prices
from slipstream.control.profile import Kind, Profile, kind_of
from slipstream.control.reading import GLANCE, at_once, hold_back, left_to_write
from slipstream.control.shadows import emitted
from slipstream.control.sureness import Sureness
from slipstream.devices import listed
from slipstream.types import Draft, Laws, RequestError, Sequence, Verdict

_NOTHING = Plan(-1, 0)


@dataclass(frozen=True, kw_only=True)
class AdaptiveOptions:
    """`fixed`: always draft so many tokens, and choose only who drafts them. `shared_noise`: texts do not depend on
    drafts. `assumed_rows`: the load that sampled rows reckon with, since they may not look at the real one.
    `curiosity`: the share of the time that may go into finding out whether drafting has become worth while."""

    fixed: int | None = None
    shared_noise: bool = False
    assumed_rows: int = 1
    curiosity: float = 0.007

    def __post_init__(self) -> None:
        if self.fixed is not None and self.fixed < 1:
            raise RequestError(f"draft_tokens is {self.fixed!r}; give a whole number of at least 1, or 'auto'")


class AdaptiveBudget:
    """The `Controller` of a set of drafters. `route(row)` says whose turn it is in this round, -1 for nobody's.

    `arms` are in the order of the mixed drafter's, which `lead` tells to ask it. `clock` is read at the beginning and
    the end of a round.
    """

    def __init__(
        self,
        arms: Seq[Arm],
        profile: Profile,
        options: AdaptiveOptions | None = None,
        *,
        lead: Lead | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.options = options or AdaptiveOptions()
        self.arms, self.profile, self._lead = tuple(arms), profile, lead
        self._steered = any(arm.steer is not None for arm in self.arms)
        hooks: list[tuple[Callable[[Any], None] | None, Callable[..., Any]]] = [(lead, self.route)]
        for i, arm in enumerate(self.arms):
            hooks += [(arm.steer, self.go_on), (arm.wait, partial(self.waits, i))]
        self._hooks = [(tell, whom) for tell, whom in hooks if tell is not None]
        self._readers = any(arm.unread is not None for arm in self.arms)
        self._prices = Prices(self.arms, profile)
        self._clocks = Clocks(len(self.arms))
        self._common = Common(self.arms, profile)
        self._stored = Common(self.arms, profile)  # never written: what sampled rows start from
        self._sureness = [Sureness() for _ in self.arms]
        self._rows: WeakKeyDictionary[Sequence, Own] = WeakKeyDictionary()
        self._now, self._began = clock, 0.0
        self.begin()

    def always(self, nodes: int) -> AdaptiveBudget:
        """Return a controller of the same drafters that always drafts: to test what is drafted, whatever it costs."""
        options = dataclasses.replace(self.options, fixed=nodes)
        return AdaptiveBudget(self.arms, self.profile, options, lead=self._lead, clock=self._now)

    def route(self, row: Sequence) -> int:
        """Return the arm that drafts for the row in the round under way, or -1."""
        own = self._rows.get(row)
        return own.plan.arm if own is not None else -1

    def go_on(self, row: Sequence, sure: Seq[float]) -> bool:
        """Say whether the drafter of a row should draft another token, by how sure it was of those so far."""
        own = self._rows.get(row)
        if own is None or own.plan.arm < 0 or self.options.fixed is not None or not own.greedy:
            return True
        own.sure, (seconds, rate) = list(sure), own.ahead
        ahead = seconds[len(sure) : own.plan.length + 1]
        own.stopped = not self._sureness[own.plan.arm].pays(sure, ahead, rate)
        return not own.stopped

    def waits(self, arm: int, row: Sequence) -> bool:
        """Say whether a drafter should leave a row's prompt unread for now."""
        size = row.prompt_len
        if size <= GLANCE or self.options.fixed is not None:  # asked in every round: the cheap answers first
            return False
        kind = self._kind(row.params.greedy)
        price = size * self._prices.reading(arm, kind) / self._prices.plain(1, size, kind)
        return not at_once(price, left_to_write(row))

    def budget(self, rows: list[Sequence]) -> list[int]:
        """Decide who drafts how much for each row. Deciding twice changes nothing."""
        self._began = self._now()
        owns, offered = [], False
        for row in rows:
            own = self._own(row)
            self._ask(row, own)
            own.plan = _NOTHING
            owns.append(own)
            offered = offered or own.offered
        if self.options.fixed is not None:
            for own in owns:
                own.plan = self._fixed(own)
        elif offered:
            self._decide(rows, owns)
        return [own.plan.length for own in owns]

    def record(self, rows: list[Sequence], draft: Draft, verdict: Verdict, laws: Laws) -> None:
        """Learn from the round: what stood, what would have stood, and how long it took."""
        seconds = self._now() - self._began
        owns = [self._own(row) for row in rows]
        drafted = [0] * len(rows)
        if draft.nodes > 1:
            drafted = [n - 1 if own.plan.length else 0 for own, n in zip(owns, listed(draft.length), strict=True)]
        if not (self._readers and _read(owns)):  # reading is no part of a round
            self._time(rows, owns, drafted, seconds)
        blind = [b for b, n in enumerate(drafted) if n and self.arms[owns[b].plan.arm].look is None]
        values = reached(draft, verdict, laws, soft=not self.options.shared_noise) if blind else []
        for b in blind:
            arm = owns[b].plan.arm
            found = node_hits(draft, verdict, b) if self.arms[arm].tree else values[b]
            self._count(owns[b], (arm, owns[b].offers[arm].strength), self._steering(owns[b], arm, found, drafted[b]))
        if any(own.shadows.under_way for own in owns):
            self._hear(owns, draft, verdict, laws)
        accepted = listed(verdict.accepted) if draft.nodes > 1 else drafted  # then: none of none
        for b, own in enumerate(owns):
            cost = self._cost(own, rows[b], drafted[b], len(rows)) if drafted[b] else 1.0
            own.after(1 + accepted[b], cost, self.options.curiosity)

    def begin(self) -> None:
        """Have the drafters ask here; in each round, since a drafter may serve several engines by turns."""
        for tell, whom in self._hooks:
            tell(whom)

    def found(self) -> dict[str, dict[str, list[float]]]:
        """Return the acceptance of all requests so far, in the form of a profile's `rates`."""
        return self._common.table()

    def _kind(self, greedy: bool) -> Kind:
        return kind_of(greedy, self.options.shared_noise)

    def _own(self, row: Sequence) -> Own:
        own = self._rows.get(row)
        if own is None:
            free = row.params.greedy or self.options.shared_noise
            own = Own(self.arms, self._common if free else self._stored, row.params.greedy, free)
            self._rows[row] = own
        return own

    def _ask(self, row: Sequence, own: Own) -> None:
        """Hear what each drafter could add now, and how likely it is to stand."""
        own.sure, own.stopped = [], False
        own.offers, own.offered = [], False
        for i, arm in enumerate(self.arms):
            n, strength = self.options.fixed or arm.most, 0
            if arm.room is not None:
                n = min(n, arm.room(row))
            if arm.look is not None:
                tokens, strength = arm.look(row, n)
                n = len(tokens)
                own.shadows.propose(i, strength, tokens)
            if n or strength:
                own.offered = own.offered or n > 0
                own.offers.append(Offer(n, strength, own.survival(i, strength, n)))
            else:
                own.offers.append(NO_OFFER)

    def _decide(self, rows: list[Sequence], owns: list[Own]) -> None:
        """Choose among the offers, each row for itself or the free ones of a batch together."""
        free = [b for b, own in enumerate(owns) if own.free]
        for own, row in zip(owns, rows, strict=True):
            if not own.free or len(rows) == 1:
                own.plan = self._alone(own, row)
        if free and len(rows) > 1:
            self._together(rows, owns, free)
        if len(free) == len(rows) and self._clocks.due():
            for own in owns:
                own.plan = _NOTHING

    def _fixed(self, own: Own) -> Plan:
        best = max(range(len(own.offers)), key=lambda i: sum(own.offers[i].survival))
        return Plan(best, self.options.fixed or 0) if own.offers[best].length else _NOTHING

    def _alone(self, own: Own, row: Sequence) -> Plan:
        """Decide for one row on its own: every drafter at every length."""
        if not own.offered:
            return _NOTHING
        load = 1 if own.free else self.options.assumed_rows
        plain, lists = self._seconds(own, row.cached, load)
        rate = own.gain() * load / plain
        self._hold_back(own, row, lists, plain, rate)
        own.plan = plan_row(own.offers, self._expected(own, lists), plain, rate)
        return self._open_ended(own, self._curious(own, plain, lists, rate), lists, rate)

    def _hold_back(self, own: Own, row: Sequence, lists: list[list[float]], plain: float, rate: float) -> None:
        if not self._readers:
            return
        unread = [arm.unread(row) if arm.unread is not None else 0 for arm in self.arms]
        prices = {
            i: n * self._prices.reading(i, self._kind(own.greedy)) / plain for i, n in enumerate(unread) if n > GLANCE
        }
        own.unread = prices
        if prices:
            hold_back(own, prices, left_to_write(row), self._expected(own, lists), plain, rate)

    def _seconds(self, own: Own, context: int, load: int) -> tuple[float, list[list[float]]]:
        kind = self._kind(own.greedy)
        plain = self._prices.plain(load, context, kind)
        lists = [self._prices.lengths(i, load, context, kind) for i in range(len(self.arms))]
        if own.free:
            scales = self._clocks.scales()
            lists = [each if f == 1.0 else [s * f for s in each] for each, f in zip(lists, scales, strict=True)]
        return plain, lists

    def _expected(self, own: Own, lists: list[list[float]]) -> list[list[float]]:
        """Return the seconds of rounds as they are to be expected of drafters that may stop before their length."""
        if not (self._steered and own.greedy):
            return lists
        found = list(lists)
        for i, arm in enumerate(self.arms):
            if arm.steer is not None:
                went = own.survival(i, WENT_ON, arm.most)
                steps = (chance * (b - a) for chance, a, b in zip(went, lists[i], lists[i][1:], strict=False))
                found[i] = list(itertools.accumulate(steps, initial=lists[i][0]))
        return found

    def _together(self, rows: list[Sequence], owns: list[Own], free: list[int]) -> None:
        """Share the target's pass among the free rows; what sampled rows draft is given."""
        load = len(rows)
        context = sum(row.cached for row in rows) // load
        shares, prices = [], []
        gain = sum(own.gain() for own in owns)
        for b in free:
            plain, lists = self._seconds(owns[b], context, load)
            self._hold_back(owns[b], rows[b], lists, plain, gain / plain)
            wish = plan_row(owns[b].offers, self._expected(owns[b], lists), plain, gain / plain)
            shares.append(Share(wish.arm, owns[b].offers[wish.arm].survival[: wish.length] if wish.length else []))
            prices.append((plain, lists))
        base = load + sum(own.plan.length for own in owns if not own.free)
        table = self._prices.passes(load, context, base, sum(len(s.survival) for s in shares))
        drafts = [self._prices.drafts(i, self._kind(owns[free[0]].greedy)) for i in range(len(self.arms))]
        lengths = plan_batch(shares, table, drafts, gain / prices[0][0])
        for b, n, share, (plain, lists) in zip(free, lengths, shares, prices, strict=True):
            owns[b].plan = Plan(share.arm, n) if n else _NOTHING
            wish = self._curious(owns[b], plain, lists, gain / plain)
            owns[b].plan = self._open_ended(owns[b], wish, lists, gain / plain)

    def _curious(self, own: Own, plain: float, lists: list[list[float]], rate: float) -> Plan:
        """Try what is not thought best when the row can afford what that is thought to cost."""
        plan = own.plan
        for arm, length in own.questions():
            seconds, chances = lists[arm][length], own.offers[arm].survival
            had = own.offers[plan.arm].survival[: plan.length] if plan.length else []
            spent = lists[plan.arm][plan.length] if plan.length else plain
            lost = (seconds - spent) - (sum(chances[:length]) - sum(had)) / rate
            price = max(0.0, lost) / plain
            if own.credit >= price:
                return Plan(arm, length, price, not plan.length)
        return plan

    def _steering(self, own: Own, arm: int, values: list[float], drafted: int) -> list[float]:
        """Learn what a drafter's word was worth. A token it was stopped before counts as one that did not stand: the
        chances are those of drafting as it is drafted, and so are the times."""
        if self.arms[arm].steer is None or not own.greedy or self.options.fixed is not None:
            return values
        self._sureness[arm].add(own.sure, values)
        values = [self._sureness[arm].chance(sure) for sure, _ in zip(own.sure, values, strict=False)]  # less of a coin
        self._count(own, (arm, WENT_ON), [1.0] * drafted + [0.0] * own.stopped)
        return [*values, 0.0] if own.stopped and len(values) == drafted else values

    def _open_ended(self, own: Own, plan: Plan, lists: list[list[float]], rate: float) -> Plan:
        """Let a drafter that is asked after each token go as far as it can: it ends where going on does not pay."""
        own.ahead = (lists[plan.arm], rate)
        if plan.length and own.greedy and self.arms[plan.arm].steer is not None:
            return dataclasses.replace(plan, length=own.offers[plan.arm].length)
        return plan

    def _count(self, own: Own, what: tuple[int, int], values: Seq[float], start: int = 0) -> None:
        own.rates(*what).add(values, start)
        self._common.rates(*what, own.greedy).add(values, start)

    def _hear(self, owns: list[Own], draft: Draft, verdict: Verdict, laws: Laws) -> None:
        """Score what was looked at against what came out."""
        for b, (own, tokens, nodes) in enumerate(zip(owns, *emitted(draft, verdict), strict=True)):
            if own.shadows.under_way:
                p = laws.probs[b] if laws.probs is not None else None
                for arm, strength, start, shown in own.shadows.hear(tokens, p, nodes):
                    self._count(own, (arm, strength), shown, start)

    def _cost(self, own: Own, row: Sequence, drafted: int, load: int) -> float:
        """Seconds of the row's round, which drafted something, over those of a plain one."""
        plain, lists = self._seconds(own, row.cached, load if own.free else self.options.assumed_rows)
        arm = own.plan.arm
        return lists[arm][min(drafted, self.arms[arm].most)] / plain

    def _time(self, rows: list[Sequence], owns: list[Own], drafted: list[int], seconds: float) -> None:
        """Correct the profile by the clock; read for free rows only."""
        load, cached, greedy = len(rows), 0, True
        for row, own in zip(rows, owns, strict=True):
            cached, greedy = cached + row.cached, greedy and own.greedy
        context, kind = cached // load, self._kind(greedy)
        if not any(drafted):
            self._clocks.add(-1, seconds, self._prices.plain(load, context, kind))
            return
        arm, *others = {own.plan.arm for own, n in zip(owns, drafted, strict=True) if n}
        if others:
            return
        if load == 1:
            expected = self._prices.lengths(arm, 1, context, kind)[min(drafted[0], self.arms[arm].most)]
        else:
            expected = self._prices.round(load, context, kind, arm, drafted)
        self._clocks.add(arm, seconds, expected)


def _read(owns: Seq[Own]) -> bool:
    """Say whether a drafter had a text to read before it drafted."""
    return any(own.plan.length and own.plan.arm in own.unread for own in owns)
