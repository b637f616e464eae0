"""The random streams: no number used twice, uniform to the last bits that matter, one row's draws its own.

In: an engine's source of randomness. Out: `Check`s. Enumeration cannot see reused or coarse random numbers.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from slipstream.engine import Engine, EngineOptions
from slipstream.measure.audit.exact import Learning
from slipstream.measure.audit.findings import Check
from slipstream.measure.audit.pit import binomial_p
from slipstream.measure.audit.toy_rounds import MakeRngs
from slipstream.sampling import streams
from slipstream.testing import RandomLaw, SampledToy, ToyTarget
from slipstream.types import Rngs, SamplingParams, Sequence, VerifyRule

_COINS = (0.001, 0.1, 0.37, 0.5, 0.9, 0.999)
_LANES = 512
_VOCAB = 7


@dataclass
class Log:
    """Which blocks of which stream were asked for; `noise` counts those of the shared noise, used again by design."""

    noise: int = 0
    used: Counter[tuple[tuple[int, int], tuple[int, int]]] = field(default_factory=Counter)

    def check(self, where: str) -> Check:
        """Say whether any block was used twice."""
        twice = [block for block, n in self.used.items() if n > 1]
        said = f"{len(self.used)} blocks of random numbers, {len(twice)} used more than once"
        said += f"; shared noise asked for {self.noise} times" if self.noise else ""
        drew = bool(self.used) or self.noise > 0
        return Check(f"no random number is used twice, {where}", "tested", said, passed=drew and not twice)


@contextlib.contextmanager
def logged() -> Iterator[Log]:
    """Log every block of random bits while the context lasts."""
    log, original = Log(), streams.raw

    def raw(key: tuple[int, int], counter: tuple[int, int], n: int) -> streams.Array:
        if key[1] & 0xFF == streams.Stream.NOISE:
            log.noise += 1
        else:
            log.used[(key, counter)] += 1
        return original(key, counter, n)

    streams.raw = raw
    try:
        yield log
    finally:
        streams.raw = original


def source(make_rngs: MakeRngs, rows: int = 400, seed: int = 0) -> Check:
    """Test the draws themselves: frequencies, coarse numbers, and whether streams, rounds or rows agree too often."""
    params = SamplingParams(temperature=1.0)
    batch = [Sequence(b, [0], 1, params, seed=(seed << 24) + b + 1) for b in range(rows)]
    values = []
    halves = []
    for turn in range(4):
        for row in batch:
            row.rounds, row.tokens = turn, [0] * (1 + 4 * turn)
        rngs = make_rngs(batch)
        halves.append(_halves(rngs, rows))
        values += _coins(rngs, rows) + _tails(rngs, rows)
    bits = torch.stack(halves)  # [turns, kinds, B]
    kinds = bits.shape[1]
    pairs = [(bits[:, i], bits[:, j]) for i in range(kinds) for j in range(i)]
    pairs += [(bits[1:, i], bits[:-1, i]) for i in range(kinds)] + [(bits[..., 1:], bits[..., :-1])]
    values += [_agree(a, b) for a, b in pairs]
    p = min(1.0, len(values) * min(values))
    said = f"{len(values)} comparisons of coins and draws, smallest corrected p = {p:.2g}"
    return Check("coins and draws have their probabilities and are independent", "tested", said, p_value=p)


def _halves(rngs: Rngs, rows: int) -> Tensor:
    """A fair bit of each stream -> bool [3, B]."""
    even = torch.full((rows, 2), 0.5, dtype=torch.float64)
    return torch.stack([rngs.draft(even, 1) == 0, rngs.accept(even[:, 0]), rngs.correct(even) == 0])


def _coins(rngs: Rngs, rows: int) -> list[float]:
    found = []
    for a in _COINS:
        hits = int(rngs.accept(torch.full((rows, _LANES), a, dtype=torch.float64)).sum())
        found.append(binomial_p(hits, rows * _LANES, a))
    for a in (0.0, 1.0):
        hits = int(rngs.accept(torch.full((rows, _LANES), a, dtype=torch.float32)).sum())
        found.append(binomial_p(hits, rows * _LANES, a))
    return found


def _tails(rngs: Rngs, rows: int) -> list[float]:
    """Draws from an uneven law: each token as often as its weight says."""
    w = torch.tensor([2.0**-k for k in range(1, _VOCAB + 1)], dtype=torch.float64)
    law = (w / w.sum()).expand(rows, -1)
    drawn = torch.cat([rngs.correct(law.clone()), rngs.draft(law.clone(), 2)])
    counts = torch.bincount(drawn, minlength=_VOCAB).tolist()
    return [binomial_p(counts[t], 2 * rows, float(law[0, t])) for t in range(_VOCAB)]


def _agree(a: Tensor, b: Tensor) -> float:
    return binomial_p(int((a == b).sum()), a.numel(), 0.5)


def toy_text(rule: VerifyRule, make: MakeRngs, seeds: list[int], drafter: bool = True) -> list[list[int]]:
    """Decode one toy request per seed, all in one batch, through the real engine; return their tokens."""
    p, q = RandomLaw(5, 1), RandomLaw(5, 2)
    params = SamplingParams(temperature=1.0, max_tokens=24)
    controller = Learning(3 if drafter else 0)
    options = EngineOptions(max_rows=len(seeds))
    engine = Engine(ToyTarget(p, 5), SampledToy(q, 5), rule, controller, options, make_rngs=make)
    if not drafter:
        engine.controller = _Never()
    rows = [Sequence(i, [0, 1], 2, params, seed=seed) for i, seed in enumerate(seeds)]
    for row in rows:
        engine.add(row)
    while not engine.idle:
        engine.step()
    return [row.tokens[2:] for row in rows]


class _Never(Learning):
    def budget(self, rows: list[Sequence]) -> list[int]:
        """Return no budget."""
        return [0] * len(rows)


def seeds(rule: VerifyRule, make: MakeRngs) -> list[Check]:
    """Check on a toy target that a seed fixes the text, that another one changes it, and that neighbours do not."""
    together = toy_text(rule, make, [11, 12, 13, 14])
    again = toy_text(rule, make, [11, 12, 13, 14])
    alone = [toy_text(rule, make, [seed])[0] for seed in (11, 12, 13, 14)]
    found = [
        _same("the same seed gives the same text", together == again, "4 requests, twice"),
        _same("another seed gives another text", together[0] != together[1], "seeds 11 and 12"),
        _same("a request draws the same whatever is decoded beside it", together == alone, "together and alone"),
    ]
    if rule.shared_noise:
        plain = toy_text(rule, make, [11, 12, 13, 14], drafter=False)
        found.append(_same("speculation gives the text of plain decoding", together == plain, "same seeds, toy target"))
    return found


def _same(name: str, holds: bool, said: str) -> Check:
    return Check(name, "tested", said, passed=holds)
