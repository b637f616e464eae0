"""Products for rows of a prompt: against float64, the same bits in any company, and the decoded ones where they are."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

import slipstream.kernels as kernels

if not kernels.available():
    pytest.skip(f"kernels: {kernels.reason()}", allow_module_level=True)

from slipstream.kernels.linear import KINDS, Linear, pack_gguf, unpack

pytestmark = pytest.mark.usefixtures("same_kernels_after")

LEVELS = ("amx", "avx512", "avxvnni", "avx2", "dotprod", "neon", "portable")
SHAPES = ((1, 1), (33, 50), (70, 96), (128, 576), (32, 1025), (40, 3330))  # the last: three strips of groups


@pytest.fixture
def amx() -> None:
    if "amx" not in kernels.levels():
        pytest.skip("this machine lacks the level amx")
    kernels.set_level("amx")
    kernels.set_threads(2)


def rows(count: int, cols: int, seed: int = 0) -> Tensor:
    return torch.randn(count, cols, generator=torch.Generator().manual_seed(seed))


def assert_near(linear: Linear, x: Tensor, bias: Tensor | None, slack: float) -> None:
    """Within `slack` of the weights' size, and float32 rounding, of the float64 product of what is packed."""
    w, exact = unpack(linear.matrix).double(), x.bfloat16().double()
    y, want = linear(x, prompt=True).double(), exact @ w.T + (0 if bias is None else bias.double())
    size = exact.abs() @ w.abs().T + want.abs()
    bound = (slack + 2.0**-19) * size + 2.0**-120 * w.abs().amax()
    assert ((y - want).abs() <= bound).all()


@pytest.mark.usefixtures("amx")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_products_match_float64(kind: str, shape: tuple[int, int]) -> None:
    weight, x = rows(*shape, seed=1), rows(43, shape[1], seed=2)
    for bias in (None, rows(1, shape[0], seed=3)[0]):
        assert_near(Linear(weight, bias, kind), x, bias, 0 if kind == "bf16" else 2.0**-8)


@pytest.mark.usefixtures("amx")
@pytest.mark.parametrize("gguf_type", ["Q4_0", "Q4_1", "Q4_K", "Q8_0"])
def test_weights_that_are_bfloat16_numbers_lose_nothing(gguf_type: str) -> None:
    """Scales of powers of two: every order of codes, pairs and scales is told apart at float32's own precision."""
    per, size = {"Q4_0": (32, 18), "Q4_1": (32, 20), "Q4_K": (256, 144), "Q8_0": (32, 34)}[gguf_type]
    rng = np.random.default_rng(0)
    data = rng.integers(0, 256, (70, 2304 // per, size), dtype=np.uint8)
    for at in range(0, 4 if gguf_type in ("Q4_1", "Q4_K") else 2, 2):
        scales = np.float16(2.0) ** rng.integers(-6, -2, (70, 2304 // per)).astype(np.float16)
        data[:, :, at : at + 2] = scales[..., None].view(np.uint8)
    if gguf_type == "Q4_K":  # factors of three bits, and a minimum on the same grid: at most eight bits in all
        data[:, :, 4:16] &= 0x07
        data[:, :, 2:4] = data[:, :, :2]
    kind = "w8a8" if gguf_type == "Q8_0" else "q4a8"
    linear = Linear.of(pack_gguf(data.reshape(70, -1), gguf_type, 2304, kind))
    weight = unpack(linear.matrix)
    assert torch.equal(weight.bfloat16().float(), weight)
    assert_near(linear, rows(40, 2304, seed=1), None, 0)


@pytest.mark.usefixtures("amx")
@pytest.mark.parametrize("kind", KINDS)
def test_adversarial_rows(kind: str) -> None:
    ramp, sign = torch.linspace(-1, 1, 96), torch.ones(96)
    sign[1::2] = -1
    linear = Linear(rows(40, 96, seed=4), None, kind)
    for x in (torch.zeros(2, 96), torch.stack([ramp * 1e25, sign * 1e25]), torch.stack([ramp * 1e-30, sign * 1e-34])):
        assert_near(linear, x, None, 2.0**-8)
    assert_near(linear, torch.stack([10.0 ** (25 * ramp), sign * 10.0 ** (20 * ramp)]), None, 2.0**-8)
    assert_near(linear, torch.eye(96)[::13], None, 2.0**-8)


@pytest.mark.usefixtures("amx")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_stays_in_its_row(kind: str, bad: float) -> None:
    linear, x = Linear(rows(40, 96, seed=6), None, kind), rows(40, 96, seed=7)
    clean = linear(x, prompt=True)
    x[7, 50] = bad
    y = linear(x, prompt=True)
    others = [r for r in range(40) if r != 7]
    assert torch.equal(y[others], clean[others])
    assert not y[7].isfinite().any()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("level", LEVELS)
def test_a_row_has_the_same_bits_in_any_company(level: str, kind: str) -> None:
    if level not in kernels.levels():
        pytest.skip(f"this machine lacks the level {level}")
    kernels.set_level(level)
    kernels.set_threads(2)
    linear, x = Linear(rows(70, 1700, seed=8), rows(1, 70, seed=9)[0], kind), rows(300, 1700, seed=10)
    whole = linear(x, prompt=True)
    for count in (*range(1, 65), 255, 256, 257):
        assert torch.equal(linear(x[:count], prompt=True), whole[:count]), f"{count} rows"
        assert torch.equal(linear(x[300 - count :], prompt=True), whole[300 - count :]), f"the last {count} rows"
    for count in (1, 2, 4):
        kernels.set_threads(count)
        assert torch.equal(linear(x[:70], prompt=True), whole[:70]), f"{count} threads"
        assert torch.equal(linear(x[3:4], prompt=True), whole[3:4]), f"{count} threads, one row"


@pytest.mark.parametrize("level", LEVELS)
def test_the_role_means_something_where_it_pays(level: str) -> None:
    """On AMX, and for weights that are not bfloat16 already; elsewhere a prompt's rows are decoded rows."""
    if level not in kernels.levels():
        pytest.skip(f"this machine lacks the level {level}")
    kernels.set_level(level)
    x = rows(20, 320, seed=2)
    for kind in KINDS:
        linear = Linear(rows(64, 320, seed=1), None, kind)
        apart = level == "amx" and kind != "bf16"
        assert torch.equal(linear(x), linear(x, prompt=True)) != apart, kind
