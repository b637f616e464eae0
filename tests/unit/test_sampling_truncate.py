"""Cuts: heads that are too short, ties, and the whole-batch path of accelerators against the row-by-row path."""

import pytest
import torch

from slipstream import kernels
from slipstream.sampling.laws import peaks_of
from slipstream.sampling.truncate import HEADS, Cut, cut_on_device, law_rows

CUTS = [
    Cut(1.0, k=3),
    Cut(0.7, k=700),
    Cut(1.0, k=10**6),
    Cut(1.0, top_p=0.9),
    Cut(3.0, top_p=0.99),
    Cut(1.0, top_p=1e-6),
    Cut(1.0, min_p=0.2),
    Cut(5.0, min_p=0.001),
    Cut(5.0, min_p=0.001, top_p=0.9),
    Cut(2.0, k=900, top_p=0.95),
    Cut(2.0, k=10**6, top_p=0.95),
    Cut(1.0, k=50, top_p=0.8, min_p=0.01),
    Cut(1.0, k=1),
    Cut(1.0, min_p=1.0),
]


def brute(row: torch.Tensor, cut: Cut) -> torch.Tensor:
    z, ids = row.double().sort(descending=True, stable=True)
    w = ((z - z[0]) / cut.temperature).exp()
    n = int((w >= cut.min_p * (1 - 1e-6)).sum())
    n = min(n, cut.k) if cut.k else n
    mass = w[:n].cumsum(0)
    if cut.top_p < 1:
        n = 1 + int((mass[:-1] < cut.top_p * mass[-1] * (1 - 1e-6)).sum())
    out = torch.zeros_like(row, dtype=torch.float64)
    out[ids[:n]] = w[:n] / w[:n].sum()
    return out


@pytest.mark.parametrize("cut", CUTS, ids=str)
@pytest.mark.parametrize("spread", [0.0, 0.3, 4.0])
@pytest.mark.parametrize("vocab", [7, 64, 200, 3 * HEADS[1]])
def test_a_cut_equals_a_full_sort_whatever_the_head(vocab: int, spread: float, cut: Cut) -> None:
    x = spread * torch.randn(3, vocab, dtype=torch.float64)
    got = law_rows(x, x.argmax(-1), [cut] * 3)
    want = torch.stack([brute(row, cut) for row in x])
    assert torch.equal(got > 0, want > 0)
    torch.testing.assert_close(got, want, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("vocab", [7, 3 * HEADS[1]])
def test_whole_batch_operations_keep_the_same_tokens(vocab: int, dtype: torch.dtype) -> None:
    gen = torch.Generator().manual_seed(3)
    smooth = 3 * torch.randn(len(CUTS), vocab, dtype=dtype, generator=gen)
    tied = torch.randint(0, 4, (len(CUTS), vocab), generator=gen).to(dtype)
    for x in (smooth, tied):
        points, _ = peaks_of(x)
        want = law_rows(x, points, CUTS)
        got = cut_on_device(x, points, CUTS)
        assert torch.equal(got > 0, want > 0)
        torch.testing.assert_close(got, want, rtol=0, atol=1e-6 if dtype == torch.float32 else 1e-12)


@pytest.mark.parametrize("law", [law_rows, cut_on_device])
def test_on_a_tie_the_lower_ids_are_kept(law: object) -> None:
    x = torch.tensor([[1.0, 2.0, 2.0, 2.0, 2.0, 0.0]] * 3)
    got = law(x, torch.tensor([1, 1, 1]), [Cut(1.0, k=2), Cut(1.0, top_p=0.5), Cut(1.0, min_p=0.9)])  # type: ignore[operator]
    kept = [row.nonzero()[:, 0].tolist() for row in got]
    assert kept == [[1, 2], [1, 2, 3], [1, 2, 3, 4]]


def test_top_k_one_is_greedy_even_on_a_tie() -> None:
    x = torch.tensor([[0.0, 5.0, 5.0]])
    assert law_rows(x, torch.tensor([1]), [Cut(1.0, k=1)]).tolist() == [[0.0, 1.0, 0.0]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_mass_met_exactly_is_met(dtype: torch.dtype) -> None:
    x = torch.tensor([[0.5, 0.3, 0.15, 0.05]], dtype=torch.float64).log().to(dtype)
    for shift in range(-20, 20):
        got = law_rows(x + shift, torch.tensor([0]), [Cut(1.0, top_p=0.8)])
        assert got[0].tolist() == pytest.approx([0.625, 0.375, 0, 0], abs=1e-5)
        got = law_rows(x + shift, torch.tensor([0]), [Cut(1.0, min_p=0.1)])
        assert bool((got > 0).all())


def test_top_p_works_on_what_top_k_leaves() -> None:
    """Negative control: over the whole row .75 needs two tokens, over the two that are left one holds .625."""
    x = torch.tensor([[0.5, 0.3, 0.15, 0.05]], dtype=torch.float64).log()
    assert law_rows(x, torch.tensor([0]), [Cut(1.0, k=2, top_p=0.6)])[0].tolist() == [1, 0, 0, 0]
    assert law_rows(x, torch.tensor([0]), [Cut(1.0, top_p=0.6)])[0].tolist() == pytest.approx([0.625, 0.375, 0, 0])


def test_masked_tokens_stay_out_of_every_law() -> None:
    x = torch.randn(len(CUTS) + 1, 40)
    x[:, 5:] = -torch.inf
    got = law_rows(x, x.argmax(-1), [*CUTS, Cut(1.0)])
    assert bool((got[:, 5:] == 0).all())
    assert torch.allclose(got.sum(-1), torch.ones(len(x)))
    assert torch.allclose(cut_on_device(x[:-1], x[:-1].argmax(-1), CUTS), got[:-1], atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_whole_law_has_the_bits_of_its_definition_in_every_batch(dtype: torch.dtype) -> None:
    x = 9 * torch.randn(5, 1000, dtype=dtype)
    x[1, ::3] = -torch.inf
    cuts = [Cut(t) for t in (1.0, 1.5, 0.3, 1e-3, 1e-30)]
    scale = torch.tensor([cut.temperature for cut in cuts], dtype=dtype)[:, None]
    law = law_rows(x, x.argmax(-1), cuts)
    if kernels.available() and dtype is torch.float32:  # theirs, and closer to the definition than torch's
        want = torch.softmax((x - x.amax(-1, keepdim=True)).double() / scale.double(), -1)
        torch.testing.assert_close(law.double(), want, rtol=1e-5, atol=1e-37)
    else:
        assert torch.equal(law, torch.softmax((x - x.amax(-1, keepdim=True)) / scale, -1))
    for r in range(5):
        assert torch.equal(law_rows(x[r : r + 1], x[r : r + 1].argmax(-1), cuts[r : r + 1])[0], law[r])
    wide = torch.nn.functional.pad(x, (0, 7))[:, :1000]
    assert torch.equal(law_rows(wide, wide.argmax(-1), cuts), law)
