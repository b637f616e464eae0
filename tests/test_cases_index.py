"""The table of cases and the case files agree: nothing is claimed that is not tested, nothing tested is left out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "cases"
NUMBERS = "01 02 04 05 07 08 10 11 13 14 16 17 19 20 22 23 25 26 28 29 31 32 34 35 37 38 40 41 43 44 46 47 49 50"
ROWS = re.findall(r"^\| (\d\d) \| ([^|]+) \| ([^|]+) \|$", (FOLDER / "README.md").read_text(), re.MULTILINE)


def claimed() -> dict[str, set[str]]:
    return {number: set(re.findall(r"`(test_case_\w+\.py)`", where)) for number, _, where in ROWS}


def in_files() -> dict[str, set[str]]:
    """Case number -> files with a test function named after it."""
    found: dict[str, set[str]] = {}
    for file in FOLDER.glob("test_case_*.py"):
        for number in re.findall(r"^ *def test_case_(\d\d)_", file.read_text(), re.MULTILINE):
            found.setdefault(number, set()).add(file.name)
    return found


def test_every_case_has_one_row_in_order() -> None:
    assert " ".join(number for number, _, _ in ROWS) == NUMBERS


def test_a_row_names_the_files_with_tests_of_that_number() -> None:
    assert {number: files for number, files in claimed().items() if files} == in_files()


@pytest.mark.parametrize(("number", "where"), [(number, where) for number, _, where in ROWS])
def test_a_row_without_tests_says_what_it_comes_with(number: str, where: str) -> None:
    assert claimed()[number] or re.match(r"not yet: comes with [a-z ]+$", where)
