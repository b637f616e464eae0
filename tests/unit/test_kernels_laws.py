"""Rows of a vocabulary by the kernels, at every level: against float64, and the same bits in any company."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from slipstream import kernels
from slipstream.kernels import laws
from slipstream.sampling import RequestRngs
from slipstream.sampling.picking import _chunked, _pick_row
from slipstream.types import Draft, Draw, Laws, SamplingParams, Sequence
from slipstream.verify import RULES

if not kernels.available():
    pytest.skip(f"kernels: {kernels.reason()}", allow_module_level=True)

COLS = (1, 2, 15, 16, 17, 127, 128, 129, 511, 512, 513, 4095, 4097, 8200)
LONG = 1 << 17  # columns: three rows are enough for several threads


def logits(rows: int, cols: int, spread: float = 4.0) -> Tensor:
    return spread * torch.randn(rows, cols, generator=torch.Generator().manual_seed(rows * cols))


def shares(rows: int, cols: int) -> Tensor:
    return torch.softmax(logits(rows, cols).double(), -1).float()


def of(x: Tensor, temperature: float) -> Tensor:
    return laws.softmax(x, x.amax(-1).tolist(), [temperature] * len(x))


def softmax64(x: Tensor, temperature: float) -> Tensor:
    return torch.softmax((x - x.amax(-1, keepdim=True)).double() / temperature, -1)


def test_laws_are_those_of_float64(level: str) -> None:
    for cols in COLS:
        for temperature in (1.0, 0.7, 1.5, 1e-3, 1e-30):
            x = logits(3, cols)
            x[1, : cols // 2] = -torch.inf
            want = softmax64(x, temperature)
            torch.testing.assert_close(of(x, temperature).double(), want, rtol=2e-5, atol=1e-37)
            peaks = x.amax(-1)
            mass = torch.tensor(laws.masses(x, peaks.tolist(), [temperature] * 3), dtype=torch.float64)
            sums = ((x - peaks[:, None]).double() / temperature).exp().sum(-1)
            torch.testing.assert_close(mass, sums, rtol=1e-5, atol=0)


def test_a_row_has_the_same_bits_alone_and_in_any_number_of_threads(level: str) -> None:
    x = logits(3, LONG + 5)
    alone = [of(row[None], 0.7)[0] for row in x]
    p, q = shares(3, LONG + 5), shares(6, LONG + 5)[3:]
    parts = [(p[i], q[i] if i else None, 0.75, 7 * i) for i in range(3)]
    sums = [laws.residual_masses([part])[0] for part in parts]
    drawn = [laws.draw([row], [u])[0] for row, u in zip(p, (0.1, 0.5, 0.999), strict=True)]
    for threads in (1, 2, 3, 4):
        kernels.set_threads(threads)
        assert all(map(torch.equal, of(x, 0.7), alone))
        assert laws.residual_masses(parts) == sums
        assert laws.draw(list(p), [0.1, 0.5, 0.999]) == drawn
        assert [ids.tolist() for ids in laws.highest(x, [1, 40, 700])] == [
            laws.highest(row[None], [n])[0].tolist() for row, n in zip(x, (1, 40, 700), strict=True)
        ]


def test_the_highest_are_all_there_with_their_ties(level: str) -> None:
    for cols in COLS:
        tied = torch.randint(-3, 4, (1, cols), generator=torch.Generator().manual_seed(cols)).float()
        masked = logits(1, cols)
        masked[0, 1::2] = -torch.inf
        for x in (logits(1, cols), tied, masked, torch.zeros(1, cols)):
            for width in {1, min(2, cols), min(20, cols), min(64, cols), cols}:
                ids = laws.highest(x, [width])[0]
                assert len(ids) >= width
                assert (np.diff(ids) > 0).all()
                least = x[0].numpy()[ids].min()
                assert ids.tolist() == np.flatnonzero(x[0].numpy() >= least).tolist()
    few = laws.highest(logits(1, 100_000), [64])[0]
    assert len(few) < 300, "so that little has to be sorted"


def test_draws_are_those_of_the_definition(level: str) -> None:
    for cols in COLS:
        w = shares(1, cols)
        w[0, 1::3] = 0.0
        chunks, sums = (part.numpy()[0] for part in _chunked(w))
        for u in (0.0, 1e-12, 0.25, 0.5, 0.999999, 1 - 2.0**-53):
            found = laws.draw([w[0]], [u])
            assert found == [_pick_row(chunks, sums, u, 0)]
            assert w[0, found[0]] > 0
    for bad in (0.0, float("nan"), float("inf")):
        assert laws.draw([torch.full((300,), bad)], [0.5]) == [-1]


def test_residuals_are_those_of_float64(level: str) -> None:
    for cols in COLS:
        p, q = shares(2, cols)
        for law in (q, None):
            for drop in {-1, 0, cols // 2, cols - 1}:
                want = (p * 0.8 - (q if law is not None else 0.0)).clamp(min=0)
                if drop >= 0:
                    want[drop] = 0
                found, mass = laws.residual(p, law, 0.8, drop)
                torch.testing.assert_close(found, want, rtol=1e-6, atol=1e-9)
                assert mass == pytest.approx(float(want.double().sum()), rel=1e-5, abs=1e-9)
                assert laws.residual_masses([(p, law, 0.8, drop)]) == [mass]
    same = shares(1, 700)[0]
    assert laws.residual(same, same, 1.0, -1)[1] == 0.0


@pytest.mark.parametrize("n", [1, 3, 4, 5, 8, 17, 64])
def test_random_words_are_those_of_the_generator(n: int) -> None:
    rand = np.random.default_rng(n)
    for _ in range(20):
        key, counter = ([int(word) for word in rand.integers(0, 2**64, 2, dtype=np.uint64)] for _ in range(2))
        words = np.array([0, 0, *counter], dtype=np.uint64)
        want = np.random.Philox(key=np.array(key, dtype=np.uint64), counter=words).random_raw(n)
        assert kernels.native().philox(key, counter, n) == want.tolist()


@pytest.mark.parametrize("rule", ["chain", "block"])
def test_verdicts_in_float32_are_those_in_float64(rule: str) -> None:
    """Their chances differ by rounding alone: no coin of these falls between."""
    cols, nodes = 3000, 6
    for seed in range(8):
        gen = torch.Generator().manual_seed(seed)
        q = torch.softmax(3 * torch.randn(2, nodes, cols, generator=gen, dtype=torch.float64), -1)
        p = torch.softmax(q.log() + 0.5 * torch.randn(q.shape, generator=gen, dtype=torch.float64), -1)
        ids = torch.stack([torch.multinomial(row, 1, generator=gen)[:, 0] for row in q])
        tokens = torch.cat([torch.zeros(2, 1, dtype=torch.int64), ids[:, : nodes - 1]], 1)
        draw = torch.full_like(tokens, int(Draw.SAMPLED))
        draw[1, 3] = int(Draw.FIXED)
        parents = torch.arange(-1, nodes - 1).repeat(2, 1)
        rows = [Sequence(b, [1], 1, SamplingParams(temperature=1.0), seed=seed) for b in range(2)]
        verdicts = []
        for dtype in (torch.float64, torch.float32):
            draft = Draft(tokens, parents, torch.tensor([nodes, nodes - 1]), draw, q.to(dtype))
            verdicts.append(RULES[rule](draft, Laws(p.to(dtype)), RequestRngs(rows)))
        here, there = verdicts
        assert here.accepted.tolist() == there.accepted.tolist()
        assert here.next_token.tolist() == there.next_token.tolist()
