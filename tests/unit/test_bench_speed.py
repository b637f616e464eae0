"""A speed-up is stated only where outputs agree; the certificate decides, and the words say which case it is."""

from __future__ import annotations

import json
from typing import Any

import pytest

from slipstream.measure import bench, bench_overhead, bench_speed
from slipstream.measure.agreement import Agreement, Notary, statement
from slipstream.measure.bench_speed import PromptResult, SpeedResult
from slipstream.measure.certify import Certificate
from slipstream.measure.timing import Timing


def timing(seconds: float, passes: int = 4) -> Timing:
    parts = {"prefill_seconds": 0.5, "draft_seconds": 0.1, "target_seconds": seconds - 0.2, "other_seconds": 0.1}
    stats = {**parts, "target_passes": passes, "mean_acceptance_length": 8 / passes}
    return Timing(list(range(8)), seconds, seconds + 0.75, stats)


def prompt(name: str, agreement: Agreement) -> PromptResult:
    return PromptResult(name, [timing(2.0, 8)] * 2, [timing(1.0)] * 2, agreement)


EQUAL = Agreement(True)
NEAR = Agreement(False, 3, Certificate(tau=0.5, exact=7, near_ties=1, largest_gap=0.25))
WRONG = Agreement(False, 3, Certificate(tau=0.5, exact=7, largest_gap=4.0, refused=[(3, 17, 4.0)]))


def test_equal_outputs_give_rates_ratio_and_acceptance_length() -> None:
    result = SpeedResult("title", [prompt("one", EQUAL), prompt("two", EQUAL)])
    assert result.holds
    assert (result.rate("plain"), result.rate("drafted"), result.acceptance_length) == (4.0, 8.0, 2.0)
    text = bench_speed.show(result, "lookup")
    assert "2.00x (95 %: 2.00-2.00); with prefill 1.57x" in text
    assert "outputs identical" in text


def test_near_ties_are_named_with_gap_and_tau() -> None:
    result = SpeedResult("title", [prompt("one", EQUAL), prompt("two", NEAR)])
    text = bench_speed.show(result, "lookup")
    assert "identical on 1 of 2 prompts" in text
    assert "largest gap 0.25, tau 0.5" in text
    assert "2.00x" in text


def test_no_speed_up_where_an_output_is_wrong() -> None:
    result = SpeedResult("title", [prompt("one", EQUAL), prompt("two", WRONG)])
    text = bench_speed.show(result, "lookup")
    assert "no speed-up is stated" in text
    assert "95 %" not in text
    assert "DIFFERENT" in text
    found = json.loads(json.dumps(result.as_dict()))
    assert found["speed_up"] is None
    assert found["speed_up_with_prefill"] is None


def test_statement_of_wrong_outputs_says_so() -> None:
    assert statement([EQUAL]) == "outputs identical"
    assert "differ beyond rounding on 1 of 2" in statement([EQUAL, WRONG])


def test_where_the_time_went_is_summed_over_prompts() -> None:
    result = SpeedResult("title", [prompt("one", EQUAL), prompt("two", EQUAL)])
    assert result.seconds("plain")["target_seconds"] == pytest.approx(3.6)


class NoReference:
    """An LLM that must not be asked for anything."""


def test_equal_outputs_need_no_reference() -> None:
    assert Notary(NoReference()).compare([1], [2, 3], [2, 3]) == EQUAL  # type: ignore[arg-type]


def overhead_row(**changes: Any) -> dict[str, Any]:
    row = {"model": "m", "dtype": "float32", "temperature": 0.0, "drafter": "lookup", "rounds": 9}
    return {
        **row,
        "target_ms": 40.0,
        "draft_ms": 0.5,
        "other_ms": 1.0,
        "outside_ms": 0.1,
        "draft_percent": 1.25,
        "other_percent": 2.5,
        **changes,
    }


def test_overhead_limits_are_per_drafter() -> None:
    assert bench_overhead.within_limits([overhead_row()])
    assert not bench_overhead.within_limits([overhead_row(other_percent=5.1)])
    assert not bench_overhead.within_limits([overhead_row(drafter="none")])
    assert bench_overhead.within_limits([overhead_row(drafter="draft_model", other_percent=9.0)])
    assert bench_overhead.within_limits([overhead_row(temperature=0.7, other_percent=9.0)])


def test_overhead_table_shows_drafting_with_and_without() -> None:
    line = bench_overhead.show([overhead_row()]).split("\n")[-1].split()
    assert line == ["float32", "0", "lookup", "40.00", "0.50", "1.00", "0.10", "2.50", "5", "3.75"]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--repeats", "0"], "repeats=0"),
        (["--max-tokens", "0"], "max_tokens=0"),
        (["--model", "no-such-model"], "no-such-model"),
        (["--draft-tokens", "many"], "many"),
        (["--drafter", "lookupp"], "lookup"),
    ],
)
def test_a_wrong_request_is_one_line_and_status_2(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench.main(argv) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err
    assert len(captured.err.strip().split("\n")) == 1


@pytest.mark.model
def test_quick_run_prints_one_json_object(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["--only", "speed", "--quick", "--prompts", "grounded", "--max-tokens", "12", "--dtype", "float32", "--json"]
    assert bench.main(argv) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["speed"]["grounded"]["prompts"]) == 2
    assert found["speed"]["grounded"]["speed_up"]["value"] > 0
    assert found["record"]["prompts_hash"].startswith("sha256:")


@pytest.mark.model
def test_notary_certifies_what_the_model_says_and_refuses_what_it_does_not() -> None:
    from slipstream import LLM, SamplingParams

    llm = LLM("smollm2-135m-instruct", "lookup", dtype="float32", max_model_len=64, max_rows=1)
    ids = llm.encode("The three primary colours are")
    output = llm.generate(ids, SamplingParams(max_tokens=8, ignore_eos=True)).token_ids
    notary = Notary(llm)
    assert notary.compare(ids, [*output[:-1], output[-1] ^ 1], output).holds
    wrong = [*output[:4], output[4] ^ 1, *output[5:]]
    found = notary.compare(ids, output, wrong)
    assert not found.holds
    assert found.position == 4
    assert found.certificate is not None
    assert found.certificate.refused[0][0] == 4
