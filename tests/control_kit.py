"""Simulated acceptance: processes, a machine with a known cost, and the production controller between them."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

import torch

from slipstream.control.adaptive import AdaptiveBudget, AdaptiveOptions
from slipstream.control.arms import Arm
from slipstream.control.cost import CostTable
from slipstream.control.profile import Profile
from slipstream.types import Draft, Draw, Laws, SamplingParams, Sequence, Verdict

Process = Callable[[int, int], float]  # (round, position from 1) -> chance that it stands once it is reached


def iid(share: float) -> Process:
    """The same chance always and everywhere."""
    return lambda _round, _position: share


def decaying(first: float, factor: float) -> Process:
    """Deeper positions stand less often."""
    return lambda _round, position: first * factor ** (position - 1)


def bursty(good: float, bad: float, length: int, seed: int = 0) -> Process:
    """Stretches of good and bad rounds; a stretch ends with chance 1 / length."""
    rand, states = random.Random(seed), [True]

    def chance(round_: int, _position: int) -> float:
        while len(states) <= round_:
            states.append(states[-1] if rand.random() > 1 / length else not states[-1])
        return good if states[round_] else bad

    return chance


def profile_of(passes: dict[int, float], drafts: dict[str, float | dict[int, float]] | None = None) -> Profile:
    """A profile by nodes, with drafters that cost so much per token, or by tokens."""
    tables = {}
    for name, cost in (drafts or {}).items():
        points = {n + 1: 1e-9 + cost * n for n in range(33)} if isinstance(cost, float) else cost
        tables[name] = {kind: CostTable(points) for kind in ("greedy", "sampled")}
    return Profile({1: CostTable(passes)}, drafts=tables)


@cache
def coin(seed: int, round_: int, position: int) -> float:
    """The coin of a position: the same for all who draft there."""
    return random.Random(f"{seed} {round_} {position}").random()


@dataclass
class Run:
    """What a simulated request did."""

    tokens: int = 0
    seconds: float = 0.0
    lengths: list[int] = field(default_factory=list)

    @property
    def speed(self) -> float:
        """Tokens per second."""
        return self.tokens / self.seconds


class Machine:
    """Runs rounds at the profile's cost; what stands is decided by the process and one coin per round and position."""

    def __init__(self, profile: Profile, name: str, process: Process, *, seed: int = 0, cost: float = 1.0) -> None:
        self.profile, self.name, self.process, self.seed = profile, name, process, seed
        self.extra = cost  # factor on drafted rounds that the profile knows nothing of
        self.now = 0.0

    def stands(self, round_: int, length: int) -> int:
        for k in range(1, length + 1):
            if coin(self.seed, round_, k) >= self.process(round_, k):
                return k - 1
        return length

    def seconds(self, length: int) -> float:
        found = self.profile.target(1, 1 + length) + self.profile.draft(self.name, length, "greedy")
        return found * (self.extra if length else 1.0)


def fixed(machine: Machine, length: int, rounds: int) -> Run:
    """Always draft so many."""
    run = Run()
    for r in range(rounds):
        run.tokens += 1 + machine.stands(r, length)
        run.seconds += machine.seconds(length)
    return run


def simulate(
    machine: Machine, rounds: int, *, most: int = 16, controller: AdaptiveBudget | None = None, temperature: float = 0.0
) -> Run:
    """Let the controller decide, round by round."""
    if controller is None:
        controller = make(machine, most)
    row = Sequence(1, [0, 0], 1, SamplingParams(temperature=temperature), seed=1)
    row.cached = 64
    run = Run()
    for r in range(rounds):
        (length,) = controller.budget([row])
        machine.now += machine.seconds(length)
        kept = machine.stands(r, length)
        controller.record([row], *outcome([length], [kept], machine.process(r, 1) if temperature else None))
        run.tokens += 1 + kept
        run.seconds += machine.seconds(length)
        run.lengths.append(length)
    return run


def make(machine: Machine, most: int = 16, **options: object) -> AdaptiveBudget:
    """The controller of one drafter on a machine, on the machine's clock."""
    chosen = AdaptiveOptions(**options)  # type: ignore[arg-type]
    return AdaptiveBudget([Arm(machine.name, most)], machine.profile, chosen, clock=lambda: machine.now)


def outcome(lengths: list[int], kept: list[int], chance: float | None = None) -> tuple[Draft, Verdict, Laws]:
    """A round's records: chains of id 0 of which so many stand; with `chance`, the law gives id 0 that much."""
    rows, width = len(lengths), 1 + max(lengths)
    tokens = torch.zeros(rows, width, dtype=torch.int64)
    parents = torch.arange(-1, width - 1).repeat(rows, 1)
    draft = Draft(tokens, parents, torch.tensor(lengths) + 1, torch.full_like(tokens, int(Draw.FIXED)))
    path = torch.full((rows, max(1, max(kept))), -1)
    for b, n in enumerate(kept):
        path[b, :n] = torch.arange(1, n + 1)
    laws = Laws(points=torch.zeros(rows, width, dtype=torch.int64))
    if chance is not None:
        laws = Laws(probs=torch.tensor([chance, 1 - chance]).expand(rows, width, 2))
    return draft, Verdict(path, torch.tensor(kept), torch.ones(rows, dtype=torch.int64)), laws
