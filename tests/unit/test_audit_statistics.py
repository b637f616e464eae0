"""The audit's statistics: right on right rounds at the stated rate, loud on planted errors, honest about power."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from slipstream.measure.audit import pit
from slipstream.measure.audit.findings import ALARM, Check, decide
from slipstream.measure.audit.statistics import biased, power, statistics
from slipstream.measure.audit.toy_rounds import Play, play, play_three
from slipstream.measure.audit.watch import Watch, visited
from slipstream.testing import planted, planted_engine
from slipstream.types import Draft, Draw, Laws, Verdict
from slipstream.verify import RULES


def flagged(what: Play, rows: int = 800, seed: int = 0) -> list[str]:
    checks = statistics(play(what, rows, seed), "toys")
    decide(checks)
    return [check.name for check in checks if not check.passed]


# ---------------------------------------------------------------- no false alarms


def test_200_audits_of_the_right_engine_fail_at_no_more_than_the_stated_rate() -> None:
    kinds = [("chain", Draw.SAMPLED), ("block", Draw.SAMPLED), ("tree", Draw.DISTINCT), ("auto", Draw.FIXED)]
    alarms = 0
    for seed in range(200):
        rule, kind = kinds[seed % 4]
        alarms += bool(flagged(Play(RULES[rule], kind), rows=100, seed=seed + 1))
    assert alarms <= 200 * ALARM


@pytest.mark.parametrize("rule", ["chain", "block", "tree", "coupled", "auto"])
def test_right_rules_pass_with_many_rows(rule: str) -> None:
    assert flagged(Play(RULES[rule]), rows=2000) == []
    assert flagged(Play(RULES[rule], Draw.FIXED), rows=2000) == []
    assert play_three(Play(RULES[rule]), 2000).p_value() > ALARM


# ---------------------------------------------------------------- planted errors


def longer(draft: Draft) -> Draft:
    """The third node is dropped when it was unlikely: withdrawn after having been seen."""
    assert draft.q is not None
    mass = draft.q[:, 2].gather(1, draft.tokens[:, 3:])[:, 0]
    return replace(draft, length=torch.where(mass < 0.3, 3, 4))


def shifted(draft: Draft) -> Draft:
    assert draft.q is not None
    return replace(draft, q=torch.roll(draft.q, 1, 1).clamp(min=1e-6))


def uniform_q(draft: Draft) -> Draft:
    assert draft.q is not None
    return replace(draft, q=torch.full_like(draft.q, 1.0 / draft.q.shape[-1]))


def called_sampled(draft: Draft) -> Draft:
    """Siblings drawn without replacement, tested as if each were drawn from the whole row."""
    return replace(draft, draw=torch.where(draft.draw == int(Draw.DISTINCT), int(Draw.SAMPLED), draft.draw))


def softmax(w: torch.Tensor) -> torch.Tensor:
    return torch.where((w.sum(1, keepdim=True) - 1).abs() < 1e-9, w, w.softmax(1))


PLANTS = {
    "everything accepted": Play(planted.WrongChain(coins=torch.ones_like)),
    "first token not checked": Play(planted.WrongChain(coins=planted.first_coin_passes)),
    "coins of half the probability": Play(planted.WrongChain(coins=lambda a: a / 2)),
    "coins of the square root": Play(planted.WrongChain(coins=lambda a: a.sqrt()), Draw.FIXED),
    "residual softmaxed": Play(planted.WrongChain(softmax)),
    "redraw from p": Play(planted.RedrawFromP()),
    "bonus row off by one": Play(planted.RowBefore()),
    "typical acceptance": Play(planted.Typical(), Draw.FIXED),
    "unlikely tokens withdrawn": Play(RULES["chain"], tamper=longer),
    "q rows shifted": Play(RULES["chain"], tamper=shifted),
    "a wrong q": Play(RULES["block"], tamper=uniform_q),
    "distinct siblings tested with plain q": Play(RULES["tree"], Draw.DISTINCT, tamper=called_sampled),
}


@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_error_is_flagged(name: str) -> None:
    assert flagged(PLANTS[name], rows=2000)


def test_coins_that_share_the_drafts_numbers_are_seen_by_counting() -> None:
    assert play_three(Play(RULES["chain"], make_rngs=planted_engine.SharedCoin), 2000).p_value() < 1e-9


# ---------------------------------------------------------------- the pieces


def test_u_puts_tokens_that_the_draft_favours_first() -> None:
    p, q = torch.tensor([[0.5, 0.3, 0.2]]), torch.tensor([[0.1, 0.3, 0.6]])
    order = pit.lean(p, q)
    u = [float(pit.pit(p, order, torch.tensor([t]), torch.tensor([0.5]))) for t in range(3)]
    assert u == pytest.approx([0.75, 0.35, 0.1], abs=1e-6)


def test_u_is_uniform_whatever_the_order() -> None:
    g = torch.Generator().manual_seed(0)
    p = torch.tensor([[0.5, 0.25, 0.25, 0.0]]).expand(4000, -1)
    order = torch.rand(4000, 4, generator=g)
    y = torch.multinomial(p, 1, generator=g)[:, 0]
    u = pit.pit(p, order, y, torch.rand(4000, generator=g)).numpy()
    assert pit.ks(u) > 0.01
    assert pit.ks(u**1.2) < 1e-6


def test_ks_has_its_level() -> None:
    rng = np.random.default_rng(0)
    rate = np.mean([pit.ks(rng.random(60)) < 0.05 for _ in range(2000)])
    assert 0.035 < rate < 0.06


def test_few_hits_are_judged_by_a_bound_and_the_impossible_at_once() -> None:
    assert pit.hits_p(np.array([1.0]), np.array([0.0])) == 0.0
    assert pit.hits_p(np.array([1.0, 1.0]), np.array([1.0, 1.0])) == 1.0
    assert pit.hits_p(np.ones(40), np.full(40, 0.01)) < 1e-6
    assert pit.binomial_p(0, 10, 0.0) == 1.0
    assert pit.binomial_p(1, 10, 0.0) == 0.0


def test_holm_stops_at_the_first_that_holds() -> None:
    checks = [Check(str(p), "tested", "", p_value=p) for p in (0.004, 0.0001, 0.0049, 0.9)]
    decide(checks)
    assert [check.passed for check in checks] == [True, False, True, True]
    exact = Check("exact", "proved", "", passed=False)
    decide([exact])
    assert exact.passed is False


def test_power_is_simulated_on_the_rows_themselves() -> None:
    e = play(Play(RULES["chain"]), 1500).emitted()
    found = power(e, 8)
    assert found["tokens"] == len(e)
    assert 0 < found["open_tokens"] < len(e)
    assert found["least_bias_found_99"] is not None
    least = float(found["least_bias_found_99"])
    rng = np.random.default_rng(1)
    runs = [pit.two_sided(pit.mean_z(biased(e, least, rng))) < ALARM / 8 for _ in range(100)]
    runs_right = [pit.two_sided(pit.mean_z(biased(e, 0.0, rng))) < ALARM / 8 for _ in range(100)]
    assert np.mean(runs) > 0.9
    assert np.mean(runs_right) < 0.05
    nothing = Watch().emitted()
    assert power(nothing, 8)["least_bias_found_99"] is None


def test_rows_that_were_not_finite_and_greedy_rounds_are_left_out() -> None:
    draft = Draft(torch.tensor([[0], [0]]), torch.tensor([[-1], [-1]]), torch.tensor([1, 1]), torch.zeros(2, 1).long())
    verdict = Verdict(torch.tensor([[-1], [-1]]), torch.tensor([0, 0]), torch.tensor([1, 2]))
    watch = Watch()
    watch.take([0, 1], draft, Laws(torch.full((2, 1, 4), 0.25), bad=torch.tensor([[True], [False]])), verdict)
    watch.take([0, 1], draft, Laws(points=torch.tensor([[1], [2]])), verdict)
    assert watch.emitted().row.tolist() == [1]
    assert [t.tolist() for t in visited(draft, verdict)] == [[0, 1], [0, 0], [1, 2]]
