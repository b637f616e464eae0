"""`python -m slipstream.measure.demo`: watch a real model answer faster than plain decoding does, with the same answer.

Streams one answer with the drafted and accepted tokens marked, then decodes a few editing prompts plainly and with
prompt lookup, in turn, and prints both speeds, the acceptance length and whether the outputs are the same.
Exit status 0; 1 if outputs differ by more than rounding explains; 2 and 3 as everywhere.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from typing import TYPE_CHECKING, TextIO

from slipstream.config import DEFAULT_MODEL
from slipstream.measure.agreement import statement
from slipstream.measure.bench_speed import PromptResult, SpeedResult, speed
from slipstream.measure.entry import guarded
from slipstream.measure.report import rate, table
from slipstream.measure.workloads import load_prompts
from slipstream.types import SamplingParams

if TYPE_CHECKING:
    from slipstream.llm import LLM

SHOWN = "quote-answers"  # the prompt whose answer is streamed
PROMPTS = (SHOWN, "edit-config", "add-docstrings", "translate-keys")
TOKENS = 96
REPEATS = 3
SECONDS = 50.0  # no new repeat begins after this many
ROOM = 1024
DTYPE = "float32"  # where near-ties are so rare that the same answer means the same tokens


class Page:
    """Print streamed text behind a margin, wrapped at words, with accepted tokens green, or in « » without colour."""

    def __init__(self, out: TextIO, width: int = 80, colour: bool = False) -> None:
        self._out, self._width = out, width
        self._on, self._off = ("\033[32m", "\033[0m") if colour else ("«", "»")
        self._margin = "  | "
        self._column, self._marked = 0, False
        self._word: list[tuple[str, bool]] = []

    def write(self, text: str, marked: bool) -> None:
        """Print text; a word appears when it is complete."""
        for letter in text:
            if letter.isspace():
                self._flush()
            else:
                self._word.append((letter, marked))
            if letter == "\n":
                self._break()
            elif letter.isspace():
                self._put(letter, marked)
        self._out.flush()

    def close(self) -> None:
        """Print what is left and end the line."""
        self._flush()
        self._break()
        self._out.flush()

    def _flush(self) -> None:
        if self._column + len(self._word) > self._width and self._column > len(self._margin):
            self._break()
        for letter, marked in self._word:
            self._put(letter, marked)
        self._word.clear()

    def _put(self, letter: str, marked: bool) -> None:
        if not self._column:
            self._out.write(self._margin)
            self._column = len(self._margin)
        self._mark(marked)
        self._out.write(letter)
        self._column += 1

    def _break(self) -> None:
        self._mark(False)
        self._out.write("\n" if self._column else self._margin.rstrip() + "\n")
        self._column = 0

    def _mark(self, marked: bool) -> None:
        if marked != self._marked:
            self._out.write(self._on if marked else self._off)
            self._marked = marked


def main() -> int:
    """Run the demo; return the exit status."""
    return guarded(lambda: run(sys.stdout), "\033[0m\nstopped" if sys.stdout.isatty() else "\nstopped")


def run(out: TextIO) -> int:
    """Load the default model, stream one answer, measure, and print the comparison to `out`."""
    from slipstream.llm import LLM

    width = min(80, shutil.get_terminal_size((80, 24)).columns)
    colour = out.isatty() and not os.environ.get("NO_COLOR")
    start = time.monotonic()
    llm = LLM(DEFAULT_MODEL, "lookup", dtype=DTYPE, max_model_len=ROOM, max_rows=1)
    print(f"{llm.model}, {DTYPE}, loaded in {time.monotonic() - start:.1f} s\n", file=out, flush=True)
    messages = {p.id: p.messages for p in load_prompts("grounded")}
    ask = messages[SHOWN][-1]["content"].split("\n")[0]
    print("\n".join(wrapped(f"Prompt: {ask}", width)), file=out)
    how = "green" if colour else "inside « »"
    print(f"\nAnswer; {how}: guessed by prompt lookup, confirmed by the model\n", file=out, flush=True)
    stream(llm, llm.encode(messages[SHOWN]), Page(out, width - 4, colour))  # marks take room
    result = measure(llm, {name: llm.encode(messages[name]) for name in PROMPTS})
    print(f"\n{show(result)}\n", file=out)
    print("\n".join(wrapped(made_on(llm), width)), file=out)
    print("\n".join(wrapped(statement([p.agreement for p in result.prompts]), width)), file=out)
    return 0 if result.holds else 1


def wrapped(text: str, width: int) -> list[str]:
    """Return a paragraph as lines."""
    import textwrap

    return textwrap.wrap(text, width, subsequent_indent="  ")


def made_on(llm: LLM) -> str:
    """Return the record of the run in a line."""
    from slipstream.measure.bench import record_line
    from slipstream.measure.record import record

    messages = [p.messages for p in load_prompts("grounded") if p.id in PROMPTS]
    return record_line(record(model=llm.opened.folder, drafter=None, prompts=messages, device=llm.opened.device))


def stream(llm: LLM, ids: list[int], page: Page) -> None:
    """Print one answer as it is decoded, drafted and accepted tokens marked."""
    from slipstream.text import Detokenizer

    pieces = Detokenizer(llm.tokenizer)
    for delta in llm.stream(ids, SamplingParams(max_tokens=TOKENS)):
        for token in delta.tokens:
            page.write(pieces.push(token.id), token.by != "target")
    page.write(pieces.flush(), False)
    page.close()


def measure(llm: LLM, prompts: dict[str, list[int]]) -> SpeedResult:
    """Decode the prompts plainly and with the drafter in turn, for about a minute at most."""
    from slipstream.measure.bench import Bar

    with Bar("plain and lookup in turn", 2 * len(prompts) * REPEATS) as tick:
        return speed(
            llm,
            prompts,
            SamplingParams(max_tokens=TOKENS),
            REPEATS,
            tick=tick,
            deadline=time.monotonic() + SECONDS,
        )


def show(result: SpeedResult) -> str:
    """Return the closing table, and the speed-up if the outputs agree."""
    holds = result.holds
    head = ["tokens per second", "plain", "lookup", "ratio", "tokens/pass", "output"]
    rows = [_row(p, holds) for p in result.prompts]
    ratio = f"{result.ratio().value:.2f}x" if holds else "-"
    plain, drafted = result.rate("plain"), result.rate("drafted")
    rows.append(["all", f"{plain:.1f}", f"{drafted:.1f}", ratio, f"{result.acceptance_length:.2f}", ""])
    lines = [
        table(head, rows),
        "decode only; ratio of medians; tokens/pass: mean acceptance length, tokens per",
        "target pass with the target's own token included",
        "",
    ]
    if holds:
        lines.append(f"speculative decoding is {result.ratio().words()} as fast as plain")
    return "\n".join(lines).rstrip()


def _row(p: PromptResult, holds: bool) -> list[str]:
    plain, drafted = rate([p.times("plain")]), rate([p.times("drafted")])
    ratio = f"{drafted / plain:.2f}x" if holds else "-"
    return [p.id, f"{plain:.1f}", f"{drafted:.1f}", ratio, f"{p.acceptance_length:.2f}", p.agreement.word]


if __name__ == "__main__":
    sys.exit(main())
