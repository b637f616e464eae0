"""Drafters by turns: who drafts for whom, who hears, and that a free drafter is judged without being used."""

import pytest
import torch

from control_kit import outcome, profile_of
from slipstream.control.adaptive import AdaptiveBudget
from slipstream.control.arms import Arm
from slipstream.control.shadows import Shadows
from slipstream.drafters.lookup import Lookup, LookupOptions
from slipstream.drafters.mixed import Mixed
from slipstream.sampling import RequestRngs
from slipstream.testing import RandomLaw, SampledToy, ToyTarget, TreeToy, greedy_toy
from slipstream.types import Draft, Draw, Laws, SamplingParams, Sequence, Verdict

V = 5
P, Q = RandomLaw(V, 1), RandomLaw(V, 2)


def rows_of(count, temperature=1.0):
    params = SamplingParams(temperature=temperature)
    return [Sequence(k, [1, 2, 3, 1, 2], 5, params, seed=k) for k in range(count)]


def mixed(turns):
    made = Mixed([SampledToy(Q, V), greedy_toy(Q, V), TreeToy(Q, V, (Draw.SAMPLED, Draw.FIXED), 2)])
    made.route = lambda row: turns[row.id]
    return made


def test_each_row_gets_the_draft_of_its_drafter():
    rows, turns = rows_of(4), [0, 1, 2, -1]
    drafter = mixed(turns)
    drafter.observe(rows, [row.tokens[:-1] for row in rows], [{} for _ in rows])
    draft = drafter.propose(rows, [3, 2, 4, 3], RequestRngs(rows))
    assert draft.length.tolist()[:2] == [4, 3]
    assert draft.length[3] == 1
    assert draft.draw[0, 1] == Draw.SAMPLED
    assert draft.draw[1, 1] == Draw.FIXED
    assert not draft.chain
    assert [drafter.by(row) for row in rows[:3]] == ["toy-sampled", "toy-scripted", "toy-tree"]
    for b in (0, 1, 2):
        alone = mixed([turns[b]] * 4)
        alone.observe([rows[b]], [rows[b].tokens[:-1]], [{}])
        found = alone.propose([rows[b]], [[3, 2, 4][b]], RequestRngs([rows[b]]))
        n = int(found.length[0])
        assert draft.tokens[b, :n].tolist() == found.tokens[0].tolist()
        assert draft.parents[b, :n].tolist() == found.parents[0].tolist()
        if found.q is not None:
            assert torch.equal(draft.q[b, :n], found.q[0])


def test_needs_are_everybodys():
    assert mixed([0]).needs.tree
    assert mixed([0]).name == "toy-sampled+toy-scripted+toy-tree"


def test_a_wider_law_is_not_rounded_to_a_narrower_one():
    class Narrow(SampledToy):
        def propose(self, rows, budget, rngs):
            d = super().propose(rows, budget, rngs)
            return Draft(d.tokens, d.parents, d.length, d.draw, d.q.float() if d.q is not None else None, d.chain)

    rows = rows_of(2)
    drafter = Mixed([Narrow(Q, V), SampledToy(Q, V)], lambda row: row.id)
    drafter.observe(rows, [row.tokens[:-1] for row in rows], [{} for _ in rows])
    draft = drafter.propose(rows, [2, 2], RequestRngs(rows))
    assert draft.q[1, 0].tolist() == list(Q(tuple(rows[1].tokens)))


def test_where_nobody_drafts_rows_have_their_roots():
    rows = rows_of(2)
    draft = mixed([-1, 1]).propose(rows, [3, 0], RequestRngs(rows))
    assert draft.tokens.tolist() == [[2], [2]]
    assert draft.parents.tolist() == [[-1], [-1]]
    assert draft.length.tolist() == [1, 1]
    assert draft.chain


def test_all_forget():
    drafter, rows = mixed([0, 1]), rows_of(2)
    drafter.observe(rows, [row.tokens[:-1] for row in rows], [{} for _ in rows])
    for row in rows:
        drafter.forget(row)
    assert all(not each.heard for each in drafter.drafters)


def test_looking_is_guessing_and_says_how_sure():
    lookup = Lookup(LookupOptions(min_ngram=1, max_ngram=4), vocab=9)
    row = Sequence(1, [1, 2, 3, 4, 5, 6, 1, 2, 3, 4], 10, SamplingParams())
    assert lookup.look(row, 3) == (lookup.guess(row, 3), 5)
    row.tokens[-4:] = [8, 7, 3, 4]
    assert lookup.look(row, 3) == ([5, 6, 8], 2)
    row.tokens.append(0)
    assert lookup.look(row, 3) == ([], 0)


def test_a_shadow_is_scored_until_it_is_refuted():
    shadows = Shadows()
    shadows.propose(0, 3, [1, 2, 3, 4])
    shadows.propose(0, 3, [9])
    assert list(shadows.hear([1], None, [0])) == [(0, 3, 0, [1.0])]
    assert list(shadows.hear([2, 0], None, [0, 1])) == [(0, 3, 1, [1.0, 0.0])]
    assert not shadows.under_way
    laws = torch.tensor([[0.1, 0.2, 0.3, 0.1, 0.3], [0.2] * 5, [0.4, 0.3, 0.1, 0.1, 0.1]])
    for guesses, values in (([4], [0.3]), ([4, 0, 2], [0.3, 0.4])):  # it came out of nodes 0 and 2
        shadows.propose(0, 1, guesses)
        (soft,) = shadows.hear([4, 1], laws, [0, 2])
        assert soft[3] == pytest.approx(values)


def committed(rows, tokens):
    """A round in which nothing was drafted and these tokens came out."""
    for row, token in zip(rows, tokens, strict=True):
        row.tokens.append(token)
    ones = torch.ones(len(rows), dtype=torch.int64)
    roots = torch.zeros(len(rows), 1, dtype=torch.int64)
    draft = Draft(roots, roots - 1, ones, roots)
    path = torch.full((len(rows), 1), -1)
    return draft, Verdict(path, ones * 0, torch.tensor(tokens)), Laws(points=roots)


def test_a_free_drafter_comes_back_without_being_tried():
    """Nothing is drafted while lookup is wrong; but what it would have drafted is scored, and that is enough."""
    lookup = Lookup(LookupOptions(min_ngram=1, max_ngram=4))
    profile = profile_of({1: 1.0, 32: 8.0})
    controller = AdaptiveBudget([Arm("lookup", 8, look=lookup.look)], profile, clock=lambda: 0.0)
    row = Sequence(1, [1, 2, 3, 4, 5, 6], 6, SamplingParams(), seed=1)
    for k in range(60):  # 7 is followed by another token each time: lookup always guesses, and is always wrong
        if controller.budget([row])[0]:
            kept = 0
            row.tokens.append(7 if k % 2 else 20 + k)
            draft, verdict, laws = outcome([1], [kept])
            controller.record([row], draft, Verdict(verdict.path, verdict.accepted, torch.tensor([99])), laws)
        else:
            controller.record([row], *committed([row], [7 if k % 2 else 20 + k]))
    assert controller.budget([row]) == [0]
    drafted = 0
    for k in range(60):
        drafted += controller.budget([row])[0] > 0
        controller.record([row], *committed([row], [1 + k % 6]))
    assert drafted > 10


def test_a_drafter_whose_context_is_full_is_not_planned():
    """It would draft nothing, and the drafter that still can would never be asked."""
    lookup = Lookup(LookupOptions(min_ngram=1, max_ngram=4))
    profile = profile_of({1: 1.0, 32: 1.1}, {"better": 0.001})
    arms = [Arm("lookup", 8, look=lookup.look), Arm("better", 8, room=lambda row: max(0, 40 - len(row.tokens)))]
    controller = AdaptiveBudget(arms, profile, clock=lambda: 0.0)
    row = Sequence(1, [1, 2, 3, 4] * 3, 12, SamplingParams(), seed=1)
    turns = []
    while len(row.tokens) < 80:
        (n,) = controller.budget([row])
        turns.append((len(row.tokens), controller.route(row), n))
        right = n if turns[-1][1] == 1 else min(n, 2)
        row.tokens += [1 + k % 4 for k in range(len(row.tokens), len(row.tokens) + right + 1)]
        controller.record([row], *outcome([n], [right]))
    assert 1 in {arm for at, arm, n in turns if at < 40 and n}
    assert {arm for at, arm, _ in turns if at >= 40} == {0}
    assert all(at + n <= 40 for at, arm, n in turns if arm == 1)


def test_the_better_drafter_is_chosen_for_each_row():
    """Two drafters of the same cost; one is right for greedy rows that begin with 1, the other for those with 2."""
    profile = profile_of({1: 1.0, 32: 1.5}, {"a": 0.05, "b": 0.05})
    controller = AdaptiveBudget([Arm("a", 6), Arm("b", 6)], profile, clock=lambda: 0.0)
    rows = [Sequence(k, [k, 0], 1, SamplingParams(), seed=1) for k in (0, 1)]
    for _ in range(150):
        budget = controller.budget(rows)
        kept = [n if controller.route(row) == row.id else 0 for row, n in zip(rows, budget, strict=True)]
        controller.record(rows, *outcome(budget, kept))
    for row in rows:
        controller.budget(rows)
        assert controller.route(row) == row.id
    assert controller.budget(rows) == [6, 6]


def test_a_mix_runs_in_the_engine_and_says_who_drafted():
    from slipstream.engine import Engine, EngineOptions
    from slipstream.verify import RULES

    target = ToyTarget(P, V, max_rows=2)
    drafter = Mixed([Lookup(LookupOptions(min_ngram=1, max_ngram=4), vocab=V), greedy_toy(P, V)])
    arms = [Arm("lookup", 4, look=drafter.drafters[0].look), Arm("toy", 4)]
    controller = AdaptiveBudget(arms, profile_of({1: 1.0, 32: 1.1}))
    drafter.route = controller.route
    engine = Engine(target, drafter, RULES["auto"], controller, EngineOptions(max_rows=2))
    rows = [Sequence(k, [k, 1], 2, SamplingParams(max_tokens=40)) for k in range(3)]
    for row in rows:
        engine.add(row)
    while not engine.idle:
        engine.step()
    for row in rows:
        text = list(row.tokens[:2])
        while len(text) < 42:
            p = P(tuple(text))
            text.append(max(range(V), key=lambda t: (p[t], -t)))
        assert row.tokens == text
    by = {token.by for row in rows for token in row.emitted}
    assert "target" in by
    assert by <= {"target", "lookup", "toy-scripted"}
    assert "toy-scripted" in by
