"""Case 01: the residual after a refusal, and the count of leading accepted tokens."""

import pytest
import torch

from slipstream.testing import (
    SampledToy,
    distance,
    make_round,
    marginals,
    memoryless,
    plain_law,
    run_law,
)
from slipstream.types import Draft, Laws, Rngs, Verdict
from slipstream.verify import RULES
from slipstream.verify.chain import ChainRule

P, Q = (0.5, 0.3, 0.2), (0.2, 0.5, 0.3)
TARGET, DRAFTER = memoryless(*P), SampledToy(memoryless(*Q), 3)


def first_token(rule: object, budget: int = 1) -> list[float]:
    law = run_law(make_round(TARGET, DRAFTER, rule, budget), (0,), 1)  # type: ignore[arg-type]
    return marginals(law, 3)[0]


class SoftmaxResidual(ChainRule):
    """Wrong: the refused position is drawn from softmax(max(p - q, 0))."""

    def judge(self, draft: Draft, p: torch.Tensor, rngs: Rngs) -> Verdict:
        return super().judge(draft, p, _Correct(rngs, lambda w: w if is_law(w) else w.softmax(1)))


class AcceptAll(ChainRule):
    """Wrong: every coin passes."""

    def judge(self, draft: Draft, p: torch.Tensor, rngs: Rngs) -> Verdict:
        return super().judge(draft, p, _Accept(rngs))


class RedrawFromP(ChainRule):
    """Wrong: the refused position is drawn from p."""

    def judge(self, draft: Draft, p: torch.Tensor, rngs: Rngs) -> Verdict:
        return super().judge(draft, p, _Correct(rngs, lambda w: p[:, 0]))


def is_law(w: torch.Tensor) -> bool:
    return bool((w.sum(1) - 1).abs().max() < 1e-9)


class _Correct:
    def __init__(self, rngs: Rngs, change: object) -> None:
        self.draft, self.accept, self.shared = rngs.draft, rngs.accept, rngs.shared
        self._rngs, self._change = rngs, change

    def correct(self, w: torch.Tensor, active: torch.Tensor | None = None) -> torch.Tensor:
        rows = [self._change(row[None]) for row in w]  # type: ignore[operator]
        return self._rngs.correct(torch.cat([r[:1] for r in rows]), active)


class _Accept:
    def __init__(self, rngs: Rngs) -> None:
        self.draft, self.correct, self.shared = rngs.draft, rngs.correct, rngs.shared

    def accept(self, a: torch.Tensor, active: torch.Tensor | None = None) -> torch.Tensor:
        return torch.ones_like(a, dtype=torch.bool)


@pytest.mark.parametrize("budget", [1, 4])
@pytest.mark.parametrize("rule", ["chain", "block", "tree", "coupled", "auto"])
def test_case_01_every_emitted_token_has_the_target_law(rule: str, budget: int) -> None:
    one_round = make_round(TARGET, DRAFTER, RULES[rule], budget)((0,))  # no memory: the same after every prefix
    law = run_law(lambda _prefix: one_round, (0,), 3)
    assert distance(law, plain_law(TARGET, (0,), 3)) < 1e-12
    for place in marginals(law, 3):
        assert place == pytest.approx(P, abs=1e-12)


@pytest.mark.parametrize(
    ("wrong", "shown"),
    [
        (SoftmaxResidual(), (0.321, 0.390, 0.290)),
        (AcceptAll(), (0.2, 0.5, 0.3)),
        (RedrawFromP(), (0.35, 0.39, 0.26)),
    ],
)
def test_case_01_the_known_wrong_answers_are_told_apart(wrong: ChainRule, shown: tuple[float, ...]) -> None:
    found = first_token(wrong)
    assert found == pytest.approx(shown, abs=1e-3)
    assert 0.5 * sum(abs(a - b) for a, b in zip(found, P, strict=True)) > 0.1


def test_case_01_accepted_is_the_count_of_leading_accepts() -> None:
    """Coins pass, fail, pass: one token stands, not two."""

    class Coins:
        def accept(self, a: torch.Tensor, active: torch.Tensor | None = None) -> torch.Tensor:
            return torch.tensor([[True, False, True]])

        def correct(self, w: torch.Tensor, active: torch.Tensor | None = None) -> torch.Tensor:
            self.weights = w
            return w.argmax(1)

    q = torch.tensor([[Q] * 4], dtype=torch.float64)
    p = torch.tensor([[P] * 4], dtype=torch.float64)
    line = torch.arange(4)[None]
    draft = Draft(torch.tensor([[0, 1, 1, 2]]), line - 1, torch.tensor([4]), torch.tensor([[0, 1, 1, 1]]), q)
    coins = Coins()
    verdict = ChainRule()(draft, Laws(p), coins)  # type: ignore[arg-type]
    assert verdict.accepted.tolist() == [1]
    assert verdict.path.tolist() == [[1, -1, -1]]
    assert coins.weights[0].tolist() == pytest.approx([0.3, 0.0, 0.0])
