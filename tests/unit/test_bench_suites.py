"""Suites: the shipped one has six tasks of five, files of the usual shapes are read, wrong lines are named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from slipstream import RequestError
from slipstream.measure.suites import KNOWN, SUITES, Suite, load_suite, read_suite
from slipstream.measure.workloads import Prompt


def write(path: Path, *items: object) -> Path:
    path.write_text("\n".join(item if isinstance(item, str) else json.dumps(item) for item in items) + "\n")
    return path


def test_demo_has_six_tasks_of_five_distinct_prompts() -> None:
    suite = load_suite("demo")
    assert suite.tasks == ["editing", "extraction", "code", "maths", "chat", "translation"]
    assert [sum(p.kind == task for p in suite.prompts) for task in suite.tasks] == [5] * 6
    assert len({p.id for p in suite.prompts}) == 30
    assert len({p.messages[-1]["content"] for p in suite.prompts}) == 30
    assert all(p.messages[-1]["role"] == "user" for p in suite.prompts)


def test_peers_has_ten_prompts_of_each_kind() -> None:
    suite = load_suite("peers")
    assert [(task, sum(p.kind == task for p in suite.prompts)) for task in suite.tasks] == [
        ("grounded", 10),
        ("code", 10),
        ("chat", 10),
    ]
    assert len({p.messages[-1]["content"] for p in suite.prompts}) == 30


@pytest.mark.parametrize("name", SUITES)
def test_every_shipped_suite_is_loaded_by_name(name: str) -> None:
    suite = load_suite(name)
    assert suite.name == name
    assert suite.prompts
    assert name in KNOWN
    if name in ("grounded", "free"):
        assert suite.tasks == [name]


def test_an_unknown_suite_lists_all_and_an_unknown_task_its_own() -> None:
    with pytest.raises(RequestError, match="available: demo, peers, grounded, free, or the path of a JSONL file"):
        load_suite("nope")
    assert load_suite("demo").of_task("code").tasks == ["code"]
    assert load_suite("demo").of_task(None) == load_suite("demo")
    with pytest.raises(RequestError, match="unknown task 'cod'"):
        load_suite("demo").of_task("cod")


def test_spec_bench_lines_give_category_id_and_first_turn(tmp_path: Path) -> None:
    path = write(
        tmp_path / "s.jsonl",
        {"question_id": 81, "category": "writing", "turns": ["one", "two"]},
        {"question_id": 82, "category": "math", "turns": ["three"]},
    )
    suite = read_suite(path)
    assert [(p.id, p.kind, p.messages) for p in suite.prompts] == [
        ("81", "writing", [{"role": "user", "content": "one"}]),
        ("82", "math", [{"role": "user", "content": "three"}]),
    ]
    assert suite.later_turns == 1


@pytest.mark.parametrize("key", ["prompt", "question", "text", "instruction"])
def test_single_texts_take_the_file_as_task_and_the_line_as_name(tmp_path: Path, key: str) -> None:
    suite = read_suite(write(tmp_path / "mine.jsonl", {key: "hello"}, "", {key: "bye"}))
    assert [(p.id, p.kind, p.messages[0]["content"]) for p in suite.prompts] == [
        ("1", "mine", "hello"),
        ("3", "mine", "bye"),
    ]


def test_messages_stay_as_they_are(tmp_path: Path) -> None:
    messages = [{"role": "system", "content": "short"}, {"role": "user", "content": "hi"}]
    suite = read_suite(write(tmp_path / "m.jsonl", {"id": "a", "messages": messages, "task": "chat"}))
    assert suite.prompts == [Prompt("a", "chat", messages)]


def test_repeated_ids_are_kept_apart(tmp_path: Path) -> None:
    suite = read_suite(write(tmp_path / "s.jsonl", {"id": 1, "text": "a"}, {"id": 1, "text": "b"}))
    assert [p.id for p in suite.prompts] == ["1", "1-2"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2 is not valid JSON"),
        ("[1]", "line 2 must be a JSON object"),
        ('{"answer": 42}', "line 2 holds no prompt"),
        ('{"turns": []}', "line 2 holds no prompt"),
        ('{"turns": [" "]}', "line 2 holds no prompt"),
        ('{"messages": [{"content": "x"}]}', "line 2: messages must be"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, line: str, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        read_suite(write(tmp_path / "s.jsonl", {"text": "fine"}, line))


def test_what_is_no_suite_says_what_would_be(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="did you mean 'demo'"):
        load_suite("dmo")
    with pytest.raises(RequestError, match="cannot be read"):
        load_suite(str(tmp_path / "absent.jsonl"))
    with pytest.raises(RequestError, match="holds no prompts"):
        read_suite(write(tmp_path / "empty.jsonl"))


def test_a_limit_takes_from_all_tasks_and_keeps_the_order() -> None:
    prompts = [Prompt(f"{task}{k}", task, []) for task in "abc" for k in range(3)]
    assert [p.id for p in Suite("s", prompts).limited(4).prompts] == ["a0", "a1", "b0", "c0"]
    assert Suite("s", prompts).limited(99).prompts == prompts
    with pytest.raises(RequestError, match="limit=0"):
        Suite("s", prompts).limited(0)
