"""The production random streams through the production rules: what enumeration cannot see, shared random numbers.

20,000 rounds of a three-token law, 200,000 in the slow run. The controls share a number between two draws of a round;
their bias is known in closed form, and the small one needs the slow run to be seen.
"""

from collections import Counter
from collections.abc import Callable

import pytest
import torch

from slipstream.sampling import RequestRngs
from slipstream.types import Draft, Draw, Laws, SamplingParams, Sequence
from slipstream.verify import RULES

P, Q = (0.1, 0.6, 0.3), (0.6, 0.25, 0.15)
ROWS = 20_000
SIZES = [1, pytest.param(10, marks=pytest.mark.slow)]
LIMIT = 20.0  # chi-square of 2 degrees of freedom exceeds it once in 22,000 times; the controls reach hundreds


def chi_square(counts: Counter[int]) -> float:
    n = sum(counts.values())
    return sum((counts[t] - n * p) ** 2 / (n * p) for t, p in enumerate(P))


def rows_of(laws: tuple[float, ...], n: int) -> torch.Tensor:
    return torch.tensor(laws, dtype=torch.float32).expand(ROWS, n, 3)


def play(
    rule: str, nodes: int, draw: Draw, rounds: int, kind: Callable[..., RequestRngs] = RequestRngs
) -> list[Counter[int]]:
    """Count the first and the second token of each round: each has law P wherever the round reaches it."""
    params = SamplingParams(temperature=1.0)
    rows = [Sequence(b, [0], 1, params, seed=b + 1) for b in range(ROWS)]
    star = draw == Draw.DISTINCT
    parents = torch.tensor([-1] + [0 if star else i for i in range(nodes)]).repeat(ROWS, 1)
    kinds = torch.tensor([0] + [int(draw)] * nodes).repeat(ROWS, 1)
    found: list[Counter[int]] = [Counter(), Counter()]
    for turn in range(rounds):
        for row in rows:
            row.rounds = turn
            row.tokens = [0] * (1 + turn * (nodes + 1))
        rngs = kind(rows, RULES[rule].shared_noise)
        w, drafted = rows_of(Q, 1)[:, 0].clone(), []
        for depth in range(1, nodes + 1):
            drafted.append(rngs.draft(w, 1 if star else depth))
            if star:
                w = w.scatter(1, drafted[-1][:, None], 0.0)
        tokens = torch.stack([torch.zeros(ROWS, dtype=torch.int64), *drafted], 1)
        draft = Draft(tokens, parents, torch.full((ROWS,), nodes + 1), kinds, rows_of(Q, nodes + 1), not star)
        verdict = RULES[rule](draft, Laws(rows_of(P, nodes + 1)), rngs)
        first = tokens.gather(1, verdict.path[:, :1].clamp(min=0))[:, 0]
        none = verdict.accepted == 0
        found[0].update(torch.where(none, verdict.next_token, first).tolist())
        found[1].update(verdict.next_token[verdict.accepted == 1].tolist() if star or nodes == 1 else [])
    return found


class SharedCoin(RequestRngs):
    """Wrong: the accept coin is the number that drew the draft."""

    def draft(self, w: torch.Tensor, depth: int, active: torch.Tensor | None = None) -> torch.Tensor:
        self._numbers = torch.tensor([self._uniform(1, b, 1)[0] for b in range(len(w))])  # type: ignore[arg-type]
        return torch.searchsorted(w.double().cumsum(1), self._numbers[:, None], right=True)[:, 0].clamp(max=2)

    def accept(self, a: torch.Tensor, active: torch.Tensor | None = None) -> torch.Tensor:
        return self._numbers[:, None] < a


class SharedCorrection(RequestRngs):
    """Wrong: the correction is drawn with the noise of the draft."""

    def __init__(self, rows: list[Sequence], shared_noise: bool = False) -> None:
        super().__init__(rows, shared_noise=True)

    def correct(self, w: torch.Tensor, active: torch.Tensor | None = None) -> torch.Tensor:
        return self.shared(w, 1, active)


@pytest.mark.parametrize("rounds", SIZES)
@pytest.mark.parametrize(
    ("rule", "nodes", "draw"),
    [("chain", 1, Draw.SAMPLED), ("block", 2, Draw.SAMPLED), ("tree", 2, Draw.DISTINCT), ("coupled", 1, Draw.SAMPLED)],
)
def test_emitted_tokens_follow_the_target(rule: str, nodes: int, draw: Draw, rounds: int) -> None:
    first, second = play(rule, nodes, draw, rounds)
    assert sum(first.values()) == ROWS * rounds
    assert chi_square(first) < LIMIT
    assert not second or chi_square(second) < LIMIT


@pytest.mark.parametrize(
    ("wrong", "rounds", "biased"),
    [
        (SharedCoin, 1, (1 / 6, 0.5533, 0.28)),
        pytest.param(SharedCorrection, 10, (0.1, 0.25 + 0.5 * 0.8 / 1.1, 0.2864), marks=pytest.mark.slow),
    ],
)
def test_control_a_shared_number_is_flagged(wrong: type[RequestRngs], rounds: int, biased: tuple[float, ...]) -> None:
    first, _ = play("chain", 1, Draw.SAMPLED, rounds, wrong)
    assert chi_square(first) > 100
    assert [first[t] / (ROWS * rounds) for t in range(3)] == pytest.approx(biased, abs=0.01)
