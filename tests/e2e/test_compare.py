"""The certificate on real passes: plain output holds, a planted error does not, tau is measured where it must be."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from slipstream import LLM, Completion, SamplingParams, build, kernels
from slipstream.cli.compare_cmd import report
from slipstream.config import TargetConfig
from slipstream.measure import compare as measure
from slipstream.measure.agreement import Notary, statement
from slipstream.measure.certify import TAU_FLOAT32, Certificate, certify, measured_tau, replay
from slipstream.measure.certify_draws import certify_draws
from slipstream.nets.decoder import load_decoder
from slipstream.targets.native import NativeTarget

TEXT = "the cat sat on the mat"
PARAMS = SamplingParams(max_tokens=24, ignore_eos=True)


@pytest.fixture(scope="module")
def llm(tiny) -> LLM:
    return LLM(str(tiny), "lookup", dtype="float32")


@pytest.mark.parametrize("chunk", [1, 5, 64])
def test_replay_finds_the_logits_that_chose_each_token(llm, chunk):
    prompt, output = llm.encode(TEXT), llm.generate(TEXT, PARAMS).token_ids
    logits = torch.cat(list(replay(llm.engine.target, prompt, output, chunk)))
    assert logits.argmax(1).tolist() == output
    assert llm.generate(TEXT, PARAMS).token_ids == output  # the target was left empty


def test_plain_output_is_certified_and_a_planted_error_is_not(llm):
    prompt, output = llm.encode(TEXT), llm.generate(TEXT, PARAMS).token_ids
    good, bad = Certificate(TAU_FLOAT32), Certificate(TAU_FLOAT32)
    certify(llm.engine.target, prompt, output, good)
    assert good.holds
    assert good.exact + good.near_ties == 24
    certify(llm.engine.target, prompt, [*output[:9], output[9] ^ 1, *output[10:]], bad)
    assert not bad.holds
    assert bad.refused[0][:2] == (9, output[9] ^ 1)


def test_tau_is_rounding_in_float32_and_larger_in_bfloat16(llm, tiny):
    prompt, output = llm.encode(TEXT), llm.generate(TEXT, PARAMS).token_ids
    low = NativeTarget(load_decoder(tiny, "bfloat16"))
    assert measured_tau(llm.engine.target, prompt, output, 11) < TAU_FLOAT32
    assert TAU_FLOAT32 < measured_tau(low, prompt, output, 11) < 1.0


@pytest.mark.skipif(not kernels.available(), reason=f"no kernels: {kernels.reason()}")
@pytest.mark.parametrize("quantize", ["none", "int4"])
def test_on_the_kernels_no_number_of_rows_moves_a_logit(llm, tiny, quantize):
    prompt, output = llm.encode(TEXT), llm.generate(TEXT, PARAMS).token_ids
    config = TargetConfig(model=str(tiny), dtype="bfloat16", quantize=quantize)
    assert measured_tau(build.open_target(config, rows=1).target, prompt, output, 11) == 0.0


def test_a_near_tie_keeps_the_speed_up_and_an_error_does_not(llm, monkeypatch):
    """Plain output is replaced by one that parts from the drafted one; only the size of tau decides what that means."""
    output = llm.generate(TEXT, PARAMS).token_ids
    original = LLM.generate

    def parted(self, prompts, params=None, **kwargs):
        found = original(self, prompts, params, **kwargs)
        if self.drafter == "lookup" and params.max_tokens == 24:
            found[0].completions[0].token_ids = [*output[:20], output[20] ^ 1]
        return found

    monkeypatch.setattr(LLM, "generate", parted)
    found = measure.compare(llm, [TEXT], PARAMS)
    assert found.agreement == "different"
    assert found.speed_up is None
    assert found.first_difference == {
        "sample": 0,
        "position": 20,
        "plain": [output[20]],
        "drafted": [output[20] ^ 1],
    }
    assert [r[:2] for r in found.certificate.refused] == [(20, output[20] ^ 1)]
    monkeypatch.setattr("slipstream.measure.certify.TAU_LARGEST", 1e9)
    monkeypatch.setattr("slipstream.measure.compare.TAU_FLOAT32", 1e9)
    found = measure.compare(llm, [TEXT], PARAMS)
    assert found.agreement == "near-ties"
    assert found.speed_up is not None
    assert found.certificate.near_ties == 1


def test_an_answer_cut_short_is_no_near_tie(llm, monkeypatch):
    """Every token of it is right, so a certificate alone would let an ending in the wrong place through."""
    output = llm.generate(TEXT, PARAMS).token_ids
    original = LLM.generate

    def cut(self, prompts, params=None, **kwargs):
        found = original(self, prompts, params, **kwargs)
        if self.drafter == "lookup" and params.max_tokens == 24:
            found[0].completions[0].token_ids = output[:15]
        return found

    monkeypatch.setattr(LLM, "generate", cut)
    found = measure.compare(llm, [TEXT], PARAMS)
    assert (found.agreement, found.speed_up) == ("different", None)
    assert any("one output ends where the other goes on" in line for line in report(llm, found))
    told = Notary(llm).compare(llm.encode(TEXT), output, output[:15])
    assert (told.word, told.position) == ("DIFFERENT", 15)
    assert "differ beyond rounding on 1 of 1" in statement([told])


def test_penalties_cannot_be_certified(llm, monkeypatch):
    assert not measure._bare(SamplingParams(presence_penalty=0.5))
    assert not measure._bare(SamplingParams(logit_bias={1: 1.0}))
    assert measure._bare(SamplingParams())


def test_in_low_precision_plain_decoding_itself_may_vouch_for_a_token(llm, tiny):
    low = LLM(str(tiny), "none", dtype="bfloat16")
    prompt, output = low.encode(TEXT), low.generate(TEXT, PARAMS).token_ids
    strict, fair, bad = Certificate(1e-6), Certificate(1e-6), Certificate(1e-6)
    certify(llm.engine.target, prompt, output, strict)
    certify(llm.engine.target, prompt, output, fair, low.engine.target)
    certify(llm.engine.target, prompt, [*output[:5], output[5] ^ 1], bad, low.engine.target)
    assert fair.holds
    assert len(strict.refused) >= len(fair.refused)
    assert [r[0] for r in bad.refused] == [5]


@pytest.mark.parametrize("extra", [{}, {"top_p": 0.9}, {"presence_penalty": 1.0, "min_tokens": 5}])
def test_a_draw_under_shared_noise_is_certified_and_another_draw_is_not(tiny, extra):
    llm = LLM(str(tiny), "lookup", dtype="float32", verify="coupled")
    params = SamplingParams(max_tokens=24, temperature=1.0, seed=4, **extra)
    eos = tuple(llm.tokenizer.eos_ids)
    prompt, found = llm.encode(TEXT), llm.generate(TEXT, params)

    def certificate(tau: float, completion: Completion) -> Certificate:
        made = Certificate(tau)
        certify_draws(llm.engine.target, prompt, completion, params, made, chunk=7, eos_ids=eos)
        return made

    good = certificate(TAU_FLOAT32, found)
    assert good.holds
    assert good.exact + good.near_ties == len(found.token_ids)
    assert not certificate(TAU_FLOAT32, dataclasses.replace(found, seed=5)).holds  # other noise, other races
    assert not certificate(TAU_FLOAT32, dataclasses.replace(found, index=1)).holds
    wrong = dataclasses.replace(found, token_ids=[*found.token_ids[:6], found.token_ids[6] ^ 1])
    assert [r[0] for r in certificate(TAU_FLOAT32, wrong).refused] == [6]
    # worth e^60 it wins its race, but a token outside the kept set (top_p) has no weight to multiply
    assert certificate(60.0, wrong).near_ties == ("top_p" not in extra)


def test_shared_noise_in_bfloat16_never_fails_a_right_comparison(tiny, other):
    llm = LLM(str(tiny), str(other), dtype="bfloat16", verify="coupled")
    params = SamplingParams(max_tokens=60, temperature=1.0, ignore_eos=True, n=4, seed=1)
    assert measure.compare(llm, [TEXT], params).agreement in ("equal", "near-ties")
