"""What activations are rounded to, bit for bit, at every level: read off products with a diagonal of weights."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from slipstream import kernels

pytestmark = pytest.mark.skipif(not kernels.available(), reason=f"no kernels: {kernels.reason()}")


@pytest.fixture(params=kernels.levels() if kernels.available() else [], autouse=True)
def level(request: pytest.FixtureRequest) -> Iterator[str]:
    before = kernels.level()
    kernels.set_level(request.param)
    yield request.param
    kernels.set_level(before)


def activations(cols: int) -> torch.Tensor:
    """Rows of many sizes: ordinary, halfway between two roundings, tiny, and all zero."""
    x = torch.randn(19, cols, generator=torch.Generator().manual_seed(cols)) * torch.logspace(-12, 12, 19)[:, None]
    x[3], x[4] = 0, 1 + torch.arange(cols) * 2.0**-8
    x[5] = torch.arange(cols) % 32 - 15.5
    x[5, ::32] = 127
    x[6] *= 1e-30
    return x


@pytest.mark.parametrize("cols", [32, 45, 96, 500])
def test_bfloat16_is_the_nearest(cols: int) -> None:
    x = activations(cols)
    assert torch.equal(kernels.Linear(torch.eye(cols), None, "bf16")(x), x.bfloat16().float())


@pytest.mark.parametrize("cols", [32, 45, 96, 500])
def test_eight_bits_are_the_nearest_in_the_scale_of_their_group(cols: int) -> None:
    x = activations(cols)
    linear = kernels.Linear(torch.eye(cols), None, "w8a8")
    weights = torch.empty(cols, cols)
    linear.matrix.unpack(weights.data_ptr())
    step = weights.diagonal() / 127  # a half float: exact
    groups = torch.nn.functional.pad(x, (0, -cols % 32)).view(19, -1, 32)
    largest = groups.abs().amax(-1, keepdim=True)
    usable = largest >= 7.9e-31
    codes = torch.where(usable, (groups * (127 / largest)).round(), 0.0)  # halves go to the even code
    scale = torch.where(usable, largest / 127, 0.0)
    assert bool(codes[5, 0].abs().max() == 127)
    steps = torch.nn.functional.pad(step, (0, -cols % 32)).view(1, -1, 32)
    expected = (codes * 127 * steps * scale).flatten(1)[:, :cols]
    assert torch.equal(linear(x), expected)
