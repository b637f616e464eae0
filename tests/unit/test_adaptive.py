"""The adaptive controller on simulated acceptance: regret, no loss, replay, load, what it may know."""

import gc
import itertools
import math
import random
from collections.abc import Callable

import pytest

from control_kit import Machine, Process, bursty, decaying, fixed, iid, make, outcome, profile_of, simulate
from slipstream.control.adaptive import AdaptiveBudget, AdaptiveOptions
from slipstream.control.arms import Arm, Offer, Share, plan_batch, plan_row
from slipstream.control.clocks import Clocks
from slipstream.types import RequestError, SamplingParams, Sequence

FLAT = {1: 1.0, 2: 1.0, 4: 1.05, 8: 1.14, 16: 1.34, 32: 2.8}
STEEP = {1: 1.0, 2: 1.3, 4: 1.5, 8: 2.8, 16: 5.5, 32: 10.0}
ROUNDS, SEEDS, MOST = 200, 10, 16
PROCESSES: dict[str, Callable[[int], Process]] = {
    "never": lambda seed: iid(0.0),
    "seldom": lambda seed: iid(0.3),
    "half": lambda seed: iid(0.5),
    "often": lambda seed: iid(0.8),
    "always": lambda seed: iid(1.0),
    "decaying": lambda seed: decaying(0.8, 0.8),
    "bursts": lambda seed: bursty(0.9, 0.1, 20, seed),
    "long bursts": lambda seed: bursty(0.85, 0.3, 50, seed),
    "short bursts": lambda seed: bursty(0.9, 0.2, 5, seed),
}
MACHINES = [(FLAT, 0.03), (FLAT, 0.38), (STEEP, 0.03)]


def machines(table, cost, process):
    return [Machine(profile_of(table, {"toy": cost}), "toy", process(s), seed=s) for s in range(SEEDS)]


def mean_speed(runs):
    return sum(run.tokens for run in runs) / sum(run.seconds for run in runs)


@pytest.mark.parametrize("process", PROCESSES)
@pytest.mark.parametrize(("table", "cost"), MACHINES)
def test_regret_against_the_best_fixed_length_and_against_none(process, table, cost):
    each = machines(table, cost, PROCESSES[process])
    best = max(mean_speed([fixed(m, n, ROUNDS) for m in each]) for n in (0, 1, 2, 3, 4, 6, 8, 10, 12, 16))
    plain = mean_speed([fixed(m, 0, ROUNDS) for m in each])
    found = mean_speed([simulate(m, ROUNDS, most=MOST) for m in each])
    assert found > 0.95 * best
    assert found > 0.97 * plain


def test_control_a_fixed_length_fails_where_the_controller_does_not():
    (machine, *_) = machines(STEEP, 0.03, PROCESSES["never"])
    assert fixed(machine, 4, ROUNDS).speed < 0.7 * fixed(machine, 0, ROUNDS).speed


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_replay_is_the_same(temperature):
    (machine, *_) = machines(FLAT, 0.1, PROCESSES["bursts"])
    first = simulate(machine, 100, temperature=temperature).lengths
    assert simulate(machine, 100, temperature=temperature).lengths == first
    assert len(set(first)) > 3, "lengths adapt"


def test_it_comes_back_when_drafting_pays_again():
    def late(round_: int, _position: int) -> float:
        return 0.0 if round_ < 200 else 0.9

    (machine, *_) = machines(FLAT, 0.1, lambda seed: late)
    lengths = simulate(machine, 400).lengths
    assert sum(lengths[150:200]) <= 4
    assert sum(lengths[300:]) > 400


def test_a_dear_drafter_is_found_out_by_the_clock():
    """The profile says drafts are cheap; the clock says that drafted rounds take twice as long."""
    machine = Machine(profile_of({1: 1.0, 32: 1.0}, {"toy": 1e-6}), "toy", iid(0.55), cost=3.0)
    controller = make(machine)
    simulate(machine, 300, controller=controller)
    late = simulate(machine, 100, controller=controller)
    assert late.tokens / late.seconds > 0.95


def test_rounds_that_wait_to_be_counted_count_as_if_each_had_been_at_once():
    """Plain rounds that get slower, then a drafted one: it is compared with a mean that follows the last of them."""
    for count in (1, 2, 63, 64, 65, 200):
        ratios = [1.0 + 0.01 * k for k in range(count)]
        clocks, recent = Clocks(1), math.log(ratios[0])
        for ratio in ratios:
            clocks.add(-1, ratio, 1.0)
            recent += 0.3 * (math.log(ratio) - recent)
        clocks.add(0, 6.0, 3.0)
        assert clocks.scales() == [math.exp((math.log(2.0) - recent) / 3)]


def test_a_sampled_row_looks_at_no_clock_no_neighbour_and_no_other_request():
    def lengths(controller, clock, mates):
        row = Sequence(1, [0, 0], 1, SamplingParams(temperature=1.0), seed=1)
        found = []
        for r in range(60):
            rows = [row, *mates]
            budget = controller.budget(rows)
            found.append(budget[0])
            clock[0] += random.Random(len(mates)).random() * (20.0 if mates else 1.0)
            kept = [random.Random(f"{r} {k}").randint(0, n) for k, n in enumerate(budget)]
            controller.record(rows, *outcome(budget, kept, 0.6))
        return found

    def build(clock):
        profile = profile_of(STEEP, {"toy": 0.05})
        return AdaptiveBudget([Arm("toy", 8)], profile, clock=lambda: clock[0])

    clock = [0.0]
    alone = lengths(build(clock), clock, [])
    used = build(clock)
    simulate(Machine(used.profile, "toy", iid(1.0)), 100, controller=used)
    mates = [Sequence(k, [0, 0], 1, SamplingParams(temperature=k % 2), seed=1) for k in (2, 3, 4)]
    assert lengths(used, clock, mates) == alone
    assert len(set(alone)) > 1


@pytest.mark.parametrize("share", [0.5, 0.8, 0.95])
def test_more_load_never_means_longer_drafts(share):
    """Passes get dearer with nodes; with more rows each row drafts less, down to nothing."""
    found = []
    for load in (1, 2, 4, 8, 16, 32):
        rows = [Sequence(k, [0, 0], 1, SamplingParams(), seed=1) for k in range(load)]
        table = {1: 1.0, 16: 1.1, 32: 2.0, 64: 4.0, 128: 8.0, 1024: 64.0}
        options = AdaptiveOptions(curiosity=0.0)
        controller = AdaptiveBudget([Arm("toy", 8)], profile_of(table, {"toy": 0.001}), options, clock=lambda: 0.0)
        rand, drafted = random.Random(load), 0
        for r in range(120):
            budget = controller.budget(rows)
            kept = [next((k for k in range(n) if rand.random() > share), n) for n in budget]
            controller.record(rows, *outcome(budget, kept))
            drafted += sum(budget) if r >= 40 else 0
        found.append(drafted / load / 80)
    assert found[0] >= 1.0
    for few, many in itertools.pairwise(found):
        assert many <= few + 0.5, "but for the noise of what was learned"
    assert found[-1] < 0.5 * found[0]


def test_the_plan_is_monotone_in_load_for_equal_knowledge():
    share = Share(0, [0.8**k for k in range(1, 9)])
    table = [1.0 + max(0, n - 12) * 0.06 for n in range(33 * 9)]
    found = []
    for load in (1, 2, 4, 8, 16, 32):
        lengths = plan_batch([share] * load, table[load - 1 :], [[0.0] * 9], rate=load / table[load - 1])
        assert max(lengths) - min(lengths) <= 1, "equal rows share alike"
        found.append(sum(lengths) / load)
    assert found == sorted(found, reverse=True)
    assert found[0] > 5
    assert found[-1] < 4


def test_rows_that_stand_better_get_more_of_the_pass():
    good, bad = Share(0, [0.9, 0.81, 0.73]), Share(0, [0.2, 0.04, 0.008])
    lengths = plan_batch([bad, good], [1.0 + 0.1 * n for n in range(8)], [[0.0] * 4], rate=3.0)
    assert lengths == [0, 3]


def test_the_plan_of_a_row_is_the_best_of_all():
    offers = [Offer(3, 0, [0.5, 0.4, 0.3]), Offer(0, 0, [])]
    times = [[1.0, 1.2, 1.4, 3.0], [1.0]]
    plan = plan_row(offers, times, 1.0, 1.0)
    assert (plan.arm, plan.length) == (0, 2)
    assert plan_row(offers, times, 1.0, 4.0).length == 0


def test_a_step_in_the_costs_is_no_trap():
    """One token more costs a lot, eleven more cost no more than that: all or nothing."""
    offer = Offer(12, 0, [0.97**k for k in range(1, 13)])
    plan = plan_row([offer], [[1.0, *[3.0] * 12]], 1.0, 1.0)
    assert plan.length == 12


def test_rows_join_and_leave_without_a_trace():
    machine = Machine(profile_of(FLAT, {"toy": 0.1}), "toy", iid(0.8))
    controller = make(machine)
    for k in range(20):
        rows = [Sequence(k + i, [0, 0], 1, SamplingParams(), seed=1) for i in range(1 + k % 3)]
        budget = controller.budget(rows)
        controller.record(rows, *outcome(budget, [min(1, n) for n in budget]))
    del rows
    gc.collect()
    assert len(controller._rows) == 0


def test_deciding_twice_changes_nothing():
    """A round may be retried after an error."""
    machine = Machine(profile_of(FLAT, {"toy": 0.1}), "toy", iid(0.8))
    once, twice = make(machine), make(machine)
    row, other = (Sequence(1, [0, 0], 1, SamplingParams(), seed=1) for _ in range(2))
    for r in range(30):
        twice.budget([other])
        budget = once.budget([row])
        assert twice.budget([other]) == budget
        kept = [machine.stands(r, budget[0])]
        once.record([row], *outcome(budget, kept))
        twice.record([other], *outcome(budget, kept))


def test_fixed_lengths_stay():
    machine = Machine(profile_of(STEEP, {"toy": 0.5}), "toy", iid(0.0))
    run = simulate(machine, 30, controller=make(machine, fixed=3))
    assert run.lengths == [3] * 30
    with pytest.raises(RequestError, match="at least 1"):
        AdaptiveOptions(fixed=0)
