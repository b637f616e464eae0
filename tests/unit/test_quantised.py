"""8-bit and 4-bit weights for an accelerator: on the products of the CPU, and the kernel interpreted."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from slipstream import decoders
from slipstream.control.budget import FixedBudget
from slipstream.drafters.lookup import Lookup
from slipstream.drafters.none import NoDraft
from slipstream.engine import Engine, EngineOptions
from slipstream.nets import quantised
from slipstream.nets.decoder import load_decoder
from slipstream.nets.quantised import GROUP, QuantisedLinear, eight_bits, four_bits, lacking
from slipstream.targets.native import NativeTarget
from slipstream.types import RequestError, SamplingParams, Sequence
from slipstream.verify import RULES
from tiny_model import make_model

four = pytest.mark.skipif(bool(lacking("int4", "cpu")), reason=f"no 4-bit product: {lacking('int4', 'cpu')}")
BITS = [8, pytest.param(4, marks=four)]


def drawn(*size: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize(("outputs", "inputs"), [(48, 64), (1, 32), (37, 96), (5000, 128)])
def test_a_map_multiplies_by_what_its_codes_stand_for(bits: int, outputs: int, inputs: int) -> None:
    weight, bias, x = (
        drawn(*size, seed=len(size) + size[0]).bfloat16() for size in ((outputs, inputs), (outputs,), (5, inputs))
    )
    if bits == 8:
        codes, scale = eight_bits(weight)
        held = codes.double() * scale[:, None]
    else:
        codes, factors = four_bits(weight)
        scale, offset = (part.T[..., None].double() for part in factors.unbind(-1))
        held = ((codes.view(outputs, -1, GROUP).double() - 8) * scale + offset).view(outputs, inputs)
    made = QuantisedLinear(weight, bias, bits=bits)
    exact = x.double() @ held.T + bias
    found = made(x)
    assert found.shape == (5, outputs)
    assert found.dtype is torch.bfloat16
    assert (found - exact).norm() < (0.02 if bits == 8 else 0.03) * exact.norm()
    assert (held - weight).abs().max() <= (0.004 if bits == 8 else 0.08) * weight.abs().max()
    assert made.nbytes < weight.nbytes / 2 * (1.2 if bits == 8 else 0.9) + 4096


def test_weights_of_a_four_bit_file_find_their_codes_again() -> None:
    """Also those of groups that do not use the first and the last of the 16 codes."""
    codes = torch.randint(2, 13, (64, 8, GROUP), generator=torch.Generator().manual_seed(0))
    codes[..., 0], codes[..., 1] = 2, 12
    scale, low = drawn(64, 8, 1).abs() * 0.01 + 0.01, -drawn(64, 8, 1, seed=1).abs() * 0.1
    weight = (codes * scale + low).view(64, -1)
    found, factors = four_bits(weight)
    found, (steps, offset) = (
        found.view(64, 8, GROUP).float(),
        (part.T[..., None].float() for part in factors.unbind(-1)),
    )
    assert ((found - 8) * steps + offset - codes * scale - low).abs().max() < 0.1 * scale.max()
    assert (found - found[..., :1] == codes - codes[..., :1]).float().mean() > 0.99


def test_equal_weights_and_zeros_are_kept() -> None:
    for weight in (torch.zeros(16, 32), torch.full((16, 32), -0.5)):
        codes, scale = eight_bits(weight)
        assert torch.allclose(codes * scale[:, None], weight)
        codes, factors = four_bits(weight)
        assert torch.equal((codes.float() - 8) * factors[0, :, :1] + factors[0, :, 1:], weight)


def test_widths_that_four_bits_cannot_group_are_refused() -> None:
    with pytest.raises(RequestError, match="a multiple of 32 inputs, not 48; use int8"):
        four_bits(torch.zeros(16, 48))


@pytest.mark.parametrize("quantize", ["int8", pytest.param("int4", marks=four)])
def test_a_model_runs_on_packed_weights_and_speculation_keeps_its_text(quantize: str, tmp_path: Path) -> None:
    folder = make_model(tmp_path / "tiny", layers=3)
    whole = load_decoder(folder, torch.bfloat16, max_rows=2)
    packed = load_decoder(folder, torch.bfloat16, max_rows=2, quantize=quantize)
    assert packed.net.weights.nbytes < whole.net.weights.nbytes
    ids = torch.tensor([[3, 4, 5, 6, 7]])
    ours, theirs = packed.nodes([0], ids)[0].float(), whole.nodes([0], ids)[0].float()
    assert 0 < (ours - theirs).norm() < (0.05 if quantize == "int8" else 0.4) * theirs.norm()
    texts = []
    for drafter in (NoDraft(), Lookup(vocab=260)):
        engine = Engine(NativeTarget(packed), drafter, RULES["auto"], FixedBudget(4), EngineOptions(max_rows=2))
        rows = [Sequence(i, [5, 6, 7] * 4, 12, SamplingParams(max_tokens=30)) for i in range(2)]
        for row in rows:
            engine.add(row)
        while not engine.idle:
            engine.step()
        texts.append([row.tokens for row in rows])
    assert texts[0] == texts[1]


def test_the_way_on_an_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantised, "lacking", lambda quantize, device: "" if quantize == "int8" else "no such product")
    way = decoders.choose_way("int8", torch.bfloat16, "cuda")
    assert (way.kernels, way.quantize) == (False, "int8")
    assert way.note == "target: torch on cuda, 8-bit weights"
    for quantize, dtype, said in (
        ("int4", torch.bfloat16, r"int4 is not available on cuda \(no such product\); use none, or device cpu"),
        ("w8a8", torch.bfloat16, "w8a8 is not available on cuda; use int8, int4 or none"),
        ("int8", torch.float16, "int8 on cuda needs dtype bfloat16, not float16"),
    ):
        with pytest.raises(RequestError, match=said):
            decoders.choose_way(quantize, dtype, "cuda")


def test_the_chosen_format_is_what_is_loaded(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "tiny")
    decoder = decoders.open_decoder(folder, decoders.Way(False, "int8"), torch.bfloat16, "cpu")
    assert isinstance(decoder.net.weights.head, QuantisedLinear)
    assert all(isinstance(layer.down, QuantisedLinear) for layer in decoder.net.weights.layers)


INTERPRETED = """
import torch
from slipstream.nets.int8_rows import int8_rows
from slipstream.nets.quantised import eight_bits
g = torch.Generator().manual_seed(0)
for rows, outputs, inputs in ((1, 40, 96), (5, 33, 300), (17, 64, 50), (130, 70, 64), (3, 4100, 48)):
    codes, scales = eight_bits(torch.randn(outputs, inputs, generator=g))
    x = torch.randn(rows, inputs, generator=g).half()  # the interpreter cannot multiply in bfloat16
    found, exact = int8_rows(x, codes, scales), x.double() @ codes.double().T * scales.double()
    assert (found - exact).abs().max() < 1e-3 * exact.abs().max(), (rows, outputs, inputs)
    if rows < 20:
        assert torch.equal(int8_rows(x[-1:].contiguous(), codes, scales), found[-1:])
"""


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
def test_the_kernel_of_eight_bits_interpreted() -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERPRETED],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("quantize", ["int8", pytest.param("int4", marks=four)])
def test_a_product_that_mixes_inputs_up_is_noticed(quantize: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lacking.cache_clear()
    assert lacking(quantize, "cpu") == ""
    lacking.cache_clear()
    call = QuantisedLinear.__call__
    swapped = [i ^ 1 for i in range(2 * GROUP)]
    monkeypatch.setattr(QuantisedLinear, "__call__", lambda self, x: call(self, x[:, swapped]))
    assert "product is wrong here" in lacking(quantize, "cpu")
    lacking.cache_clear()
