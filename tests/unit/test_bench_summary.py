"""Totals reconcile or say what does not; speed-ups and acceptance come from the runs; what differs has no speed-up."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from slipstream.measure import bench_page, bench_text
from slipstream.measure.bench_plan import PLAIN, Cell, Choice, Plan
from slipstream.measure.bench_runs import PeakMemory, Run, problems
from slipstream.measure.bench_summary import CellSummary, Outputs, Side, Summary, _outputs
from slipstream.measure.report import Ratio
from slipstream.measure.suites import Suite
from slipstream.measure.workloads import Prompt

PLAIN_RUN = Run(
    tokens=[[1] * 12], wall=3.2, seconds={"prefill": 0.2, "draft": 0.0, "target": 2.8, "other": 0.2},
    passes=[12], by_target=[12], memory=1 << 20,
)  # fmt: skip
DRAFTED_RUN = Run(
    tokens=[[1] * 12], wall=1.8, seconds={"prefill": 0.2, "draft": 0.1, "target": 1.2, "other": 0.2},
    passes=[5], by_target=[4], drafts=4, drafted=16, accepted=8, per_position=[4, 3, 1],
)  # fmt: skip


def test_runs_that_add_up_have_no_problems() -> None:
    assert problems(PLAIN_RUN, plain=True) == []
    assert problems(DRAFTED_RUN) == []
    assert problems(Run([[1, 2]], 1.0)) == []  # a peer


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"accepted": 9, "per_position": [5, 3, 1]}, "tokens are those accepted"),
        ({"by_target": [5]}, "tokens are those accepted"),
        ({"passes": [3]}, "every pass"),
        ({"passes": [9]}, "every pass"),
        ({"per_position": [4, 3]}, "position"),
        ({"drafted": 7}, "more is accepted"),
        ({"drafts": 6}, "more drafts"),
        ({"wall": 1.5}, "fit the call"),
    ],
)
def test_each_total_that_does_not_add_up_is_named(changes: dict[str, Any], message: str) -> None:
    assert any(message in said for said in problems(dataclasses.replace(DRAFTED_RUN, **changes)))


def test_plain_decoding_that_saves_passes_is_a_problem() -> None:
    assert problems(DRAFTED_RUN, plain=True) == ["plain decoding is one pass per token"]


def test_a_run_survives_json() -> None:
    assert Run(**json.loads(json.dumps(DRAFTED_RUN.as_dict()))) == DRAFTED_RUN


def test_the_peak_of_memory_is_that_of_this_process() -> None:
    peak = PeakMemory("cpu")
    held = bytearray(64 << 20)
    held[::4096] = b"x" * len(held[::4096])
    assert peak.bytes() > 64 << 20


def side(name: str, run: Run, outputs: Outputs | None = None, factor: float = 1.0) -> Side:
    slow = dataclasses.replace(run, seconds={k: 2 * factor * v for k, v in run.seconds.items()}, wall=2 * run.wall)
    groups = {("a", ("a0",)): [run, run, slow], ("b", ("b0",)): [slow, run, slow]}
    return Side(name, groups, outputs or Outputs(equal=2))


def summary(outputs: Outputs | None = None, wrong: list[str] | None = None, temperature: float = 0.0) -> Summary:
    suite = Suite("s", [Prompt(f"{task}0", task, []) for task in "ab"])
    plan = Plan(suite, [Choice("lookup", 4)], ["hf"], temperatures=[temperature], max_tokens=12)
    peer = side("hf", Run([[1] * 12], 4.0))
    cell = CellSummary(
        Cell(temperature, 1), side(PLAIN, PLAIN_RUN), [side("lookup 4", DRAFTED_RUN, outputs)], [peer], ["a", "b"]
    )
    about = {"model": "m", "dtype": "float32", "device": "cpu", "target": "native", "verify": "auto"}
    versions = {"slipstream": "0", "torch": "2", "transformers": "5"}
    record = {"revision": "r", "versions": versions, "cpu": "c", "model_hash": "h", "prompts_hash": "p", "time": "t"}
    return Summary(plan, about, [cell], wrong or [], record)


def test_rates_and_speed_ups_are_of_medians() -> None:
    cell = summary().cells[0]
    assert cell.plain.rate(task="a") == pytest.approx(12 / 3.0)  # the median of 3, 3 and 6 seconds
    assert cell.plain.rate(task="b") == pytest.approx(12 / 6.0)
    assert cell.plain.rate() == pytest.approx(24 / 9.0)
    ratio = cell.speed_up(cell.drafters[0])
    assert ratio is not None
    assert ratio.value == pytest.approx(2.0)
    assert ratio.low <= 2.0 <= ratio.high


def test_totals_of_tasks_are_the_totals() -> None:
    found = summary().cells[0].drafters[0]
    for name, total in found.counts().items():
        assert total == sum(found.counts(task)[name] for task in "ab")
    seconds = found.seconds()
    assert sum(seconds[part] for part in ("prefill", "draft", "target", "other", "outside")) == pytest.approx(
        seconds["wall"]
    )


def test_acceptance_is_per_draft_and_passes_include_the_own_token() -> None:
    found = summary().cells[0].drafters[0]
    assert found.acceptance() == [1.0, 0.75, 0.25]
    assert found.acceptance_length() == pytest.approx(12 / 5)
    assert summary().cells[0].peers[0].acceptance() == []


def test_text_states_rates_acceptance_and_that_totals_reconcile() -> None:
    text = bench_text.show(summary())
    assert "2.00x" in text
    assert "identical" in text
    assert "totals reconcile: 48 tokens = 16 accepted + 32 of the target's own, in 34 passes" in text
    assert "predicted" not in text


def test_no_speed_up_where_outputs_differ() -> None:
    found = summary(Outputs(equal=1, different=1, largest_gap=3.0))
    text = bench_text.show(found)
    assert "2.00x" not in text
    assert "1 of 2 DIFFERENT" in text
    assert bench_text.NO_SPEED_UP in text
    assert not found.holds
    drafter = found.as_dict()["cells"][0]["drafters"][0]
    assert drafter["speed_up"] is None
    assert drafter["speed_up_with_prefill"] is None
    assert set(drafter["by_task"].values()) == {None}
    html = bench_page.build(found)
    assert "2.00x" not in html
    assert "no speed-up is stated" in html


def test_near_ties_are_named_with_gap_and_tau() -> None:
    text = bench_text.show(summary(Outputs(equal=1, near_ties=1, largest_gap=0.25, tau=0.5)))
    assert "1 equal, 1 near-ties" in text
    assert "largest gap 0.25, tau 0.5" in text
    assert "2.00x" in text


def test_texts_at_a_temperature_are_draws() -> None:
    text = bench_text.show(summary(Outputs(), temperature=0.8))
    assert "texts are draws" in text
    assert "identical" not in text


def test_totals_that_do_not_add_up_are_loud() -> None:
    found = summary(wrong=["lookup 4, a0, repeat 0: not true that x"])
    assert not found.holds
    assert "TOTALS DO NOT RECONCILE" in bench_text.show(found)
    assert "do not trust these numbers" in bench_page.build(found)
    assert found.as_dict()["totals_reconcile"] is False


def test_a_prediction_is_printed_beside_what_was_measured() -> None:
    found = summary()
    cell = dataclasses.replace(found.cells[0], predicted={"lookup 4": Ratio(1.87, 1.6, 2.1)})
    with_it = dataclasses.replace(found, cells=[cell])
    line = next(line for line in bench_text.show(with_it).split("\n") if line.startswith("lookup 4"))
    assert "1.87x" in line
    assert "predicted 1.87x" in bench_page.build(with_it)


def test_the_page_draws_all_four_pictures() -> None:
    html = bench_page.build(summary())
    for title in ("Speed-up by task", "Acceptance by position", "Where the time went", "Other engines", "Record"):
        assert f"<h2>{title}" in html
    assert html.count("<svg") == 5


def test_json_has_everything_and_is_json() -> None:
    found = json.loads(json.dumps(summary().as_dict()))
    cell = found["cells"][0]
    assert cell["drafters"][0]["speed_up"]["value"] == pytest.approx(2.0)
    assert cell["drafters"][0]["seconds"]["target"] > 0
    assert "speed_up" not in cell["plain"]
    assert cell["peers"][0]["tokens_per_second_with_prefill"] > 0
    assert "tokens_per_second" not in cell["peers"][0]  # a peer does not tell prefill from decoding


def test_the_worst_verdict_of_a_prompt_counts() -> None:
    def line(prompt: str, agreement: str, holds: bool, gap: float) -> dict[str, Any]:
        return {"verdict": {"prompt": prompt}, "agreement": agreement, "holds": holds, "gap": gap, "tau": 0.5}

    lines = [line("a", "identical", True, 0.0), line("a", "near-tie", True, 0.2), line("b", "DIFFERENT", False, 4.0)]
    assert _outputs(lines) == Outputs(0, 1, 1, 4.0, 0.5)
