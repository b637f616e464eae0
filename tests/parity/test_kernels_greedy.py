"""Greedy speculative text is plain text, bit for bit, on the kernels: tiny models and the default one."""

from __future__ import annotations

from pathlib import Path

import pytest
from greedy_kit import Bench, Scripted, output_of
from kernels_kit import needs_kernels

from slipstream import SamplingParams, build
from slipstream.config import TargetConfig
from tiny_model import make_model

pytestmark = needs_kernels
FORMATS = ["none", "int4", "int8", "w8a8"]
PROMPTS = [
    "Write one two three four five, then one two three four five again.",
    "def add(a, b):\n    return a + b\n\n\ndef sub(a, b):\n",
    "List the days of the week in English, one per line.",
]


def open_bench(model: str, quantize: str, count: int) -> tuple[Bench, list[list[int]]]:
    opened = build.open_target(TargetConfig(model=model, quantize=quantize, dtype="bfloat16"), rows=4, draft_tokens=12)
    prompts = [opened.tokenizer.encode(text) for text in PROMPTS]
    return Bench(opened, SamplingParams(max_tokens=count, ignore_eos=True)), prompts


def check(bench: Bench, prompts: list[list[int]]) -> None:
    """Compare lookup and scripted drafts, several lengths and rows at once, with plain decoding one row at a time."""
    plain = [output_of(row) for row in bench.run("none", (0,), prompts, rows=1)]
    known = {tuple(p): o for p, o in zip(prompts, plain, strict=True)}
    for drafter, lengths, rows in (
        ("lookup", (1, 3, 10), 4),
        ("lookup", (12,), 1),
        (Scripted(known, lambda rounds: (5 * rounds + 3) % 9), (8,), 2),
        ("none", (0,), 3),
    ):
        found = [output_of(row) for row in bench.run(drafter, lengths, prompts, rows)]
        assert found == plain, f"{drafter} {lengths} in {rows} rows"


@pytest.mark.parametrize("quantize", FORMATS)
def test_tiny_model(quantize: str, tmp_path: Path) -> None:
    check(*open_bench(str(make_model(tmp_path, layers=3)), quantize, 40))


@pytest.mark.model
@pytest.mark.parametrize("quantize", ["none", "int4"])
def test_default_model(quantize: str) -> None:
    check(*open_bench("smollm2-135m-instruct", quantize, 48))


@pytest.mark.big
@pytest.mark.parametrize("quantize", ["int4"])
def test_big_model_with_a_draft_model(quantize: str) -> None:
    bench, prompts = open_bench("qwen2.5-coder-1.5b-instruct", quantize, 48)
    plain = [output_of(row) for row in bench.run("none", (0,), prompts, rows=1)]
    for drafter in ("lookup", "draft_model:qwen2.5-coder-0.5b-instruct"):
        assert [output_of(row) for row in bench.run(drafter, (4,), prompts, rows=3)] == plain
