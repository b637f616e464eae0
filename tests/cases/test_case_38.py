"""Case 38: how much is drafted in one call leaves no trace for the next, nor for a neighbour."""

import copy

import pytest
import torch

from control_kit import profile_of
from slipstream.control.adaptive import AdaptiveBudget
from slipstream.control.arms import Arm
from slipstream.drafters.draft_model import DraftModel, DraftModelOptions
from slipstream.drafters.lookup import Lookup, LookupOptions
from slipstream.sampling import RequestRngs
from slipstream.testing.toy_decoder import ToyDecoder, hashed_logits
from slipstream.types import Laws, SamplingParams, Sequence, Verdict

VOCAB = 12
LOGITS = hashed_logits(VOCAB)


def make(kind):
    if kind == "lookup":
        return Lookup(LookupOptions(min_ngram=1, max_ngram=5), vocab=VOCAB)
    decoder = ToyDecoder(LOGITS, vocab=VOCAB)
    return DraftModel(decoder, vocab=VOCAB, max_rows=4, options=DraftModelOptions(min_prob=0.4))


def request(row_id, temperature, *, easy):
    tokens = [1, 2, 3, 4] * 4 if easy else [5, 1, 9, 2, 6, 1, 3, 5]
    params = SamplingParams(temperature=temperature)
    return Sequence(row_id, tokens, len(tokens), params, seed=5)


def advance(row, *, easy):
    """The text goes on as the drafter expects, or never does."""
    row.tokens.append(row.tokens[-4] if easy else int(LOGITS(row.tokens).argmin()))
    row.rounds += 1


def schedule(drafter, row, *, easy, other=None, rounds=25):
    """Nodes drafted per round; `other` is an easy neighbour in the same batch."""
    lengths = []
    for _ in range(rounds):
        rows = [row] if other is None else [other, row]
        draft = drafter.propose(rows, [6] * len(rows), RequestRngs(rows))
        lengths.append(int(draft.length[-1]) - 1)
        drafter.observe(rows, [r.tokens[-1:] for r in rows], [{} for _ in rows])
        advance(row, easy=easy)
        if other is not None:
            advance(other, easy=True)
    return lengths


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("kind", ["lookup", "draft_model"])
class TestCase38:
    def test_case_38_two_equal_calls_draft_alike(self, kind, temperature):
        drafter = make(kind)
        first = request(0, temperature, easy=False)
        lengths = schedule(drafter, first, easy=False)
        assert len(set(lengths)) > 1, "the schedule adapts"
        drafter.forget(first)
        assert schedule(drafter, request(1, temperature, easy=False), easy=False) == lengths

    def test_case_38_a_neighbour_of_another_difficulty_changes_nothing(self, kind, temperature):
        alone = schedule(make(kind), request(0, temperature, easy=False), easy=False)
        easy, hard = request(1, temperature, easy=True), request(0, temperature, easy=False)
        assert schedule(make(kind), hard, easy=False, other=easy) == alone

    def test_case_38_options_and_parameters_are_never_written(self, kind, temperature):
        drafter, row = make(kind), request(0, temperature, easy=False)
        before = copy.deepcopy((drafter.options, row.params))
        schedule(drafter, row, easy=False)
        assert (drafter.options, row.params) == before


def adapted(controller, drafter, row, *, easy, rounds=40):
    """Budgets that the adaptive controller gives a request, round by round."""
    budgets = []
    for r in range(rounds):
        (budget,) = controller.budget([row])
        budgets.append(budget)
        draft = drafter.propose([row], [budget], RequestRngs([row]))
        drafted = int(draft.length[0]) - 1
        kept = drafted if easy else min(drafted, r % 2)
        path = torch.arange(1, max(2, kept + 1))[None]
        verdict = Verdict(path, torch.tensor([kept]), torch.tensor([row.tokens[-4] if easy else 0]))
        controller.record([row], draft, verdict, laws_of(row, draft))
        drafter.observe([row], [row.tokens[-1:]], [{}])
        advance(row, easy=easy)
    return budgets


def laws_of(row, draft):
    if row.params.greedy:
        return Laws(points=torch.zeros_like(draft.tokens))
    return Laws(probs=torch.full((1, draft.nodes, VOCAB), 1 / VOCAB))


@pytest.mark.parametrize("kind", ["lookup", "draft_model"])
class TestCase38Adaptive:
    def build(self, drafter):
        arm = Arm(drafter.name, 6, look=getattr(drafter, "look", None))
        return AdaptiveBudget([arm], profile_of({1: 1.0, 16: 2.0}, {drafter.name: 0.1}), clock=lambda: 0.0)

    def test_case_38_the_controller_gives_two_equal_sampled_requests_the_same(self, kind):
        drafter = make(kind)
        controller = self.build(drafter)
        first = request(0, 1.0, easy=False)
        budgets = adapted(controller, drafter, first, easy=False)
        drafter.forget(first)
        other = request(1, 0.0, easy=True)
        adapted(controller, drafter, other, easy=True)
        drafter.forget(other)
        assert adapted(controller, drafter, request(0, 1.0, easy=False), easy=False) == budgets
        assert len(set(budgets)) > 1, "the budget adapts"
