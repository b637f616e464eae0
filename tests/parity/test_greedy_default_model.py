"""Greedy decoding of a real model with speculation gives the tokens plain decoding gives, or a certified near-tie.

Float32 unless said. The plain reference is decoded once, all prompts at a time, and certified against transformers;
plain decoding at batch 1 is compared with it. End-of-text is ignored, so that every prompt emits TOKENS tokens.
What takes minutes, the full grid of drafters, lengths and batches included, is marked slow.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from greedy_kit import TAU, Bench, Judge, Scripted, output_of

from slipstream import SamplingParams, build, kernels
from slipstream.config import TargetConfig
from slipstream.measure.workloads import load_prompts
from slipstream.types import Draft, Laws, Rngs, Sequence, Verdict

pytestmark = pytest.mark.model

MODEL = "smollm2-135m-instruct"
ITSELF = f"draft_model:{MODEL}"
TOKENS, SHORT = 128, 48
FEW = (0, 6, 14)  # edit code, translate keys, free text

Prompts = list[list[int]]


@pytest.fixture(scope="module")
def bench() -> Bench:
    return open_bench("float32")


@pytest.fixture(scope="module")
def prompts(bench: Bench) -> Prompts:
    return [bench.opened.tokenizer.chat(p.messages) for p in load_prompts("all")]


@pytest.fixture(scope="module")
def known(bench: Bench, prompts: Prompts) -> Prompts:
    return [output_of(row) for row in bench.run("none", (0,), prompts, rows=len(prompts))]


@pytest.fixture(scope="module")
def judge(bench: Bench) -> Judge:
    return Judge(bench.opened.folder)


def open_bench(dtype: str) -> Bench:
    config = TargetConfig(model=MODEL, dtype=dtype, max_len=640)
    return Bench(build.open_target(config, rows=20, draft_tokens=8), SamplingParams(max_tokens=TOKENS, ignore_eos=True))


def few(values: Prompts) -> Prompts:
    return [values[i] for i in FEW]


def assert_same(judge: Judge, prompts: Prompts, known: Prompts, rows: list[Sequence], tau: float = TAU) -> None:
    verdicts = judge.compare(prompts, known, [output_of(row) for row in rows], tau)
    print(verdicts)
    assert not verdicts.wrong


def test_plain_is_the_argmax_of_an_independent_forward(judge: Judge, prompts: Prompts, known: Prompts) -> None:
    assert len(prompts) == 20
    assert [len(output) for output in known] == [TOKENS] * 20
    gaps = [judge.worst_gap(prompt, output) for prompt, output in zip(prompts, known, strict=True)]
    assert max(gaps) <= TAU


def test_plain_at_batch_1(bench: Bench, judge: Judge, prompts: Prompts, known: Prompts) -> None:
    assert_same(judge, few(prompts), few(known), bench.run("none", (0,), few(prompts), rows=1))


def test_lookup_with_drafts_of_1_3_and_8_in_one_batch_of_4(
    bench: Bench, judge: Judge, prompts: Prompts, known: Prompts
) -> None:
    rows = bench.run("lookup", (1, 3, 8), prompts, rows=4)
    assert_same(judge, prompts, known, rows)
    assert sum(row.stats.num_accepted_tokens for row in rows) > 100  # or nothing was put to the test


def test_lookup_at_batch_1(bench: Bench, judge: Judge, prompts: Prompts, known: Prompts) -> None:
    assert_same(judge, few(prompts), few(known), bench.run("lookup", (8,), few(prompts), rows=1))


def test_the_model_as_its_own_draft_is_always_accepted(
    bench: Bench, judge: Judge, prompts: Prompts, known: Prompts
) -> None:
    rows = bench.run(ITSELF, (3,), few(prompts), rows=4)
    assert_same(judge, few(prompts), few(known), rows)
    for row, output in zip(rows, few(known), strict=True):
        if output_of(row) == output:
            assert row.stats.draft_acceptance_rate == 1.0
            assert row.stats.target_passes == TOKENS // 4


class TestScripted:
    """Drafts that are right, or wrong, on purpose: every accept length, in every position of the draft."""

    @pytest.fixture
    def short(self, bench: Bench) -> Bench:
        return Bench(bench.opened, replace(bench.params, max_tokens=SHORT))

    def run(self, bench: Bench, drafter: Scripted, length: int, judge: Judge) -> list[Sequence]:
        """Decode the scripted prompts and return the rows whose output is the known one, to the token."""
        prompts, known = [list(p) for p in drafter.outputs], list(drafter.outputs.values())
        rows = bench.run(drafter, (length,), prompts, rows=4)
        assert_same(judge, prompts, known, rows)
        return [row for row, output in zip(rows, known, strict=True) if output_of(row) == output]

    def script(self, prompts: Prompts, known: Prompts, right: int, tokens: int = SHORT) -> Scripted:
        outputs = {tuple(p): o[:tokens] for p, o in zip(prompts, known, strict=True)}
        return Scripted(outputs, lambda _: right)

    def test_oracle(self, bench: Bench, judge: Judge, prompts: Prompts, known: Prompts) -> None:
        for row in self.run(bench, self.script(prompts, known, right=8, tokens=TOKENS), 8, judge):
            assert row.stats.num_accepted_tokens == row.stats.num_draft_tokens
            assert row.stats.target_passes == -(-TOKENS // 9)

    def test_never(self, short: Bench, judge: Judge, prompts: Prompts, known: Prompts) -> None:
        for row in self.run(short, self.script(few(prompts), few(known), right=0), 3, judge):
            assert row.stats.num_accepted_tokens == 0
            assert row.stats.target_passes == SHORT

    @pytest.mark.parametrize("right", range(1, 8))
    def test_right_until(self, short: Bench, judge: Judge, prompts: Prompts, known: Prompts, right: int) -> None:
        for row in self.run(short, self.script(few(prompts), few(known), right), 8, judge):
            assert row.stats.target_passes == -(-SHORT // (right + 1))

    def test_a_different_accept_length_every_round(
        self, bench: Bench, judge: Judge, prompts: Prompts, known: Prompts
    ) -> None:
        drafter = self.script(few(prompts), few(known), right=0, tokens=TOKENS)
        drafter.right = lambda rounds: (5 * rounds + 3) % 9
        assert self.run(bench, drafter, 8, judge)


class Believe:
    """A wrong rule, which the certificate must catch: every drafted token stands."""

    lossless, shared_noise, tree = False, False, False

    def __call__(self, draft: Draft, p: Laws, rngs: Rngs) -> Verdict:
        accepted = draft.length - 1
        nodes = torch.arange(1, draft.nodes).expand(len(accepted), -1)
        path = torch.where(nodes <= accepted[:, None], nodes, -1)
        return Verdict(path, accepted, p.points.gather(1, accepted[:, None])[:, 0])


def test_the_certificate_catches_a_rule_that_believes_the_drafter(
    bench: Bench, judge: Judge, prompts: Prompts, known: Prompts
) -> None:
    rows = bench.run("lookup", (3,), few(prompts), rows=4, rule=Believe())
    assert judge.compare(few(prompts), few(known), [output_of(row) for row in rows], TAU).wrong


def test_the_certificate_catches_one_token_that_is_second_best(judge: Judge, prompts: Prompts, known: Prompts) -> None:
    output = list(known[0])
    output[-1] ^= 1
    assert judge.gaps(prompts[0], output)[:-1].max() <= TAU
    assert judge.worst_gap(prompts[0], output) > TAU


@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.slow), 4])
def test_bfloat16_differs_only_in_certified_near_ties(
    judge: Judge, prompts: Prompts, every: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In torch: the CPU kernels have no such differences (test_kernels_greedy)."""
    monkeypatch.setattr(kernels, "_reason", "torch is what is tested here")
    bench, chosen = open_bench("bfloat16"), prompts[::every]
    plain = [output_of(row) for row in bench.run("none", (0,), chosen, rows=20)]
    tau = 2 * noise(bench, chosen[0], plain[0])
    found = [output_of(row) for row in bench.run("lookup", (8,), chosen, rows=4)]
    verdicts = judge.compare(chosen, plain, found, tau)
    gaps = torch.cat([judge.gaps(p, o) for p, o in zip(chosen, found, strict=True)])
    with capsys.disabled():
        print(f"\n  bfloat16, tau {tau:.2f}: {verdicts}; {int((gaps > 0).sum())} of {len(gaps)} tokens not the argmax")
    assert not verdicts.wrong
    assert gaps.max() <= tau
    assert tau < 4  # a tau that certifies anything proves nothing


def noise(bench: Bench, prompt: list[int], output: list[int]) -> float:
    """The largest change of a logit between scoring one node at a time and nine at once, on the same prefixes."""
    target, worst = bench.opened.target, 0.0
    text = prompt + output
    with torch.inference_mode():
        target.prefill(0, text[: len(prompt) - 1])
        for start in range(len(prompt) - 1, len(text) - 9, 9):
            many = target.score([0], chain(text[start : start + 9])).logits[0].float()
            for i in range(9):
                one = target.score([0], chain(text[start + i : start + i + 1])).logits[0, 0].float()
                worst = max(worst, float((many[i] - one).abs().max()))
                target.commit([0], [[]])
        target.release(0)
    return worst


def chain(tokens: list[int]) -> Draft:
    n = len(tokens)
    return Draft(torch.tensor([tokens]), torch.arange(-1, n - 1)[None], torch.tensor([n]), torch.zeros(1, n).long())


@pytest.mark.slow
@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("length", [1, 3, 8])
@pytest.mark.parametrize("drafter", ["none", "lookup", ITSELF])
def test_full_grid(
    bench: Bench, judge: Judge, prompts: Prompts, known: Prompts, drafter: str, length: int, rows: int
) -> None:
    if drafter == "none" and length > 1:
        pytest.skip("drafter none has no draft length")
    assert_same(judge, prompts, known, bench.run(drafter, (0 if drafter == "none" else length,), prompts, rows))
