"""The plan: which drafters, which order, what a batch holds, what two runs must share; and the table of peers."""

from __future__ import annotations

import importlib

import pytest

from slipstream import RequestError
from slipstream.measure import peers
from slipstream.measure.bench_plan import Cell, Choice, Plan, choices_of, numbers_of
from slipstream.measure.suites import Suite
from slipstream.measure.workloads import Prompt

SUITE = Suite("s", [Prompt(f"{task}{k}", task, []) for task in "ab" for k in range(3)])


def plan(**changes: object) -> Plan:
    return Plan(**({"suite": SUITE, "choices": [Choice("lookup")], "repeats": 2} | changes))  # type: ignore[arg-type]


def test_every_drafter_at_every_length() -> None:
    assert choices_of("lookup, draft_model:x", "4,8") == [
        Choice("lookup", 4),
        Choice("lookup", 8),
        Choice("draft_model:x", 4),
        Choice("draft_model:x", 8),
    ]
    assert choices_of("lookup", "auto") == [Choice("lookup", None)]


def test_names_are_short_and_differ() -> None:
    choices = [Choice("lookup"), Choice("lookup", 4), Choice("draft_model:/a/m", 4), Choice("draft_model:/b/m", 4)]
    assert plan(choices=choices).names == ["lookup", "lookup 4", "draft_model:/a/m 4", "draft_model:/b/m 4"]
    assert plan(choices=choices[:3]).names[2] == "draft_model:m 4"


def test_peers_are_given_the_first_draft_model_only() -> None:
    choices = [Choice("lookup"), Choice("eagle3:/e"), Choice("lookup+draft_model:/a", 4), Choice("draft_model:/b")]
    assert plan(choices=choices).draft_model == "/a"
    assert plan(choices=choices[:2]).draft_model == ""


@pytest.mark.parametrize(("specs", "lengths"), [("none", "auto"), ("lookup,none", "4"), ("lookup", "0")])
def test_plain_decoding_is_not_a_drafter_to_compare(specs: str, lengths: str) -> None:
    with pytest.raises(RequestError, match="plain decoding is measured in every run"):
        choices_of(specs, lengths)


@pytest.mark.parametrize(("lengths", "message"), [("four", "'four'"), ("-1", "'-1'"), ("300", "300"), ("2.5", "'2.5'")])
def test_wrong_lengths_are_named(lengths: str, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        choices_of("lookup", lengths)


@pytest.mark.parametrize("text", ["", ",", "a", "0.8,x"])
def test_wrong_numbers_are_named(text: str) -> None:
    with pytest.raises(RequestError, match="temperature"):
        numbers_of(text, "temperature", float)


@pytest.mark.parametrize(
    "changes", [{"repeats": 0}, {"max_tokens": 0}, {"batches": [0]}, {"temperatures": [-1.0]}, {"choices": []}]
)
def test_an_impossible_plan_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(RequestError):
        plan(**changes)


def test_batches_hold_prompts_of_one_task() -> None:
    assert plan().groups(2) == [("a", ("a0", "a1")), ("a", ("a2",)), ("b", ("b0", "b1")), ("b", ("b2",))]


def test_units_cover_every_cell_prompt_and_repeat_once() -> None:
    full = plan(temperatures=[0.0, 0.8], batches=[1, 2])
    units = list(full.units())
    assert len(units) == len({str(unit.place) for unit in units}) == 2 * 2 * (6 + 4)
    assert [unit.repeat for unit in units] == [0] * 20 + [1] * 20
    assert {unit.cell for unit in units} == {Cell(t, b) for t in (0.0, 0.8) for b in (1, 2)}


def test_a_prompt_has_one_seed_for_all_runners_and_its_own() -> None:
    full = plan(seed=7, sampling={"top_p": 0.9})
    assert [full.params(0.8, k).seed for k in (0, 1)] == [7, 8]
    assert full.params(0.8, 0).top_p == 0.9


def test_repeats_may_grow_but_nothing_else_may_change() -> None:
    assert plan(repeats=2).settings() == plan(repeats=5).settings()
    for changes in ({"max_tokens": 9}, {"seed": 1}, {"choices": [Choice("lookup", 4)]}, {"peers": ["hf"]}):
        assert plan(**changes).settings() != plan().settings()


def test_peers_are_modules_that_open() -> None:
    for peer in peers.PEERS.values():
        assert callable(importlib.import_module(peer.module).open_peer)


def test_unknown_and_missing_peers_are_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RequestError, match="did you mean 'hf-lookup'"):
        peers.parse_peers("hf,hf-lokup")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(RequestError, match=r"peer vllm is not installed: pip install 'slipstream\[vllm\]'"):
        peers.parse_peers("vllm")
    assert peers.parse_peers("") == []


def test_peers_that_lack_something_say_what(tmp_path: object) -> None:
    from pathlib import Path

    task = peers.Task(Path("m"), "m", None, "cpu", 64)
    with pytest.raises(RequestError, match="draft_model:PATH"):
        peers.open_peer("hf-assisted", task)
