"""Greedy decoding of the 1.5B target drafted by the 0.5B model, float32: identical ids, or a certified near-tie."""

from __future__ import annotations

import pytest
from greedy_kit import TAU, Bench, Judge, output_of

from slipstream import SamplingParams, build
from slipstream.config import TargetConfig
from slipstream.measure.workloads import load_prompts

pytestmark = pytest.mark.big

TARGET, DRAFT = "qwen2.5-coder-1.5b-instruct", "draft_model:qwen2.5-coder-0.5b-instruct"
PROMPTS, TOKENS = 2, 48  # of each kind


@pytest.fixture(scope="module")
def bench() -> Bench:
    opened = build.open_target(TargetConfig(model=TARGET, dtype="float32", max_len=640), rows=4, draft_tokens=8)
    return Bench(opened, SamplingParams(max_tokens=TOKENS, ignore_eos=True))


@pytest.fixture(scope="module")
def prompts(bench: Bench) -> list[list[int]]:
    return [bench.opened.tokenizer.chat(p.messages) for p in load_prompts("all", PROMPTS)]


@pytest.fixture(scope="module")
def known(bench: Bench, prompts: list[list[int]]) -> list[list[int]]:
    return [output_of(row) for row in bench.run("none", (0,), prompts, rows=4)]


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize(("drafter", "length"), [(DRAFT, 1), (DRAFT, 3), (DRAFT, 8), ("lookup", 8)])
def test_drafted_equals_plain(
    bench: Bench, prompts: list[list[int]], known: list[list[int]], drafter: str, length: int, rows: int
) -> None:
    found = bench.run(drafter, (length,), prompts, rows)
    outputs = [output_of(row) for row in found]
    if outputs != known:
        verdicts = Judge(bench.opened.folder).compare(prompts, known, outputs, TAU)
        assert not verdicts.wrong
    assert sum(row.stats.num_accepted_tokens for row in found) > 0
