"""Speed-up before anything is built: formulas over acceptance, costs and draft length. No model, no I/O.

Survival A_k is the probability that a round keeps at least k drafted tokens; a round emits 1 + A_1 + .. + A_g tokens
(Leviathan et al. 2211.17192, eq. 1, with constant A_k / A_{k-1}). Costs are in units of one round of plain decoding,
so S(g) = tokens(g) / cost(g). `predict_walk` predicts from texts instead, with an interval.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import asdict, dataclass, field
from typing import Any

from slipstream.types import RequestError

Cost = Callable[[int], float]  # draft length -> cost of the round

MAX_LENGTH = 64


@dataclass(frozen=True)
class Point:
    """One draft length: tokens per round (the target's own included), cost, speed-up and, from data, its interval."""

    draft_tokens: int
    tokens_per_round: float
    cost: float
    speedup: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Prediction:
    """The speed-up at `draft_tokens`, with a 90 % interval if it came from data, and the whole curve.

    `break_even` is the constant acceptance per token at which drafting `draft_tokens` tokens costs as much as it
    saves; None if none does, however many are accepted. `survival` is A_1.. as far as it is known.
    """

    speedup: float
    low: float | None
    high: float | None
    draft_tokens: int
    best_tokens: int
    break_even: float | None
    curve: list[Point]
    survival: list[float] = field(default_factory=list)
    detail: dict[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return the prediction for JSON."""
        return asdict(self)


def survival_of(acceptance: float | Seq[float], length: int) -> list[float]:
    """Return A_1..A_length from a constant acceptance per token, or from one per position, given the one before."""
    rates = [float(acceptance)] * length if isinstance(acceptance, int | float) else list(acceptance)[:length]
    found, product = [], 1.0
    for rate in rates:
        product *= rate
        found.append(product)
    return found


def tokens_per_round(survival: Seq[float]) -> float:
    """Return the expected tokens of a round, the target's own included; (1 - a^(g+1)) / (1 - a) for constant a."""
    return 1.0 + sum(survival)


def sequential_cost(draft_cost: float) -> Cost:
    """Return the cost of a round whose drafter takes `draft_cost` per token, scoring being as cheap as one token."""
    return lambda g: 1.0 + draft_cost * g


def parallel_cost(draft_cost: float, scoring: Seq[float] = ()) -> Cost:
    """Return the cost of a round whose drafter takes `draft_cost` per round, whatever the length.

    `scoring[g - 1]` is the target's time for g drafted tokens and the root, over its time for one token (default 1).
    """

    def cost(g: int) -> float:
        return (scoring[g - 1] if scoring else 1.0) + draft_cost if g else 1.0

    return cost


def general_cost(draft_cost: float, scoring: Seq[float]) -> Cost:
    """Return the cost of a round with `draft_cost` per drafted token and a measured scoring curve, as above."""
    return lambda g: (scoring[g - 1] if g else 1.0) + draft_cost * g


def shorthand(tokens: float, draft_cost: float, length: int) -> float:
    """Return tokens / (1 + draft_cost * length): often written alpha / (1 + beta k).

    `tokens` is tokens emitted per round, the target's own included, never an acceptance rate: with one the result would
    always be below 1.
    """
    if tokens < 1.0:
        raise RequestError(
            f"tokens per round {tokens:g} is below 1, which no round is; an acceptance rate goes with --alpha"
        )
    return tokens / sequential_cost(draft_cost)(length)


def marginal_length(survival: Seq[float], draft_cost: float) -> int:
    """Return the best length for a sequential drafter: draft on while A_{g+1} > draft_cost * S(g)."""
    length, tokens = 0, 1.0
    for following in survival:
        if following <= draft_cost * tokens / (1.0 + draft_cost * length):
            break
        tokens += following
        length += 1
    return length


def break_even(cost: Cost, length: int) -> float | None:
    """Return the constant acceptance at which `length` drafted tokens pay for themselves; None if none suffices."""
    goal = cost(length)
    if length == 0 or goal > length + 1:
        return None
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if tokens_per_round(survival_of(middle, length)) < goal else (low, middle)
    return high


def predict(
    acceptance: float | Seq[float],
    cost_ratio: float = 0.0,
    draft_tokens: int | None = None,
    *,
    parallel: bool = False,
    scoring: Seq[float] = (),
    longest: int = MAX_LENGTH,
) -> Prediction:
    """Predict from an acceptance (constant, or one per position) and the drafter's cost over the target's.

    `cost_ratio` is per drafted token, or per round if `parallel`. `scoring` is the target's relative time for 1, 2, ..
    drafted tokens. Without `draft_tokens` the best length is predicted. Raises `RequestError` for impossible values.
    """
    limit = _limit(acceptance, cost_ratio, scoring, longest)
    if draft_tokens is not None and not 0 <= draft_tokens <= max(limit, 0):
        raise RequestError(
            f"draft_tokens={draft_tokens} must be 0 to {limit}: as far as acceptance and costs are given"
        )
    if parallel:
        cost = parallel_cost(cost_ratio, scoring)
    else:
        cost = general_cost(cost_ratio, scoring) if scoring else sequential_cost(cost_ratio)
    survival = survival_of(acceptance, limit)
    curve = []
    for g in range(limit + 1):
        tokens = tokens_per_round(survival[:g])
        curve.append(Point(g, tokens, cost(g), tokens / cost(g)))
    return prediction(curve, draft_tokens, cost, survival)


def prediction(
    curve: list[Point],
    draft_tokens: int | None,
    cost: Cost,
    survival: list[float],
    detail: dict[str, Any] | None = None,
) -> Prediction:
    """Read a prediction off a curve whose points are lengths 0, 1, 2, .."""
    best = max(curve, key=lambda p: (p.speedup, -p.draft_tokens)).draft_tokens
    chosen = best if draft_tokens is None else draft_tokens
    at = curve[chosen]
    even = break_even(cost, chosen or 1)
    return Prediction(at.speedup, at.low, at.high, chosen, best, even, curve, survival, detail or {})


def _limit(acceptance: float | Seq[float], cost_ratio: float, scoring: Seq[float], longest: int) -> int:
    rates = [acceptance] if isinstance(acceptance, int | float) else list(acceptance)
    if not rates:
        raise RequestError("acceptance is empty; give at least one rate")
    for rate in rates:
        if not 0.0 <= rate <= 1.0:
            raise RequestError(
                f"acceptance {rate!r} must be a probability, 0 to 1 (tokens per round: --tokens-per-round)"
            )
    if not 0.0 <= cost_ratio < float("inf"):
        raise RequestError(f"cost ratio {cost_ratio!r} must be 0 or more: the drafter's time over the target's")
    for value in scoring:
        if not 0.0 < value < float("inf"):
            raise RequestError(f"scoring cost {value!r} must be above 0: the target's time over that of one token")
    limits = [longest]
    limits += [] if isinstance(acceptance, int | float) else [len(rates)]
    limits += [len(scoring)] if scoring else []
    return min(limits)
