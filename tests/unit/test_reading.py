"""A draft model that has yet to read a long prompt waits until it has missed as much as reading costs."""

import pytest
import torch

from control_kit import outcome, profile_of
from slipstream.control.adaptive import AdaptiveBudget
from slipstream.control.arms import Arm
from slipstream.control.prices import Prices
from slipstream.drafters.draft_model import DraftModel
from slipstream.sampling import RequestRngs
from slipstream.testing.toy_decoder import ToyDecoder
from slipstream.types import SamplingParams, Sequence

PASSES = {1: 1.0, 2: 1.05, 8: 1.4, 32: 3.2}
STEP = 0.25  # seconds of a drafted token: reading takes a quarter of the target's 0.1 a token


def decode(prompt: int, tokens: int, temperature: float = 0.0, chance: float = 0.8) -> tuple[list[int], float, float]:
    """Write `tokens`; return the rounds that drafted, the seconds spent, and those of plain decoding."""
    state = {"read": False, "now": 0.0}
    profile = profile_of(PASSES, {"toy": STEP})
    arm = Arm("toy", 4, unread=lambda row: 0 if state["read"] else prompt)
    made = AdaptiveBudget([arm], profile, clock=lambda: state["now"])
    row = Sequence(1, [0] * prompt, prompt, SamplingParams(max_tokens=tokens, temperature=temperature), seed=1)
    row.cached = 64
    drafting, turn = [], 0
    while len(row.tokens) < prompt + tokens:
        (length,) = made.budget([row])
        assert made.budget([row]) == [length], "deciding twice changes nothing"
        cost = profile.target(1, 1 + length) + STEP * length
        if length:
            drafting.append(turn)
            cost += 0.0 if state["read"] else prompt * Prices([arm], profile).reading(0, "greedy")
            state["read"] = True
        kept = min(length, turn % 5)
        state["now"] += cost
        made.record([row], *outcome([length], [kept], chance if temperature else None))
        row.tokens += [0] * (kept + 1)
        turn += 1
    return drafting, state["now"], float(tokens)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_short_answer_to_a_long_prompt_is_written_without_it(temperature):
    assert decode(1000, 40, temperature)[0] == [], "reading takes 25 plain rounds: no more than 20 could be saved"
    assert decode(1000, 150, temperature)[0] == [], "nor when it has waited long enough, but little is left"
    assert decode(1000, 600, temperature)[0] != []


def test_it_waits_until_it_has_missed_as_much_as_reading_costs():
    first = [decode(prompt, 600)[0][0] for prompt in (50, 200, 400, 800)]
    assert first[0] == 0, "a glance costs nothing to speak of"
    assert first[1] > 5
    assert first[1] * 1.5 < first[2] < first[3] / 1.5, "in step with the price"


def test_it_is_never_much_slower_than_plain_and_gains_on_long_answers():
    price = 1000 * 0.025
    for tokens in (60, 120, 240, 480, 960):
        _, seconds, plain = decode(1000, tokens)
        assert seconds < plain + price + 2
    assert seconds < 0.9 * plain


def test_reading_is_not_taken_for_the_price_of_a_round():
    state = {"read": 0}
    profile = profile_of(PASSES, {"toy": STEP})
    now = [0.0]
    made = AdaptiveBudget([Arm("toy", 4, unread=lambda row: 70 - state["read"])], profile, clock=lambda: now[0])
    row = Sequence(1, [0] * 71, 71, SamplingParams(), seed=1)
    for _ in range(40):
        (length,) = made.budget([row])
        reading = 100.0 if length and not state["read"] else 0.0
        state["read"] = 70 if length else state["read"]
        now[0] += profile.target(1, 1 + length) + STEP * length + reading
        made.record([row], *outcome([length], [length]))
    assert state["read"]
    assert made._clocks.scales() == pytest.approx([1.0], abs=0.01)


@pytest.mark.parametrize(
    ("seconds", "prompt", "tokens", "waits"),
    [
        (0.02, 200, 48, False),  # 4 plain rounds; 48 tokens may save more
        (0.02, 200, 10, True),  # 10 cannot
        (0.02, 600, 1000, False),
        (0.02, 1000, 1000, True),  # 20, and nobody knows whether the answer will be long
        (0.2, 60, 48, False),  # a glance
        (0.2, 100, None, True),
    ],
)
def test_a_prompt_is_read_as_it_comes_where_that_costs_little(seconds, prompt, tokens, waits):
    profile = profile_of(PASSES, {"toy": STEP})
    profile.reading["toy"] = seconds
    told = []
    made = AdaptiveBudget([Arm("toy", 4, wait=told.append)], profile)
    row = Sequence(1, [0] * prompt, prompt, SamplingParams(max_tokens=tokens))
    assert told[0](row) is waits
    assert made.always(4).waits(0, row) is False, "what always drafts reads in any case"
    decoder = ToyDecoder(lambda prefix: torch.arange(7.0), vocab=7)
    drafter = DraftModel(decoder, vocab=7, max_rows=1)
    drafter.wait(told[0])
    drafter.observe([row], [row.tokens[:-1]], [{}])
    assert drafter.unread(row) == (prompt - 1 if waits else 0)


def test_a_draft_model_reads_a_prompt_as_it_comes_unless_it_is_to_wait():
    decoder = ToyDecoder(lambda prefix: torch.arange(7.0), vocab=7)
    drafter = DraftModel(decoder, vocab=7, max_rows=3)
    drafter.wait(lambda row: row.prompt_len > 512)
    rows = [Sequence(k, [k] * size, size, SamplingParams()) for k, size in enumerate((100, 2000))]
    drafter.observe(rows, [row.tokens[:-1] for row in rows], [{}, {}])
    assert [drafter.unread(row) for row in rows] == [0, 1999]
    assert decoder.fed == 99
    drafter.propose(rows, [0, 2], RequestRngs(rows))
    assert [drafter.unread(row) for row in rows] == [0, 0]
    drafter.wait(None)
    alone = Sequence(9, [3] * 2000, 2000, SamplingParams())
    drafter.observe([alone], [alone.tokens[:-1]], [{}])
    assert drafter.unread(alone) == 0
