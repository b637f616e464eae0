"""Seconds of whole rounds, looked up: what the controller asks of a profile in every round, made once.

In: arms and a profile. Out: lists by drafted tokens. Contexts are rounded to steps, so that few lists are made.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

from slipstream.control.arms import Arm
from slipstream.control.profile import Profile

_STEP = 128  # tokens of context that share a list
_HELD = 4096  # lists kept
_MANY = 32  # nodes of a pass that costs per node about what a prompt does


class Prices:
    """Lists of seconds, by arm, load, context and kind of row."""

    def __init__(self, arms: Seq[Arm], profile: Profile) -> None:
        self.arms, self.profile = arms, profile
        self._lists: dict[tuple[int, int, int, str], list[float]] = {}
        self._drafts: dict[tuple[int, str], list[float]] = {}

    def plain(self, load: int, context: int, kind: str) -> float:
        """Return the seconds of a round that drafts nothing. Drafters hear of the tokens all the same."""
        key = (-1, load, context // _STEP, kind)
        found = self._lists.get(key)
        if found is None:
            p = self.profile
            hearing = sum(p.draft(arm.cost, 0, kind) for arm in self.arms)
            found = self._keep(key, [p.target(load, load, _at(context)) + load * p.host(0, kind) + hearing])
        return found[0]

    def lengths(self, arm: int, load: int, context: int, kind: str) -> list[float]:
        """Return the seconds of a round in which one row drafts 0, 1, .. tokens and the others nothing."""
        key = (arm, load, context // _STEP, kind)
        found = self._lists.get(key)
        if found is None:
            found = [self.round(load, context, kind, arm, [n]) for n in range(self.arms[arm].most + 1)]
            found = self._keep(key, found)
        return found

    def drafts(self, arm: int, kind: str) -> list[float]:
        """Return the seconds of drafting 0, 1, .. tokens, beyond those of hearing."""
        found = self._drafts.get((arm, kind))
        if found is None:
            one = self.arms[arm]
            whole = [self.profile.draft(one.cost, n, kind) for n in range(one.most + 1)]
            found = self._drafts[arm, kind] = [s - whole[0] for s in whole]
        return found

    def reading(self, arm: int, kind: str) -> float:
        """Return the seconds of reading a token of a prompt; where that was not measured, a share of a pass of many."""
        known = self.profile.reading.get(self.arms[arm].cost)
        if known is not None:
            return known
        p, whole = self.profile, self.drafts(arm, kind)
        return p.target(1, _MANY) / _MANY * min(1.0, whole[1] / p.target(1, 1))

    def passes(self, load: int, context: int, base: int, most: int) -> list[float]:
        """Return the seconds of the target's pass over base, base + 1, .. base + most nodes of `load` rows."""
        key = (-2 - base, load, context // _STEP, "")
        found = self._lists.get(key, [])
        if len(found) <= most:
            found = [self.profile.target(load, n, _at(context)) for n in range(base, base + most + 1)]
            self._keep(key, found)
        return found[: most + 1]

    def round(self, load: int, context: int, kind: str, arm: int, drafted: Seq[int]) -> float:
        """Return the seconds of a round whose rows draft so many tokens, all by one arm (-1: none)."""
        total, longest = sum(drafted), max(drafted, default=0)
        if arm < 0 or not longest:
            return self.plain(load, context, kind)
        p = self.profile
        more = p.target(load, load + total, _at(context)) - p.target(load, load, _at(context))
        more += p.host(longest, kind) - p.host(0, kind)
        return self.plain(load, context, kind) + more + self.drafts(arm, kind)[min(longest, self.arms[arm].most)]

    def _keep(self, key: tuple[int, int, int, str], found: list[float]) -> list[float]:
        if len(self._lists) >= _HELD:
            self._lists.clear()
        self._lists[key] = found
        return found


def _at(context: int) -> int:
    return context // _STEP * _STEP + _STEP // 2
