"""A benchmark's summary as one HTML page: speed-up by task, acceptance by position, time split, other engines.

In: a `Summary`. Out: HTML. Everything drawn is also there as a number.
"""

from __future__ import annotations

from slipstream.measure import bench_text
from slipstream.measure.bench_summary import CellSummary, Side, Summary
from slipstream.measure.page import Bar, bars, esc, facts, lines, page, section, stacked, table
from slipstream.measure.report import Ratio

_SHOWN = ("target", "draft", "other", "prefill", "outside")


def build(found: Summary) -> str:
    """Return the whole page."""
    plan, about = found.plan, found.about
    lead = (
        f"{about['model']} in {about['dtype']} on {about['device']}, suite {plan.suite.name}: "
        f"{len(plan.suite.prompts)} prompts, at most {plan.max_tokens} tokens. Every drafter was timed in turn with "
        f"plain decoding of the same engine, prompt by prompt. {_verdict(found)}"
    )
    parts = [part for cell in found.cells for part in _cell(cell, several=len(found.cells) > 1)]
    return page(f"Speculative decoding of {about['model']}", [*parts, _record(found)], lead=lead)


def _verdict(found: Summary) -> str:
    if found.problems:
        return "The totals do not add up: do not trust these numbers."
    if not found.holds:
        return "Some outputs differ beyond rounding: no speed-up is stated for those drafters."
    if any(cell.cell.temperature for cell in found.cells):
        return "Greedy outputs agree with plain ones; at a temperature above 0 texts are draws of the same law."
    return "All outputs agree with plain ones, token for token or up to certified near-ties."


def _cell(cell: CellSummary, several: bool) -> list[str]:
    where = f", {cell.cell.words}" if several else ""
    said = "; ".join(bench_text.outputs_lines(cell))
    parts = [
        section(f"Speed-up{where}", _speed_ups(cell), _whole(cell), note=f"{cell.cell.words}; {said}."),
        section(f"Speed-up by task{where}", *_tasks(cell), note="Decoding only; whiskers: 95 % interval over prompts."),
        section(f"Acceptance by position{where}", _acceptance(cell), note=_ACCEPTANCE),
        section(f"Where the time went{where}", _time(cell), _seconds(cell), note=_SECONDS),
    ]
    if cell.peers:
        head = ["engine", "tokens/s", "against plain", "95 %", "outputs"]
        note = "Whole calls, prefill included, on the same prompts, weights and machine, in turn."
        parts.append(section(f"Other engines{where}", _peers(cell), table(head, bench_text.peer_rows(cell)), note=note))
    return parts


_ACCEPTANCE = (
    "Of all drafts, the share whose token at this position was accepted. A draft may be shorter than the position, and "
    "a token is only reached if those before it were accepted."
)
_SECONDS = (
    "Medians of the repeats, summed over prompts. outside: what a call spends neither in prefill nor in a round. The "
    "peak of memory is the process's, with all loaded weights; on a GPU that of the GPU."
)


def _speed_ups(cell: CellSummary) -> str:
    found = [_bar(side.name, cell.speed_up(side), _promise(cell, side)) for side in cell.drafters]
    return bars([bar for bar in found if bar], unit="x", baseline=1.0)


def _promise(cell: CellSummary, side: Side) -> str:
    predicted = cell.predicted.get(side.name)
    return f"(predicted {predicted.value:.2f}x)" if predicted else f"({side.acceptance_length():.2f} tokens per pass)"


def _whole(cell: CellSummary) -> str:
    head = [
        "drafter",
        "plain tok/s",
        "tok/s",
        "speed-up",
        "95 %",
        "predicted (90 %)",
        "with prefill",
        "tok/pass",
        "outputs",
    ]
    rows = []
    for side in cell.drafters:
        ratio = cell.speed_up(side)
        rates = [f"{cell.plain.rate():.1f}", f"{side.rate():.1f}"]
        said = [bench_text.predicted_text(cell, side), bench_text.ratio_text(cell.speed_up(side, "wall"))]
        rows.append(
            [side.name, *rates, bench_text.ratio_text(ratio), bench_text.interval_text(ratio), *said]
            + [f"{side.acceptance_length():.2f}", bench_text.outputs_word(cell, side)]
        )
    return table(head, rows)


def _tasks(cell: CellSummary) -> list[str]:
    parts = []
    for side in cell.drafters:
        shown = [task for task in cell.tasks if side.times(task=task)]
        found = [_bar(task, cell.speed_up(side, task=task), _length(side, task)) for task in shown]
        drawn = bars([bar for bar in found if bar], unit="x", baseline=1.0)
        parts.append(f"<h3>{esc(side.name)}</h3>\n{drawn}")
    return parts


def _length(side: Side, task: str) -> str:
    return f"({side.acceptance_length(task):.2f} tokens per pass)"


def _bar(label: str, ratio: Ratio | None, note: str) -> Bar | None:
    return Bar(label, ratio.value, ratio.low, ratio.high, note) if ratio else None


def _acceptance(cell: CellSummary) -> str:
    series = {side.name: [(k + 1.0, rate) for k, rate in enumerate(side.acceptance())] for side in cell.drafters}
    return lines(series, x="position in the draft", y="accepted share")


def _time(cell: CellSummary) -> str:
    sides = (cell.plain, *cell.drafters)
    found = [(side.name, {part: side.seconds()[part] for part in _SHOWN}) for side in sides]
    return stacked(found, unit="s")


def _seconds(cell: CellSummary) -> str:
    head = ["", *_SHOWN, "whole calls", "peak MiB"]
    rows = []
    for side in (cell.plain, *cell.drafters):
        seconds = side.seconds()
        rows.append([side.name, *(f"{seconds[part]:.2f}" for part in (*_SHOWN, "wall")), f"{side.memory / 2**20:.0f}"])
    return table(head, rows)


def _peers(cell: CellSummary) -> str:
    sides = [(f"slipstream {side.name}", side) for side in (cell.plain, *cell.drafters)]
    sides += [(side.name, side) for side in cell.peers]
    return bars(
        [Bar(name, side.rate("wall")) for name, side in sides], unit="tokens/s", baseline=cell.plain.rate("wall")
    )


def _record(found: Summary) -> str:
    said = [f"<p>{esc(bench_text.totals_line(found))}.</p>", *(f"<p>{esc(p)}</p>" for p in found.problems)]
    kept = {k: v for k, v in found.record.items() if v is not None}
    kept["argv"] = " ".join(map(str, kept.get("argv", [])[1:]))
    kept["versions"] = ", ".join(f"{name} {version}" for name, version in kept.get("versions", {}).items())
    return section("Record", *said, facts(list(kept.items())))
