"""A benchmark's summary as tables for a terminal."""

from __future__ import annotations

from slipstream.measure.bench_summary import CellSummary, Side, Summary
from slipstream.measure.report import Ratio, table

NO_SPEED_UP = "no speed-up is stated: the outputs are not the same"


def show(found: Summary) -> str:
    """Return the whole summary as text."""
    plan = found.plan
    repeats = min((c.plain.repeats for c in found.cells), default=0)
    head = (
        f"{found.about['model']}, {found.about['dtype']}, target {found.about['target']}; suite {plan.suite.name}: "
        f"{len(plan.suite.prompts)} prompts, at most {plan.max_tokens} tokens, {repeats} repeats, in turn with plain"
    )
    parts = [head, *(cell_text(cell) for cell in found.cells)]
    parts.append("\n".join([totals_line(found), *found.problems[:5], record_text(found)]))
    return "\n\n".join(parts)


def cell_text(cell: CellSummary) -> str:
    """Return the tables of one cell."""
    lines = [f"== {cell.cell.words}", drafters_table(cell), *outputs_lines(cell)]
    if len(cell.tasks) > 1:
        lines += ["", f"speed-up by task, {cell.cell.words} (decoding only)", tasks_table(cell)]
    lines += ["", "accepted at each position, of all drafts", acceptance_table(cell)]
    lines += ["", "seconds (medians of the repeats, summed over prompts)", seconds_table(cell)]
    if cell.peers:
        lines += ["", f"other engines, {cell.cell.words}: whole calls, prefill included", peers_table(cell)]
    return "\n".join(lines)


def drafters_table(cell: CellSummary) -> str:
    """Return a row per drafter: rates, speed-up, prediction, acceptance, outputs."""
    predicted = bool(cell.predicted)
    head = ["drafter", "plain tok/s", "tok/s", "speed-up", "95 %", *(["predicted (90 %)"] if predicted else [])]
    head += ["with prefill", "tok/pass", "accepted", "outputs"]
    rows = []
    for side in cell.drafters:
        counts, ratio = side.counts(), cell.speed_up(side)
        rate = f"{100 * counts['accepted'] / counts['drafted']:.0f} %" if counts["drafted"] else "-"
        said = [predicted_text(cell, side)] if predicted else []
        rows.append(
            [
                side.name,
                f"{cell.plain.rate():.1f}",
                f"{side.rate():.1f}",
                ratio_text(ratio),
                interval_text(ratio),
                *said,
            ]
            + [
                ratio_text(cell.speed_up(side, "wall")),
                f"{side.acceptance_length():.2f}",
                rate,
                outputs_word(cell, side),
            ]
        )
    return table(head, rows)


def outputs_lines(cell: CellSummary) -> list[str]:
    """Say what the columns mean and what a person should know of the outputs."""
    lines = ["tok/s: decoding only; tok/pass: tokens per target pass, the target's own token included"]
    if cell.cell.temperature:
        lines.append("texts are draws: plain and drafted ones have the same law and the same seeds, not the same words")
    near = [s for s in (*cell.drafters, *cell.peers) if s.outputs.near_ties and s.outputs.holds]
    if near:
        gap, tau = max(s.outputs.largest_gap for s in near), max(s.outputs.tau for s in near)
        lines.append(f"near-ties are certified against float32 (largest gap {gap:.3g}, tau {tau:.3g})")
    wrong = [s.name for s in cell.drafters if not s.outputs.holds]
    return [*lines, f"{', '.join(wrong)}: {NO_SPEED_UP}"] if wrong else lines


def tasks_table(cell: CellSummary) -> str:
    """Return the speed-up of each drafter on each task."""
    head = ["task", "plain tok/s", *(side.name for side in cell.drafters)]
    rows = []
    for task in cell.tasks:
        if cell.plain.times(task=task):
            ratios = [ratio_text(cell.speed_up(side, task=task)) for side in cell.drafters]
            rows.append([task, f"{cell.plain.rate(task=task):.1f}", *ratios])
    return table(head, rows)


def acceptance_table(cell: CellSummary, most: int = 8) -> str:
    """Return the share of drafts accepted at the first positions."""
    found = {side.name: side.acceptance() for side in cell.drafters}
    depth = min(most, max(map(len, found.values()), default=0))
    rows = [
        [name, *(f"{rates[k]:.2f}" if k < len(rates) else "-" for k in range(depth))] for name, rates in found.items()
    ]
    return table(["drafter", *(str(k + 1) for k in range(depth))], rows)


def seconds_table(cell: CellSummary) -> str:
    """Return where the time went, and the peak of memory."""
    parts = ("prefill", "draft", "target", "other", "outside", "wall")
    rows = []
    for side in (cell.plain, *cell.drafters):
        seconds = side.seconds()
        memory = f"{side.memory / 2**20:.0f}" if side.memory else "-"
        rows.append([side.name, *(f"{seconds[part]:.2f}" for part in parts), memory])
    return table(["", *parts, "peak MiB"], rows)


def peers_table(cell: CellSummary) -> str:
    """Return all engines on the same prompts, ours first."""
    return table(["engine", "tok/s", "against plain", "95 %", "outputs"], peer_rows(cell))


def peer_rows(cell: CellSummary) -> list[list[str]]:
    """Return the rows of the peer table."""
    rows = [["slipstream plain", f"{cell.plain.rate('wall'):.1f}", "1.00x", "", ""]]
    for side in (*cell.drafters, *cell.peers):
        ratio = cell.speed_up(side, "wall")
        name = side.name if side.peer else f"slipstream {side.name}"
        rows.append(
            [name, f"{side.rate('wall'):.1f}", ratio_text(ratio), interval_text(ratio), outputs_word(cell, side)]
        )
    return rows


def outputs_word(cell: CellSummary, side: Side) -> str:
    """Say how a side's outputs compare with plain ones."""
    return "draws" if cell.cell.temperature else side.outputs.words


def ratio_text(ratio: Ratio | None) -> str:
    """Write a ratio, or a dash where there is none."""
    return f"{ratio.value:.2f}x" if ratio else "-"


def interval_text(ratio: Ratio | None) -> str:
    """Write a ratio's interval."""
    return f"{ratio.low:.2f}-{ratio.high:.2f}" if ratio else "-"


def predicted_text(cell: CellSummary, side: Side) -> str:
    """Write what was predicted for a drafter, with its 90 % interval."""
    found = cell.predicted.get(side.name)
    return f"{found.value:.2f}x {found.low:.2f}-{found.high:.2f}" if found else "-"


def totals_line(found: Summary) -> str:
    """Say whether tokens, passes and seconds add up."""
    if found.problems:
        return f"TOTALS DO NOT RECONCILE: {len(found.problems)} problems"
    sides = [side.counts() for cell in found.cells for side in (cell.plain, *cell.drafters)]
    tokens, own, passes, accepted = (sum(c[k] for c in sides) for k in ("tokens", "by_target", "passes", "accepted"))
    return f"totals reconcile: {tokens} tokens = {accepted} accepted + {own} of the target's own, in {passes} passes"


def record_text(found: Summary) -> str:
    """Return the record in a line."""
    from slipstream.measure.record import record_line

    return record_line(found.record)
