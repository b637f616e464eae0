"""What every drafter owes the engine, whatever it does: one class, run over each of them."""

import random
import warnings

import pytest
import torch

from slipstream.drafters.draft_model import DraftModel, DraftModelOptions
from slipstream.drafters.lookup import Lookup, LookupOptions
from slipstream.drafters.none import NoDraft
from slipstream.sampling import RequestRngs
from slipstream.testing.toy_decoder import ToyDecoder, hashed_logits
from slipstream.types import Draw, SamplingParams, Sequence

VOCAB = 11
EOS = 10


def draft_model(width=VOCAB, **options):
    decoder = ToyDecoder(hashed_logits(width), vocab=width)
    return DraftModel(decoder, vocab=VOCAB, max_rows=8, options=DraftModelOptions(**options))


DRAFTERS = {
    "none": NoDraft,
    "lookup": lambda: Lookup(vocab=VOCAB),
    "lookup 1-3": lambda: Lookup(LookupOptions(min_ngram=1, max_ngram=3), vocab=VOCAB),
    "draft_model": draft_model,
    "draft_model min_prob": lambda: draft_model(min_prob=0.3),
    "draft_model wider": lambda: draft_model(16),
    "draft_model narrower": lambda: draft_model(7),
}
KEEPS = {"lookup", "lookup 1-3", "draft_model"}


def row_of(row_id, *, temperature=0.0, length=None):
    rng = random.Random(row_id)
    tokens = [rng.randrange(4) for _ in range(length or rng.randint(1, 40))]
    return Sequence(row_id, tokens, len(tokens), SamplingParams(temperature=temperature), seed=row_id, eos_ids=(EOS,))


def warm(row_id):
    return row_of(row_id, temperature=(0.0, 1.0)[row_id % 2])


class Talk:
    """Plays the engine for one drafter: prompts arrive in pieces, rounds end at a random accept length."""

    def __init__(self, drafter):
        self.drafter = drafter

    def join(self, row):
        rest, rng = row.tokens[:-1], random.Random(row.id)
        while rest:
            size = rng.randint(1, 7)
            self.drafter.observe([row], [rest[:size]], [{}])
            rest = rest[size:]

    def propose(self, rows, budget):
        return self.drafter.propose(rows, budget, RequestRngs(rows))

    def round(self, rows, budget):
        """Propose, accept a random part, add a token of the target's; what happens to a row depends on itself alone."""
        draft = self.propose(rows, budget)
        cached = []
        for b, row in enumerate(rows):
            rng = random.Random(row.id * 1000 + row.rounds)
            accepted = rng.randint(0, int(draft.length[b]) - 1)
            cached.append([row.tokens[-1], *draft.tokens[b, 1 : 1 + accepted].tolist()])
            row.tokens += [*cached[-1][1:], rng.randrange(VOCAB)]
            row.rounds += 1
        self.drafter.observe(rows, cached, [{}] * len(rows))
        return draft


def guesses(draft, b):
    return draft.tokens[b, : int(draft.length[b])].tolist()


def check(draft, rows, budget):
    rows_, nodes = draft.tokens.shape
    assert rows_ == len(rows)
    assert draft.parents.shape == draft.draw.shape == (rows_, nodes)
    for field in (draft.tokens, draft.parents, draft.length, draft.draw):
        assert field.dtype == torch.int64
    assert draft.tokens[:, 0].tolist() == [row.tokens[-1] for row in rows], "the root is the last committed token"
    assert draft.parents.tolist() == [list(range(-1, nodes - 1))] * rows_, "a chain"
    assert int(draft.tokens.min()) >= 0
    assert int(draft.tokens.max()) < VOCAB
    assert all(1 <= n <= 1 + max(0, m) for n, m in zip(draft.length.tolist(), budget, strict=True))
    assert nodes == int(draft.length.max()), "no padding that no row needs"
    assert (draft.draw[:, 0] == Draw.FIXED).all()
    assert all((draft.draw[b, n:] == Draw.FIXED).all() for b, n in enumerate(draft.length)), "padding is not drawn"
    for b, row in enumerate(rows):
        marks = draft.draw[b, 1 : draft.length[b]]
        kinds = set(marks.tolist())
        assert len(kinds) <= 1
        if row.params.greedy:
            assert kinds <= {Draw.FIXED}
        if kinds == {Draw.SAMPLED}:
            check_law(draft, b)


def check_law(draft, b):
    assert draft.q is not None
    assert draft.q.shape == (*draft.tokens.shape, VOCAB)
    for node in range(1, int(draft.length[b])):
        law = draft.q[b, node - 1]
        assert torch.isfinite(law).all()
        assert float(law.min()) >= 0
        assert float(law.sum()) == pytest.approx(1, abs=1e-5)
        assert float(law[draft.tokens[b, node]]) > 0, "a drawn token has a chance of being drawn"


@pytest.mark.parametrize("name", DRAFTERS)
class TestContract:
    def test_drafts_are_well_formed_over_many_rounds_with_ragged_budgets(self, name):
        talk, rng, rows = Talk(DRAFTERS[name]()), random.Random(0), [warm(i) for i in range(4)]
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
        talk, rows = Talk(DRAFTERS[name]()), [warm(i) for i in range(3)]
        draft = talk.propose(rows, [0, 0, 0])
        check(draft, rows, [0, 0, 0])
        assert draft.q is None

    def test_rows_are_drafted_alike_alone_and_together_as_others_come_and_go(self, name):
        alone = {}
        for i in range(5):
            talk, row = Talk(DRAFTERS[name]()), warm(i)
            talk.join(row)
            alone[i] = [guesses(talk.round([row], [1 + i % 4]), 0) for _ in range(12)]
        talk, rows, heard = Talk(DRAFTERS[name]()), [warm(i) for i in range(5)], {i: [] for i in range(5)}
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
                    talk.drafter.forget(row)
        assert heard == alone

    def test_proposing_changes_nothing_that_a_second_call_would_see(self, name):
        talk, rows = Talk(DRAFTERS[name]()), [warm(i) for i in range(4)]
        for row in rows:
            talk.join(row)
        for _ in range(6):
            first, again = talk.propose(rows, [3, 0, 5, 2]), talk.propose(rows, [3, 0, 5, 2])
            assert torch.equal(first.tokens, again.tokens)
            assert torch.equal(first.length, again.length)
            talk.round(rows, [3, 0, 5, 2])

    def test_a_forgotten_row_leaves_nothing_and_may_come_back(self, name):
        drafter = DRAFTERS[name]()
        talk = Talk(drafter)
        for row_id in range(20):  # more than the drafter has places
            row = warm(row_id % 3)
            talk.join(row)
            first = guesses(talk.round([row], [4]), 0)
            fresh, other = Talk(DRAFTERS[name]()), warm(row_id % 3)
            fresh.join(other)
            assert first == guesses(fresh.round([other], [4]), 0)
            drafter.forget(row)
        drafter.forget(row)
        assert state_size(drafter) == 0

    def test_a_restored_row_needs_no_history(self, name):
        drafter, row = DRAFTERS[name](), warm(2)
        joined = Talk(DRAFTERS[name]())
        joined.join(row)
        restored, known = Talk(drafter).propose([row], [5]), joined.propose([row], [5])
        assert torch.equal(restored.tokens, known.tokens)

    def test_nothing_warns(self, name):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            talk, row = Talk(DRAFTERS[name]()), warm(1)
            talk.join(row)
            talk.round([row], [3])


@pytest.mark.parametrize("name", sorted(KEEPS))
def test_the_check_for_freed_state_can_fail(name):
    talk, row = Talk(DRAFTERS[name]()), warm(1)
    talk.join(row)
    talk.round([row], [3])
    assert state_size(talk.drafter) > 0


@pytest.mark.parametrize("name", sorted(set(DRAFTERS) - {"none"}))
def test_something_is_drafted_at_all(name):
    talk, rows = Talk(DRAFTERS[name]()), [warm(i) for i in range(4)]
    drafted = sum(int((talk.round(rows, [4] * 4).length - 1).sum()) for _ in range(10))
    assert drafted > 0


def state_size(drafter):
    """Rows a drafter keeps something for, wherever it keeps it."""
    if isinstance(drafter, Lookup):
        return len(drafter._indexes)
    if isinstance(drafter, DraftModel):
        return len(drafter._cache._held) + len(drafter._cache.decoder.slots)
    return len(vars(drafter)) - 1
