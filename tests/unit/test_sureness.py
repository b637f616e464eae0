"""Drafts that end where their drafter is no longer sure enough: what it gains, whom it asks, that greedy text stays."""

import random

import pytest
import torch

from control_kit import Run, coin, outcome, profile_of
from slipstream.control.adaptive import AdaptiveBudget, AdaptiveOptions
from slipstream.control.arms import Arm
from slipstream.control.sureness import Sureness
from slipstream.drafters.draft_model import DraftModel
from slipstream.engine import Engine, EngineOptions
from slipstream.testing import RandomLaw, ToyTarget
from slipstream.testing.toy_decoder import ToyDecoder
from slipstream.testing.toys import logits_of
from slipstream.types import SamplingParams, Sequence
from slipstream.verify import RULES

V, MOST, COST = 5, 8, 0.3
TABLE = {1: 1.0, 4: 1.2, 8: 1.4, 16: 1.9}  # what a pass costs by nodes; the draft model costs 0.3 of a pass a token


def chance_of(seed, round_, position):
    """Most tokens are sure, some are guesses: which are which is known once they are drafted."""
    return random.Random(f"{seed} {round_} {position} kind").choice([0.97, 0.97, 0.9, 0.15])


def drive(controller, seed, rounds, *, temperature=0.0, says=lambda chance: chance):
    """Run rounds of a drafter that says how sure it is; return what they did."""
    row = Sequence(1, [0, 0], 1, SamplingParams(temperature=temperature), seed=1)
    row.cached = 64
    run = Run()
    for r in range(rounds):
        (most,) = controller.budget([row])
        drafted = 0
        while drafted < most:
            drafted += 1
            sure = [says(chance_of(seed, r, k)) for k in range(1, drafted + 1)]
            if drafted < most and temperature == 0.0 and not controller.go_on(row, sure):
                break
        stood = [coin(seed, r, k) < chance_of(seed, r, k) for k in range(1, drafted + 1)]
        kept = stood.index(False) if False in stood else drafted
        controller.record([row], *outcome([drafted], [kept]))
        run.tokens += 1 + kept
        run.seconds += controller.profile.target(1, 1 + drafted) + controller.profile.draft("toy", drafted, "greedy")
        run.lengths.append(drafted)
    return run


def controller(steer=lambda go_on: None, **options):
    profile = profile_of(TABLE, {"toy": COST})
    return AdaptiveBudget([Arm("toy", MOST, steer=steer)], profile, AdaptiveOptions(**options), clock=lambda: 0.0)


def speed(make, **more):
    runs = [drive(make(), seed, 150, **more) for seed in range(6)]
    return sum(run.tokens for run in runs) / sum(run.seconds for run in runs)


def test_stopping_where_it_is_unsure_beats_every_fixed_length():
    steered = speed(controller)
    lengths = [speed(lambda n=n: controller(fixed=n)) for n in range(1, MOST + 1)]
    assert steered > 1.05 * max(lengths)
    assert steered > 1.05 * speed(lambda: controller(steer=None), temperature=0.0)


@pytest.mark.parametrize("says", [lambda chance: 0.99, lambda chance: 1.0 - chance, lambda chance: 0.01])
def test_a_drafter_whose_word_is_worth_nothing_costs_nothing(says):
    """It is taken at its word for a while; then what stood decides."""
    best = max(1.0, *(speed(lambda n=n: controller(fixed=n)) for n in range(1, MOST + 1)))
    assert speed(controller, says=says) > 0.93 * best


def test_the_word_of_a_drafter_is_set_right():
    known = Sureness()
    assert known.chance(0.9) == pytest.approx(0.9)
    for _ in range(300):
        known.add([0.95, 0.4], [1.0, 0.0])
    assert known.chance(0.95) > 0.95
    assert known.chance(0.4) < 0.05
    assert known.pays([0.95], [1.0, 1.1], 1.0)
    assert not known.pays([0.4], [1.0, 1.1], 1.0)


def test_a_step_in_the_costs_does_not_hide_what_pays():
    known = Sureness()
    known.add([0.9] * 200, [1.0] * 200)
    assert known.pays([0.95], [1.0, 2.0, 2.0, 2.0], 1.0)
    assert not known.pays([0.95], [1.0, 2.0], 1.0)


def test_only_rows_of_its_own_and_only_free_lengths_are_stopped():
    unsure = [0.01, 0.01]
    free, fixed = controller(), controller(fixed=4)
    rows = [Sequence(k, [0, 0], 1, SamplingParams(temperature=t), seed=1) for k, t in ((0, 0.0), (1, 1.0))]
    for each in (free, fixed):
        for row in rows:
            each.budget([row])
    free._own(rows[0]).plan = free._own(rows[1]).plan = fixed._own(rows[0]).plan
    assert not free.go_on(rows[0], unsure)
    assert free.go_on(rows[1], unsure)  # a sampled row's length is decided before its first draw
    assert fixed.go_on(rows[0], unsure)
    assert free.go_on(Sequence(7, [0], 1, SamplingParams(), seed=1), unsure)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_steered_draft_model_in_the_engine(temperature):
    """Greedy rows are asked about, with the probability of each token, and keep their text; sampled ones are not."""
    p, q = RandomLaw(V, 1), RandomLaw(V, 2)
    asked = []

    class Asking(AdaptiveBudget):
        def go_on(self, row, sure):
            assert all(0.0 < each <= 1.0 for each in sure)
            asked.append(len(sure))
            return super().go_on(row, sure)

    decoder = ToyDecoder(lambda prefix: torch.tensor(logits_of(q(tuple(prefix))), dtype=torch.float64), vocab=V)
    drafter = DraftModel(decoder, vocab=V, max_rows=2)
    steered = Asking([Arm("draft_model", 4, steer=drafter.steer)], profile_of({1: 1.0, 32: 1.1}))
    engine = Engine(ToyTarget(p, V, max_rows=2), drafter, RULES["auto"], steered, EngineOptions(max_rows=2))
    params = SamplingParams(max_tokens=40, temperature=temperature, seed=3)
    rows = [Sequence(k, [k, 1], 2, params) for k in range(2)]
    for row in rows:
        engine.add(row)
    while not engine.idle:
        engine.step()
    assert bool(asked) == (temperature == 0.0)
    for row in rows if temperature == 0.0 else ():
        text = list(row.tokens[:2])
        while len(text) < 42:
            text.append(max(range(V), key=lambda t: (p(tuple(text))[t], -t)))
        assert row.tokens == text


# seconds of passes and of a drafted token as measured: a 1.5B target and a 0.5B draft model, both in four bits
REAL = {1: 0.0775, 2: 0.0968, 4: 0.0968, 8: 0.098, 16: 0.12, 32: 0.249}
TEXTS = {"copied": (5, 0.97, 0.8), "free": (0, 0.0, 0.8), "hard": (1, 0.1, 0.15)}  # match, its chance, the model's
WHO = {"copied": 0, "free": 1, "hard": -1}


def test_long_matches_are_copied_free_text_is_drafted_and_hard_text_left_alone():
    """One request whose text changes: who drafts follows, and whoever was left alone comes back."""
    made, row, at = _changing()
    chosen: dict[str, list[int]] = {}
    back: list[int] = []
    for kind in ("free", "copied", "hard", "free", "copied"):
        turns = [_turn(made, row, at, kind) for _ in range(120)]
        chosen.setdefault(kind, []).append(sum(turn == WHO[kind] for turn in turns[80:]))
        back.append(next(k for k in range(120) if turns[k : k + 3] == [WHO[kind]] * 3))
    assert all(count > 30 for counts in chosen.values() for count in counts), chosen
    assert max(back) < 36, "rounds until it is left alone, or taken up again"


def test_a_copied_passage_does_not_spoil_the_rounds_after_it():
    """It goes by at six times plain speed; what comes after cannot, and is drafted for all the same."""
    made, row, at = _changing()
    for _ in range(120):
        _turn(made, row, at, "copied")
    assert made._rows[row].gain() > 4
    turns = [_turn(made, row, at, "free") for _ in range(20)]
    assert turns.count(1) >= 17, turns


def _changing():
    """A controller of lookup and a draft model, a row, and the kind of text it is at."""
    at = {"kind": "free", "round": 0}

    def look(row, n):
        strength = TEXTS[at["kind"]][0]
        return ([0] * n, strength) if strength else ([], 0)

    profile = profile_of(REAL, {"lookup": 1e-5, "toy": 0.0235})
    arms = [Arm("lookup", 10, look=look), Arm("toy", MOST, steer=lambda go_on: None)]
    row = Sequence(1, [0, 0], 1, SamplingParams(), seed=1)
    row.cached = 64
    return AdaptiveBudget(arms, profile, clock=lambda: 0.0), row, at


def _turn(made, row, at, kind):
    """One round; who drafted in it."""
    at["kind"], at["round"] = kind, at["round"] + 1
    _, copied, foreseen = TEXTS[kind]
    (most,) = made.budget([row])
    arm = made.route(row) if most else -1
    drafted = most if arm == 0 else 0
    while arm == 1 and drafted < most:
        drafted += 1
        if not made.go_on(row, [foreseen] * drafted):
            break
    chance = copied if arm == 0 else foreseen
    stood = [coin(5, at["round"], k) < chance for k in range(1, drafted + 1)]
    kept = stood.index(False) if False in stood else drafted
    draft, verdict, laws = outcome([drafted], [kept])
    if arm != 0 and coin(6, at["round"], 1) < copied:  # what lookup would have copied comes out
        verdict.next_token[0] = 0
    made.record([row], draft, verdict, laws)
    return arm
