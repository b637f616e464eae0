"""What every drafter owes the engine, whatever it does: subclass `Contract`, name the drafters, and each is run.

A drafter that reads the target hears taps which are a pure function of the prefix, as a real target's are.
"""

import random
import warnings
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch

from feature_target import felt
from slipstream.sampling import RequestRngs
from slipstream.types import Draw, SamplingParams, Sequence

VOCAB = 11
EOS = 10


def row_of(row_id, *, temperature=0.0, length=None):
    rng = random.Random(row_id)
    tokens = [rng.randrange(4) for _ in range(length or rng.randint(1, 40))]
    return Sequence(row_id, tokens, len(tokens), SamplingParams(temperature=temperature), seed=row_id, eos_ids=(EOS,))


def warm(row_id):
    return row_of(row_id, temperature=(0.0, 1.0)[row_id % 2])


class Talk:
    """Plays the engine for one drafter: prompts arrive in pieces, rounds end at a random accept length."""

    def __init__(self, drafter, width=16):
        self.drafter, self.width = drafter, width
        self.heard = {}

    def join(self, row):
        rest, rng = row.tokens[:-1], random.Random(row.id)
        while rest:
            size = rng.randint(1, 7)
            self.observe([row], [rest[:size]])
            rest = rest[size:]

    def observe(self, rows, tokens):
        """Tell the drafter what is in the cache now, with what the target felt there."""
        taps = []
        for row, new in zip(rows, tokens, strict=True):
            at = self.heard.get(row.id, 0)
            self.heard[row.id] = at + len(new)
            places = range(at, at + len(new))
            felts = {k: [felt(row.tokens[: t + 1], k, self.width) for t in places] for k in self.drafter.needs.taps}
            taps.append({k: torch.stack(x) for k, x in felts.items()})
        self.drafter.observe(rows, tokens, taps)

    def forget(self, row):
        self.heard.pop(row.id, None)
        self.drafter.forget(row)

    def propose(self, rows, budget):
        return self.drafter.propose(rows, budget, RequestRngs(rows))

    def round(self, rows, budget):
        """Propose, accept a random part, add a token of the target's; what happens to a row depends on itself alone."""
        draft = self.propose(rows, budget)
        cached = []
        for b, row in enumerate(rows):
            rng = random.Random(row.id * 1000 + row.rounds)
            cached.append([row.tokens[-1], *draft.tokens[b, walk(draft, b, rng)].tolist()])
            row.tokens += [*cached[-1][1:], rng.randrange(VOCAB)]
            row.rounds += 1
        self.observe(rows, cached)
        return draft


def walk(draft, b, rng):
    """Follow a random path of random length down row b's draft."""
    path, node = [], 0
    for _ in range(rng.randint(0, int(draft.length[b]) - 1)):
        below = [i for i in range(1, int(draft.length[b])) if int(draft.parents[b, i]) == node]
        if below:
            node = rng.choice(below)
            path.append(node)
    return path


def guesses(draft, b):
    return draft.tokens[b, : int(draft.length[b])].tolist()


def check(draft, rows, budget):
    rows_, nodes = draft.tokens.shape
    assert rows_ == len(rows)
    assert draft.parents.shape == draft.draw.shape == (rows_, nodes)
    for field in (draft.tokens, draft.parents, draft.length, draft.draw):
        assert field.dtype == torch.int64
    assert draft.tokens[:, 0].tolist() == [row.tokens[-1] for row in rows], "the root is the last committed token"
    if draft.chain:
        assert draft.parents.tolist() == [list(range(-1, nodes - 1))] * rows_, "a chain"
    assert (draft.parents[:, 0] == -1).all()
    assert all(0 <= p < i for line in draft.parents.tolist() for i, p in enumerate(line[1:], start=1)), "parents first"
    assert int(draft.tokens.min()) >= 0
    assert int(draft.tokens.max()) < VOCAB
    assert all(1 <= n <= 1 + max(0, m) for n, m in zip(draft.length.tolist(), budget, strict=True))
    assert nodes == int(draft.length.max()), "no padding that no row needs"
    assert (draft.draw[:, 0] == Draw.FIXED).all()
    assert all((draft.draw[b, n:] == Draw.FIXED).all() for b, n in enumerate(draft.length)), "padding is not drawn"
    for b, row in enumerate(rows):
        kinds = set(draft.draw[b, 1 : draft.length[b]].tolist())
        assert len(kinds) <= 1 or not draft.chain
        if row.params.greedy:
            assert kinds <= {Draw.FIXED}
        check_law(draft, b)


def check_law(draft, b):
    drawn = [i for i in range(1, int(draft.length[b])) if draft.draw[b, i] != Draw.FIXED]
    if drawn:
        assert draft.q is not None
        assert draft.q.shape == (*draft.tokens.shape, VOCAB)
    for node in drawn:
        law = draft.q[b, draft.parents[b, node]]
        assert torch.isfinite(law).all()
        assert float(law.min()) >= 0
        assert float(law.sum()) == pytest.approx(1, abs=1e-5)
        assert float(law[draft.tokens[b, node]]) > 0, "a drawn token has a chance of being drawn"


class Contract:
    """The tests. `DRAFTERS` names functions that make one; `state_size` counts the rows it keeps something for."""

    DRAFTERS: ClassVar[dict[str, Callable[[], Any]]] = {}

    def pytest_generate_tests(self, metafunc):
        metafunc.parametrize("name", list(self.DRAFTERS))

    def state_size(self, drafter):
        raise NotImplementedError

    def test_drafts_are_well_formed_over_many_rounds_with_ragged_budgets(self, name):
        talk, rng, rows = Talk(self.DRAFTERS[name]()), random.Random(0), [warm(i) for i in range(4)]
        for row in rows:
            talk.join(row)
        for _ in range(25):
            budget = [rng.randint(0, 6) for _ in rows]
            before = [len(row.tokens) for row in rows]
            roots = [Sequence(r.id, list(r.tokens), r.prompt_len, r.params) for r in rows]
            draft = talk.round(rows, budget)
            check(draft, roots, budget)
            assert all(len(row.tokens) > n for row, n in zip(rows, before, strict=True))

    def test_no_budget_means_the_root_alone(self, name):
        talk, rows = Talk(self.DRAFTERS[name]()), [warm(i) for i in range(3)]
        draft = talk.propose(rows, [0, 0, 0])
        check(draft, rows, [0, 0, 0])
        assert draft.q is None

    def test_rows_are_drafted_alike_alone_and_together_as_others_come_and_go(self, name):
        alone = {}
        for i in range(5):
            talk, row = Talk(self.DRAFTERS[name]()), warm(i)
            talk.join(row)
            alone[i] = [guesses(talk.round([row], [1 + i % 4]), 0) for _ in range(12)]
        talk, rows, heard = Talk(self.DRAFTERS[name]()), [warm(i) for i in range(5)], {i: [] for i in range(5)}
        for at in range(12 + 4):
            running = [row for row in rows if row.id <= at < row.id + 12]
            for row in running:
                if at == row.id:
                    talk.join(row)
            running = running[at % len(running) :] + running[: at % len(running)]
            draft = talk.round(running, [1 + row.id % 4 for row in running])
            for b, row in enumerate(running):
                heard[row.id].append(guesses(draft, b))
            for row in running:
                if at == row.id + 11:
                    talk.forget(row)
        assert heard == alone

    def test_proposing_changes_nothing_that_a_second_call_would_see(self, name):
        talk, rows = Talk(self.DRAFTERS[name]()), [warm(i) for i in range(4)]
        for row in rows:
            talk.join(row)
        for _ in range(6):
            first, again = talk.propose(rows, [3, 0, 5, 2]), talk.propose(rows, [3, 0, 5, 2])
            assert torch.equal(first.tokens, again.tokens)
            assert torch.equal(first.length, again.length)
            talk.round(rows, [3, 0, 5, 2])

    def test_a_forgotten_row_leaves_nothing_and_may_come_back(self, name):
        drafter = self.DRAFTERS[name]()
        talk = Talk(drafter)
        for row_id in range(20):  # more than the drafter has places
            row = warm(row_id % 3)
            talk.join(row)
            first = guesses(talk.round([row], [4]), 0)
            fresh, other = Talk(self.DRAFTERS[name]()), warm(row_id % 3)
            fresh.join(other)
            assert first == guesses(fresh.round([other], [4]), 0)
            talk.forget(row)
        talk.forget(row)
        assert self.state_size(drafter) == 0

    def test_a_restored_row_needs_no_history(self, name):
        drafter, row = self.DRAFTERS[name](), warm(2)
        joined = Talk(self.DRAFTERS[name]())
        joined.join(row)
        restored, known = Talk(drafter).propose([row], [5]), joined.propose([row], [5])
        assert torch.equal(restored.tokens, known.tokens)

    def test_nothing_warns(self, name):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            talk, row = Talk(self.DRAFTERS[name]()), warm(1)
            talk.join(row)
            talk.round([row], [3])

    def test_something_is_drafted_at_all(self, name):
        talk, rows = Talk(self.DRAFTERS[name]()), [warm(i) for i in range(4)]
        for row in rows:
            talk.join(row)
        drafted = sum(int((talk.round(rows, [4] * 4).length - 1).sum()) for _ in range(10))
        assert drafted > 0 or name == "none"

    def test_the_check_for_freed_state_can_fail(self, name):
        talk, row = Talk(self.DRAFTERS[name]()), warm(1)
        talk.join(row)
        talk.round([row], [3])
        assert (self.state_size(talk.drafter) > 0) == self.keeps(name)

    def keeps(self, name):
        """Whether the drafter keeps anything between rounds."""
        return True
