"""Show a prediction: a plot for the terminal, a table, and one HTML page. In: a `Prediction`. Out: text."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from slipstream.measure.page import Bar, bars, esc, lines, page, section
from slipstream.measure.page import table as html_table
from slipstream.measure.predict import Point, Prediction

_EIGHTHS = " ▏▎▍▌▋▊▉█"
WIDTH = 40
MOST_ROWS = 17


def headline(found: Prediction) -> str:
    """Return the prediction in a sentence."""
    if found.draft_tokens == 0:
        return "predicted speed-up: none; plain decoding is the fastest: draft nothing"
    span = f" (90 %: {found.low:.2f} to {found.high:.2f})" if found.low is not None and found.high is not None else ""
    text = f"predicted speed-up: {found.speedup:.2f}x{span} with {_tokens(found.draft_tokens)} drafted per round"
    if found.best_tokens != found.draft_tokens:
        best = found.curve[found.best_tokens]
        text += (
            f"; best: {best.speedup:.2f}x with {_tokens(best.draft_tokens)}" if best.draft_tokens else "; best: none"
        )
    return text


def explained(found: Prediction) -> list[str]:
    """Return what goes with the headline: tokens per round, cost, break-even."""
    at = found.curve[found.draft_tokens]
    said = [f"tokens per round {at.tokens_per_round:.2f} (the target's own included), cost of a round {at.cost:.2f}"]
    length = found.draft_tokens or 1
    if found.break_even is None:
        said.append(f"drafting {_tokens(length)} cannot pay: it costs more rounds than it could save")
    else:
        said.append(
            f"break-even: drafting {_tokens(length)} pays above an acceptance of {found.break_even:.2f} per token"
        )
    return said


def plot(found: Prediction, mark: str = "best") -> str:
    """Return the curve as bars of unicode blocks, a row per draft length; the baseline of 1 is plain decoding."""
    points = _thinned(found)
    top = max(p.high or p.speedup for p in points)
    rows = []
    for p in points:
        note = f" ({p.low:.2f}-{p.high:.2f})" if p.low is not None and p.high is not None and p.draft_tokens else ""
        tail = f"  <- {mark}" if p.draft_tokens == found.best_tokens else ""
        tail += "  <- plain decoding" if p.draft_tokens == 0 else ""
        rows.append(f"{p.draft_tokens:>5}  {_bar(p.speedup / top):<{WIDTH}} {p.speedup:5.2f}x{note}{tail}")
    return "\n".join(["draft  speed-up", *rows])


def report(found: Prediction, title: str, lead: str, given: Seq[tuple[str, str]]) -> str:
    """Return one HTML page. `given` lists what was predicted from: pairs of a name and a value."""
    head, rows = _cells(found.curve)
    sections = [
        section("Answer", "".join(f"<p>{esc(line)}</p>" for line in [headline(found), *explained(found)])),
        section(
            "Speed-up by draft length", _chart(found), note="1 is plain decoding. Bars: the lengths near the best."
        ),
        section("Numbers", html_table(head, rows)),
    ]
    if found.survival:
        share = [(k, a) for k, a in enumerate(found.survival, 1)]
        chart = lines({"kept": [(float(k), a) for k, a in share]}, x="drafted token", y="share of rounds that keep it")
        sections.append(section("How far drafts survive", chart, note=_SURVIVAL))
    sections.append(section("Given", html_table(["what", "value"], list(given))))
    sections.append(section("How to read this", _HELP))
    return page(title, sections, lead=lead)


def _chart(found: Prediction) -> str:
    curve = [(float(p.draft_tokens), p.speedup) for p in found.curve]
    series = {"predicted": curve, "plain decoding": [(x, 1.0) for x, _ in curve]}
    if found.low is not None:
        series["low (90 %)"] = [(float(p.draft_tokens), p.low or p.speedup) for p in found.curve]
        series["high (90 %)"] = [(float(p.draft_tokens), p.high or p.speedup) for p in found.curve]
    near = [p for p in found.curve if p.draft_tokens and abs(p.draft_tokens - found.best_tokens) <= 3]
    items = [Bar(_tokens(p.draft_tokens), p.speedup, p.low, p.high, _best(found, p)) for p in near]
    return lines(series, x="tokens drafted per round", y="speed-up") + bars(items, unit="x", baseline=1.0)


def _best(found: Prediction, p: Point) -> str:
    return "best" if p.draft_tokens == found.best_tokens else ""


def _cells(points: Seq[Point]) -> tuple[list[str], list[list[str]]]:
    head = ["draft length", "tokens per round", "cost (plain rounds)", "speed-up", "90 %"]
    rows = []
    for p in points:
        span = f"{p.low:.2f}-{p.high:.2f}" if p.low is not None and p.high is not None and p.draft_tokens else ""
        rows.append([str(p.draft_tokens), f"{p.tokens_per_round:.2f}", f"{p.cost:.2f}", f"{p.speedup:.2f}x", span])
    return head, rows


def _thinned(found: Prediction) -> list[Point]:
    """All short lengths, those near the best and the chosen one, and few of the others."""
    curve = found.curve
    if len(curve) <= MOST_ROWS:
        return curve
    step = len(curve) // 8
    near = {found.best_tokens - 1, found.best_tokens, found.best_tokens + 1, found.draft_tokens}
    return [p for p in curve if p.draft_tokens <= 6 or p.draft_tokens in near or p.draft_tokens % step == 0]


def _bar(share: float) -> str:
    eighths = max(0, round(share * WIDTH * 8))
    whole, rest = divmod(eighths, 8)
    return "█" * whole + (_EIGHTHS[rest] if rest else "")


def _tokens(count: int) -> str:
    return f"{count} token{'s' if count != 1 else ''}"


_SURVIVAL = "The share of rounds that keep at least this many drafted tokens; tokens per round are 1 plus their sum."
_HELP = """<p>In each round a cheap drafter guesses some tokens, and the model scores all of them in one pass. The
guesses that stand, and one token of the model's own, are the round's output. <b>Tokens per round</b>
says how much a round gives; its <b>cost</b> says how long it takes, in rounds of plain decoding, which
give one token each. The speed-up is the first over the second.</p>
<p>Longer drafts give more tokens, but each further one survives less often and costs as much as the one
before: past the best length the curve falls. Below the <b>break-even</b> acceptance plain decoding is
faster.</p>"""
