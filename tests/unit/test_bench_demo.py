"""The demo's page: margin, wrapping, marks, and the closing lines."""

from __future__ import annotations

import io

from slipstream.measure.agreement import Agreement
from slipstream.measure.bench_speed import PromptResult, SpeedResult
from slipstream.measure.certify import Certificate
from slipstream.measure.demo import PROMPTS, Page, show, wrapped
from slipstream.measure.timing import Timing
from slipstream.measure.workloads import load_prompts


def printed(pieces: list[tuple[str, bool]], width: int = 30, colour: bool = False) -> list[str]:
    out = io.StringIO()
    page = Page(out, width, colour)
    for text, marked in pieces:
        page.write(text, marked)
    page.close()
    return out.getvalue().split("\n")


def test_accepted_text_is_marked_and_marks_close_at_the_end_of_a_line() -> None:
    assert printed([("one ", False), ("two\nth", True), ("ree", False)]) == ["  | one «two»", "  | «th»ree", ""]


def test_colour_is_switched_off_again() -> None:
    assert printed([("ok", True)], colour=True) == ["  | \033[32mok\033[0m", ""]


def test_lines_wrap_between_words_and_indentation_stays() -> None:
    lines = printed([("    deep " + "word " * 8, False)])
    assert lines[0].startswith("  |     deep word")
    assert max(len(line) for line in lines) <= 31  # the space that ended the line
    assert "".join(lines).count("word") == 8


def test_a_word_longer_than_the_page_is_printed_once() -> None:
    assert printed([("x" * 50, False)]) == ["  | " + "x" * 50, ""]


def test_empty_lines_keep_the_margin() -> None:
    assert printed([("a\n\nb", False)]) == ["  | a", "  |", "  | b", ""]


def result(agreement: Agreement) -> SpeedResult:
    stats = {"target_passes": 2, "mean_acceptance_length": 4.0, "prefill_seconds": 0.0}
    plain, drafted = Timing([1] * 8, 2.0, 2.0, stats), Timing([1] * 8, 1.0, 1.0, stats)
    return SpeedResult("", [PromptResult("edit", [plain], [drafted], agreement)])


def test_closing_lines_fit_80_columns_and_state_both_speeds() -> None:
    lines = show(result(Agreement(True))).split("\n")
    assert max(map(len, lines)) <= 80
    assert lines[-1] == "speculative decoding is 2.00x (95 %: 2.00-2.00) as fast as plain"
    assert "4.00" in lines[2]
    assert "2.00x" in lines[2]


def test_no_ratio_when_outputs_differ() -> None:
    wrong = Agreement(False, 0, Certificate(tau=0.1, largest_gap=3.0, refused=[(0, 1, 3.0)]))
    text = show(result(wrong))
    assert "x as fast" not in text
    assert "2.00x" not in text
    assert "DIFFERENT" in text


def test_its_prompts_exist_and_text_wraps() -> None:
    assert set(PROMPTS) <= {p.id for p in load_prompts("grounded")}
    assert wrapped("a " * 60, 40)[1].startswith("  a")
