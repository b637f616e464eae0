"""DSpark owes the engine what every drafter does; its corrections, its cuts and what it collects are here too."""

import dataclasses
import math
import random
import warnings
from typing import ClassVar

import pytest
import torch
from drafter_contract import VOCAB, Contract, Talk, check, guesses, row_of, warm

import draft_zoo
from slipstream.drafters.calibration import Calibration, Outcome
from slipstream.drafters.dspark import DSpark, DSparkOptions
from slipstream.nets.draft_config import Block, Markov, Vocab
from slipstream.nets.dspark import DSparkNet
from slipstream.types import RequestError, SamplingParams, Sequence

MASK = VOCAB
CHEAP, STEEP = (lambda n: 1.0), (lambda n: float(n**3))


def dspark(kind="vanilla", *, confidence="markov", options=None, max_rows=8, seconds=None, target="", **changes):
    changes = {"vocab": VOCAB, "block": Block(5, MASK, True, (False, False))} | changes
    markov = Markov(kind, 0 if kind == "none" else 6, confidence)
    found = draft_zoo.tiny("dspark", scale=0.6, markov=markov, **changes)
    net = DSparkNet(found.config, found.tensors, draft_zoo.tables(VOCAB), max_rows=max_rows, max_len=200, max_nodes=8)
    return DSpark(net, vocab=VOCAB, max_rows=max_rows, options=options, seconds=seconds, target=target)


def endless(row_id, *, length=None, **params):
    """A row that no token ends."""
    return dataclasses.replace(row_of(row_id, length=length), params=SamplingParams(ignore_eos=True, **params))


def joined(drafter, rows):
    talk = Talk(drafter)
    for row in rows:
        talk.join(row)
    return talk


class TestContract(Contract):
    DRAFTERS: ClassVar = {
        "dspark": dspark,
        "dspark gated": lambda: dspark("gated"),
        "dspark rnn": lambda: dspark("rnn"),
        "dspark, no heads": lambda: dspark("none", confidence="none"),
        "dspark, threshold": lambda: dspark(options=DSparkOptions(threshold=0.1)),
        "dspark, own places": lambda: dspark("rnn", block=Block(5, MASK, False, (True, False))),
        "dspark, reduced": lambda: dspark("gated", vocab=Vocab(VOCAB, 5, own_head=True)),
    }

    def state_size(self, drafter):
        layers = drafter.net.layers
        return len(drafter.context.places) + sum(layers.length(slot) > 0 for slot in range(8))

    def test_a_restored_row_needs_no_history(self, name):
        """Nobody has the features of what was never heard: such a row drafts nothing."""
        talk, row, others = Talk(self.DRAFTERS[name]()), warm(2), [warm(i) for i in range(3, 9)]
        for other in others:
            talk.join(other)
        draft = talk.propose([row, *others], [5] * 7)
        assert draft.length[0] == 1
        assert draft.length[1:].max() > 1


def test_scheduled_drafts_are_well_formed_over_many_rounds():
    options = DSparkOptions(schedule="hardware", temperatures=(1.5, 1.0))
    drafter = dspark("gated", options=options, seconds=lambda n: 1 + 0.1 * n)
    rng, rows = random.Random(0), [warm(i) for i in range(4)]
    talk, lengths = joined(drafter, rows), set()
    for _ in range(25):
        budget = [rng.randint(0, 6) for _ in rows]
        roots = [Sequence(r.id, list(r.tokens), r.prompt_len, r.params) for r in rows]
        draft = talk.round(rows, budget)
        check(draft, roots, budget)
        lengths |= set(draft.length.tolist())
    assert len(lengths) > 2


@pytest.mark.parametrize("anchor", [True, False])
@pytest.mark.parametrize("kind", ["vanilla", "gated", "rnn"])
def test_each_slot_is_corrected_by_the_target_s_id_of_the_token_before(kind, anchor):
    """The greedy chain of a reduced vocabulary, walked by hand: a drafter's own id would index another row of w1."""
    block, vocab = Block(5, MASK, anchor, (False, False)), Vocab(VOCAB, 5, own_head=True)
    drafter, rows = dspark(kind, vocab=vocab, block=block), [endless(i) for i in range(3)]
    talk, net, moved = joined(drafter, rows), drafter.net, 0
    for b, row in enumerate(rows):
        place = drafter.context.places[row.id].slot
        states = net.block(torch.tensor(row.tokens[-1:]), [place])
        wanted, state = [row.tokens[-1]], None
        if not anchor:  # its slot drafts nothing, but the rnn runs through it
            state = net.correct(states[:, 0], net.logits(states[:, 0]), torch.tensor(wanted)).state
        for k in range(net.first, 5):
            base = net.logits(states[:, k])
            found = net.correct(states[:, k], base, torch.tensor(wanted[-1:]), state)
            state = found.state
            moved += int(base.argmax()) != int(found.logits.argmax())
            wanted.append(int(net.vocab_map[found.logits.argmax()]))
        assert guesses(talk.propose(rows, [9] * 3), b) == wanted
    assert moved, "the correction changes some guess"


def test_a_threshold_ends_a_draft_before_the_first_doubtful_token():
    plain, rows = dspark(), [endless(i, temperature=1.0) for i in range(6)]
    plain.collect = []
    talk = joined(plain, rows)
    whole = talk.propose(rows, [5] * 6)
    said = [[1 / (1 + math.exp(-x)) for x in plain._submitted[row.id]] for row in rows]
    cut = joined(dspark(options=DSparkOptions(threshold=0.5)), rows).propose(rows, [5] * 6)
    wanted = [next((k for k, c in enumerate(line) if c < 0.5), 5) for line in said]
    assert (cut.length - 1).tolist() == wanted
    assert len(set(wanted)) > 1
    for b, n in enumerate(wanted):
        assert guesses(cut, b) == guesses(whole, b)[: n + 1], "what is kept is what would have been drafted"


class TestSchedule:
    def test_cost_decides(self):
        rows = [endless(i, temperature=1.0) for i in range(4)]
        options = DSparkOptions(schedule="hardware")
        lengths = {}
        for name, seconds in (("cheap", CHEAP), ("middling", lambda n: 4.0 + n), ("steep", STEEP), ("none", None)):
            talk = joined(dspark(options=options, seconds=seconds), rows)
            lengths[name] = (talk.propose(rows, [5] * 4).length - 1).tolist()
        assert lengths["steep"] == [0] * 4
        assert lengths["cheap"] == lengths["none"] == [5] * 4, "free tokens are all worth it; no table, no schedule"
        assert 0 < sum(lengths["middling"]) < 20

    def test_rows_that_draft_nothing_count_as_read(self):
        asked = []
        drafter = dspark(options=DSparkOptions(schedule="hardware"), seconds=lambda n: asked.append(n) or 1.0)
        rows = [endless(i) for i in range(4)]
        talk = joined(drafter, rows[:2])  # the other two were never heard
        talk.propose(rows, [1, 0, 5, 5])
        assert asked == [4, 5]

    def test_off_ignores_the_table(self):
        rows = [endless(0)]
        off = dspark(options=DSparkOptions(schedule="off"), seconds=STEEP)
        assert joined(off, rows).propose(rows, [5]).length.tolist() == [6]

    def test_auto_cuts_greedy_rows_and_leaves_sampled_ones_to_their_seed(self):
        rows = [endless(0), endless(1, temperature=1.0), endless(2)]
        drafter = dspark(seconds=STEEP)
        assert drafter.options.schedule == "auto"
        assert joined(drafter, rows).propose(rows, [5] * 3).length.tolist() == [1, 6, 1]

    def test_temperatures_change_what_pays(self):
        rows = [endless(i, temperature=1.0) for i in range(4)]
        found = []
        for heat in (0.05, 50.0):
            options = DSparkOptions(threshold=0.45, temperatures=(heat,) * 5)
            found.append(joined(dspark(options=options), rows).propose(rows, [5] * 4).length.tolist())
        assert found[1] == [6] * 4, "at a high temperature every confidence is near one half"
        assert found[0] != found[1]


class TestCollecting:
    def test_outcomes_are_what_was_said_and_what_stood(self):
        drafter, rows = dspark(), [endless(i, temperature=1.0) for i in range(3)]
        drafter.collect = []
        talk = joined(drafter, rows)
        for _ in range(8):
            before, draft = len(drafter.collect), talk.propose(rows, [3, 5, 0])
            said = [drafter._submitted[row.id] for row in rows]
            lengths = [len(row.tokens) for row in rows]
            talk.round(rows, [3, 5, 0])
            stood = [len(row.tokens) - n - 1 for row, n in zip(rows, lengths, strict=True)]
            assert [len(s) for s in said] == (draft.length - 1).tolist() == [3, 5, 0]
            assert drafter.collect[before:] == [Outcome(said[b], stood[b]) for b in (0, 1)]
        assert {o.accepted for o in drafter.collect} > {0, 1, 2}

    def test_a_row_that_ended_says_nothing(self):
        drafter, rows = dspark(), [endless(i) for i in range(2)]
        drafter.collect = []
        talk = joined(drafter, rows)
        talk.propose(rows, [3, 3])
        rows[0].finish_reason = "length"
        talk.round(rows, [3, 3])
        assert len(drafter.collect) == 1

    def test_only_what_was_submitted_counts(self):
        options = DSparkOptions(schedule="hardware")
        drafter, rows = (
            dspark(options=options, seconds=lambda n: 4.0 + n),
            [endless(i, temperature=1.0) for i in (0, 1)],
        )
        drafter.collect = []
        talk = joined(drafter, rows)
        draft = talk.propose(rows, [5, 5])
        assert 0 < int(draft.length.sum()) < 12
        assert [len(drafter._submitted[row.id]) for row in rows] == (draft.length - 1).tolist()

    def test_nothing_is_kept_when_nobody_collects(self):
        drafter, rows = dspark(), [endless(0)]
        talk = joined(drafter, rows)
        talk.round(rows, [3])
        assert not drafter._submitted
        drafter.collect = []
        talk.propose(rows, [3])
        talk.forget(rows[0])
        assert not drafter._submitted


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_features_that_are_not_finite_end_the_drafts_of_their_row_alone(value):
    drafter = dspark("gated", options=DSparkOptions(schedule="hardware"), seconds=CHEAP)
    rows = [endless(i, length=9) for i in range(3)]
    talk = joined(drafter, [rows[0], rows[2]])
    bad = {tap: torch.full((8, 16), value, dtype=torch.float64) for tap in drafter.needs.taps}
    drafter.observe([rows[1]], [rows[1].tokens[:-1]], [bad])
    with pytest.warns(RuntimeWarning, match="dspark drafter's logits are not finite"):
        draft = talk.propose(rows, [4, 4, 4])
    assert draft.length.tolist() == [5, 1, 5]
    assert drafter.dropped == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        talk.propose(rows, [4, 4, 4])


def test_logits_made_in_parts_are_the_same(monkeypatch):
    rows = [endless(i, temperature=1.0) for i in range(3)]
    whole = joined(dspark("rnn"), rows).propose(rows, [5, 2, 4])
    monkeypatch.setattr("slipstream.drafters.net_drafters._MOST_LOGITS", 2 * VOCAB * 3)
    parts = joined(dspark("rnn"), rows).propose(rows, [5, 2, 4])
    assert torch.equal(whole.tokens, parts.tokens)
    assert torch.allclose(whole.q, parts.q, atol=1e-12)


class TestOptions:
    @pytest.mark.parametrize(
        ("options", "says"),
        [
            ({"schedule": "on"}, "schedule='on'"),
            ({"threshold": 1.0}, "threshold=1.0"),
            ({"threshold": -0.1}, "threshold=-0.1"),
            ({"temperatures": (1.0, 0.0)}, "temperature 0.0"),
        ],
    )
    def test_wrong_ones_are_named(self, options, says):
        with pytest.raises(RequestError, match=says):
            DSparkOptions(**options)

    @pytest.mark.parametrize("options", [{"schedule": "hardware"}, {"threshold": 0.5}])
    def test_a_drafter_without_confidence_cannot_be_cut(self, options):
        with pytest.raises(RequestError, match="no confidence head"):
            dspark(confidence="none", options=DSparkOptions(**options))

    def test_temperatures_of_a_file_and_of_another_drafter(self, tmp_path):
        path, own = tmp_path / "c.json", dspark().net.fingerprint
        Calibration((2.0, 1.5), 20, (900, 800), own, "toy").save(path)
        options = DSparkOptions(temperatures=path)
        assert dspark(options=options, target="toy").temperatures == (2.0, 1.5)
        assert dspark(options=DSparkOptions(temperatures=str(path))).temperatures == (2.0, 1.5)
        with pytest.raises(RequestError, match="fitted to drafter"):
            dspark("gated", options=options)
        with pytest.raises(RequestError, match="fitted to target 'toy'"):
            dspark(options=options, target="another")
