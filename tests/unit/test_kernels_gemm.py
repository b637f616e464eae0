"""The packed products of the CPU kernels: every level and kind against float64, and the same bits in any company."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import Tensor

import slipstream.kernels as kernels

if not kernels.available():
    pytest.skip(f"kernels: {kernels.reason()}", allow_module_level=True)

from slipstream.kernels.linear import GGUF_TYPES, KINDS, Linear, keeps_codes, pack, pack_gguf, unpack

LEVELS = ("amx", "avx512", "avxvnni", "avx2", "dotprod", "neon", "portable")
SHAPES = ((1, 1), (33, 50), (70, 96), (128, 576), (32, 1025))
BLOCK = {"Q4_0": (32, 18), "Q4_1": (32, 20), "Q4_K": (256, 144), "Q8_0": (32, 34)}


def rows(count: int, cols: int, seed: int = 0) -> Tensor:
    return torch.randn(count, cols, generator=torch.Generator().manual_seed(seed))


def rounded(x: Tensor, kind: str) -> tuple[Tensor, Tensor]:
    """What activations are rounded to, in float64, and a bound of the error per value of that rounding."""
    if not kind.endswith("a8"):
        return x.bfloat16().double(), torch.zeros_like(x, dtype=torch.float64)
    pad = -x.shape[1] % 32
    groups = torch.nn.functional.pad(x, (0, pad)).reshape(x.shape[0], -1, 32)
    most = groups.abs().amax(-1, keepdim=True).double()
    off = torch.where(most < 2.0**-100, most, 0.5001 * most / 127)  # what lies below 2^-100 becomes zero
    off = off.expand_as(groups).reshape(x.shape[0], -1)[:, : x.shape[1]]
    return x.double(), off


def check(linear: Linear, x: Tensor, bias: Tensor | None, kind: str) -> None:
    """Within float32 rounding of the float64 product of the packed values; 8-bit activations within their rounding."""
    w = unpack(linear.matrix).double()
    exact, off = rounded(x, kind)
    y, want = linear(x).double(), exact @ w.T + (0 if bias is None else bias.double())
    # codes times inputs, and sums of inputs times m, are added apart: both sizes bound the float32 rounding
    spread = (w.amax(1) - w.amin(1)).clamp_min(w.abs().amax(1))
    size = exact.abs().sum(1, keepdim=True) * spread * 2 + want.abs()
    bound = 2.0**-22 * size + off @ w.abs().T * 1.001 + 2.0**-120 * w.abs().amax()
    worst = ((y - want).abs() / bound.clamp_min(1e-300)).amax()
    assert worst <= 1, f"{worst:.2f} times the bound"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_products_match_float64(level: str, kind: str, shape: tuple[int, int]) -> None:
    weight, x = rows(*shape, seed=1), rows(19, shape[1], seed=2)
    for bias in (None, rows(1, shape[0], seed=3)[0]):
        check(Linear(weight, bias, kind), x, bias, kind)


def adversarial(cols: int) -> dict[str, Tensor]:
    ramp = torch.linspace(-1, 1, cols)
    sign = torch.ones(cols)
    sign[1::2] = -1
    return {
        "zeros": torch.zeros(2, cols),
        "huge": torch.stack([ramp * 1e25, sign * 1e25]),
        "tiny": torch.stack([ramp * 1e-30, sign * 1e-34]),
        "denormal": torch.stack([ramp * 1e-39, sign * 1e-40]),
        "one-hot": torch.eye(cols)[:: cols // 7],
        "mixed sizes": torch.stack([10.0 ** (25 * ramp), sign * 10.0 ** (20 * ramp)]),
        "cancelling": sign.expand(2, cols).contiguous() * 1e4,
        "powers of two": torch.stack(
            [2.0 ** torch.arange(cols).remainder(40), -(2.0 ** torch.arange(cols).remainder(9))]
        ),
    }


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", adversarial(96))
def test_adversarial_rows_match_float64(level: str, kind: str, name: str) -> None:
    check(Linear(rows(40, 96, seed=4), None, kind), adversarial(96)[name], None, kind)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["constant", "zeros", "one large", "tiny", "integers"])
def test_adversarial_weights_match_float64(level: str, kind: str, name: str) -> None:
    weight = {
        "constant": torch.full((40, 96), 0.3),
        "zeros": torch.zeros(40, 96),
        "one large": torch.cat([torch.full((40, 1), 900.0), rows(40, 95) * 1e-3], 1),
        "tiny": rows(40, 96) * 1e-6,
        "integers": torch.arange(40 * 96).reshape(40, 96).remainder(16).float(),
    }[name]
    linear, x = Linear(weight, None, kind), rows(5, 96, seed=5)
    check(linear, x, None, kind)
    if name == "integers":
        assert torch.equal(unpack(linear.matrix), weight) or kind in ("q8", "w8a8")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_stays_in_its_row(level: str, kind: str, bad: float) -> None:
    linear, x = Linear(rows(40, 96, seed=6), None, kind), rows(20, 96, seed=7)
    clean = linear(x)
    x[7, 50] = bad
    y = linear(x)
    others = [r for r in range(20) if r != 7]
    assert torch.equal(y[others], clean[others])
    assert not y[7].isfinite().any()


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_has_the_same_bits_in_any_company(level: str, kind: str) -> None:
    linear, x = Linear(rows(70, 1100, seed=8), rows(1, 70, seed=9)[0], kind), rows(40, 1100, seed=10)
    whole = linear(x)
    for count in range(1, 41):
        assert torch.equal(linear(x[:count]), whole[:count]), f"{count} rows"
        assert torch.equal(linear(x[40 - count :]), whole[40 - count :]), f"the last {count} rows"
    for row in range(40):
        assert torch.equal(linear(x[row : row + 1]), whole[row : row + 1]), f"row {row} alone"
    for count in (1, 2, 4):
        kernels.set_threads(count)
        assert torch.equal(linear(x), whole), f"{count} threads"
        assert torch.equal(linear(x[3:4]), whole[3:4]), f"{count} threads, one row"


def test_rows_are_told_apart(level: str) -> None:
    """The comparison above would notice: one bit of one input changes its row alone."""
    linear, x = Linear(rows(33, 64, seed=1), None, "bf16"), rows(8, 64, seed=2)
    before = linear(x)
    x[5, 3] += 1
    changed = (linear(x) != before).any(1)
    assert changed.tolist() == [row == 5 for row in range(8)]


@pytest.mark.parametrize("kind", KINDS)
def test_dtypes_and_empty_calls(level: str, kind: str) -> None:
    linear, x = Linear(rows(33, 64, seed=1), None, kind), rows(3, 64, seed=2).bfloat16()
    assert linear(x).dtype is torch.bfloat16
    assert torch.equal(linear(x), linear(x.float()).bfloat16())
    assert linear(x[:0]).shape == (0, 33)
    assert torch.equal(linear(x.T.contiguous().T), linear(x))
    assert linear.nbytes > 0


def random_blocks(gguf_type: str, out: int, cols: int, seed: int = 0) -> np.ndarray:
    """Random codes under finite scales, as the rows of a GGUF tensor."""
    per, size = BLOCK[gguf_type]
    rng = np.random.default_rng(seed)
    data = rng.integers(0, 256, (out, cols // per, size), dtype=np.uint8)
    for at in range(0, 4 if gguf_type in ("Q4_1", "Q4_K") else 2, 2):
        scales = rng.normal(size=(out, cols // per)).astype(np.float16) / np.float16(64)
        data[:, :, at : at + 2] = scales[..., None].view(np.uint8)
    if gguf_type == "Q8_0":
        data[:, :, 2:][data[:, :, 2:] == 128] = 0
    return data.reshape(out, -1)


@pytest.mark.parametrize("gguf_type", GGUF_TYPES)
def test_gguf_codes_are_exact(level: str, gguf_type: str) -> None:
    from gguf import GGMLQuantizationType, dequantize

    data = random_blocks(gguf_type, 40, 512)
    want = torch.from_numpy(dequantize(data, GGMLQuantizationType[gguf_type]))
    for kind in KINDS:
        if not keeps_codes(gguf_type, kind):
            with pytest.raises(ValueError, match=gguf_type):
                pack_gguf(data, gguf_type, 512, kind)
            continue
        linear = Linear.of(pack_gguf(data, gguf_type, 512, kind))
        assert torch.equal(unpack(linear.matrix), want)
        check(linear, rows(9, 512, seed=3), None, kind)


@pytest.mark.parametrize(
    ("gguf_type", "values", "size", "scale"), [("Q5_0", 32, 22, 0), ("Q6_K", 256, 210, 208), ("Q8_0", 32, 34, 0)]
)
def test_finer_blocks_are_rounded_as_the_values_they_stand_for(gguf_type, values, size, scale) -> None:
    from gguf import GGMLQuantizationType, dequantize

    rng = np.random.default_rng(7)
    data = rng.integers(0, 256, (40, 512 // values, size), dtype=np.uint8)
    scales = rng.normal(size=data.shape[:2]).astype(np.float16) / np.float16(64)
    data[:, :, scale : scale + 2] = scales[..., None].view(np.uint8)
    data = data.reshape(40, -1)
    weight = torch.from_numpy(dequantize(data, GGMLQuantizationType[gguf_type]))
    native, source = kernels.native(), gguf_type.lower()
    for kind in KINDS:
        if keeps_codes(gguf_type, kind):
            continue  # a test of its own
        matrix = native.matrix(getattr(native.Kind, kind), getattr(native.Source, source), 40, 512, 0)
        matrix.pack(getattr(native.Source, source), data.ctypes.data, 0, 40)
        assert torch.equal(unpack(matrix), unpack(pack(weight, None, kind))), kind


@pytest.mark.parametrize("gguf_type", GGUF_TYPES)
def test_gguf_rows_keep_their_bits_too(level: str, gguf_type: str) -> None:
    kinds = [kind for kind in KINDS if keeps_codes(gguf_type, kind)]
    x = rows(33, 2304, seed=4)
    for kind in kinds:
        linear = Linear.of(pack_gguf(random_blocks(gguf_type, 64, 2304), gguf_type, 2304, kind))
        whole = linear(x)
        for count in (1, 2, 3, 4, 5, 8, 15, 16, 17, 32):
            assert torch.equal(linear(x[:count]), whole[:count]), f"{kind}: {count} rows"


def test_rounding_is_the_same_on_every_level(level: str) -> None:
    weight = rows(40, 330, seed=6)
    for kind in KINDS:
        here = unpack(pack(weight, None, kind))
        kernels.set_level("portable")
        assert torch.equal(here, unpack(pack(weight, None, kind))), kind
        kernels.set_level(level)


def test_four_bits_fit_better_than_first_and_last(level: str) -> None:
    weight = rows(32, 128, seed=5)
    low, high = weight.reshape(32, -1, 32).amin(-1), weight.reshape(32, -1, 32).amax(-1)
    step = ((high - low) / 15)[..., None]
    plain = ((weight.reshape(32, -1, 32) - low[..., None]) / step).round() * step + low[..., None]
    fitted = unpack(pack(weight, None, "q4"))
    assert (fitted - weight).square().mean() < (plain.reshape(32, 128) - weight).square().mean()


def test_refusals_name_what_is_wrong() -> None:
    weight = torch.zeros(4, 8)
    with pytest.raises(ValueError, match="q5"):
        Linear(weight, None, "q5")
    with pytest.raises(ValueError, match="bias"):
        Linear(weight, torch.zeros(5), "q4")
    with pytest.raises(ValueError, match="float64"):
        Linear(weight.double(), None, "q4")
    with pytest.raises(ValueError, match="8 inputs"):
        Linear(weight, None, "q4")(torch.zeros(2, 9))
    with pytest.raises(ValueError, match="256"):
        pack_gguf(np.zeros((1, 144), np.uint8), "Q4_K", 300, "q4")
    with pytest.raises(ValueError, match="Q6_K"):
        pack_gguf(np.zeros((1, 210), np.uint8), "Q6_K", 256, "q4")
    with pytest.raises(ValueError, match="at least 1"):
        kernels.set_threads(0)


def run(code: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **env}, capture_output=True, text=True, timeout=120
    )


def test_the_environment_forces_a_level() -> None:
    for name in kernels.levels():
        assert run("import slipstream.kernels as k; print(k.level())", SLIPSTREAM_KERNELS=name).stdout.strip() == name


def test_a_level_that_is_not_here_is_an_error_with_its_name() -> None:
    absent = next(name for name in LEVELS if name not in kernels.levels())
    for name, word in ((absent, "not available"), ("mmx", "unknown")):
        said = run("import slipstream.kernels as k; print(k.available(), k.reason())", SLIPSTREAM_KERNELS=name).stdout
        assert said.startswith("False")
        assert name in said
        assert word in said
        with pytest.raises(ValueError, match=name):
            kernels.set_level(name)


def test_without_the_extension_the_package_says_why() -> None:
    code = (
        "import sys; sys.modules['slipstream.kernels._native'] = None\n"
        "import slipstream.kernels as k; print(k.available(), k.reason()); k.levels()"
    )
    done = run(code)
    assert done.stdout.startswith("False the extension is not there")
    assert "RuntimeError: the CPU kernels are not available" in done.stderr


def test_a_forked_child_makes_its_own_threads() -> None:
    code = (
        "import os, torch, slipstream.kernels as k\n"
        "k.set_threads(2); x = torch.ones(3, 64); linear = k.Linear(torch.ones(40, 64), None, 'q8')\n"
        "linear(x); child = os.fork()\n"
        "ok = bool((linear(x) == linear(x)).all())\n"
        "os._exit(0 if ok else 1) if child == 0 else print(os.waitpid(child, 0)[1])"
    )
    assert run(code).stdout.strip() == "0"
