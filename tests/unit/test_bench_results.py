"""Results on disk: appended whole, found again under the same settings only, torn lines skipped."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from slipstream import RequestError, WorkError
from slipstream.measure.results import Results, key_of

SETTINGS = {"model": "m", "lengths": [4, 8]}


def results(path: Path | None, **changes: object) -> Results:
    return Results(path, SETTINGS | changes, {"record": {}})


def test_lines_are_found_again(tmp_path: Path) -> None:
    first = results(tmp_path / "r.jsonl")
    first.append({"unit": 1})
    first.append({"unit": 2})
    again = results(tmp_path / "r.jsonl")
    assert [line["unit"] for line in again.lines] == [1, 2]
    assert (first.found, again.found) == (0, 2)


def test_every_line_is_on_disk_at_once_with_one_head(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    first = results(path)
    assert not path.exists()  # nothing measured, nothing written
    for k in range(3):
        first.append({"unit": k})
        assert len(path.read_text().splitlines()) == k + 2
    results(path).append({"unit": 3})
    heads = [line for line in map(json.loads, path.read_text().splitlines()) if "settings" in line]
    assert [head["settings"] for head in heads] == [SETTINGS]


def test_other_settings_share_the_file_and_not_the_lines(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    results(path).append({"unit": 1})
    other = results(path, model="n")
    assert other.lines == []
    other.append({"unit": 2})
    assert [line["unit"] for line in results(path).lines] == [1]
    assert [line["unit"] for line in results(path, model="n").lines] == [2]


def test_a_torn_line_costs_itself_only(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    first = results(path)
    for k in range(2):
        first.append({"unit": k})
    path.write_text(path.read_text()[:-9])  # killed while writing the last line
    again = results(path)
    assert [line["unit"] for line in again.lines] == [0]
    again.append({"unit": 1})
    assert [line["unit"] for line in results(path).lines] == [0, 1]


def test_without_a_path_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    kept = results(None)
    kept.append({"unit": 1})
    assert len(kept.lines) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_file_of_another_kind_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.md"
    path.write_text("# notes\nkeep me\n")
    with pytest.raises(RequestError, match="not a file of results"):
        results(path)
    assert path.read_text() == "# notes\nkeep me\n"


def test_what_cannot_be_written_says_so(tmp_path: Path) -> None:
    with pytest.raises(WorkError, match="cannot write"):
        results(tmp_path / "nowhere" / "r.jsonl").append({"unit": 1})


def test_keys_depend_on_every_setting_and_not_on_their_order() -> None:
    assert key_of({"a": 1, "b": 2}) == key_of({"b": 2, "a": 1})
    assert key_of({"a": 1, "b": 2}) != key_of({"a": 1, "b": 3})
