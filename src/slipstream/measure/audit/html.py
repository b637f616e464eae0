"""The certificate as one HTML page: the verdict, what was proved, tested and not, the planted errors, the record."""

from __future__ import annotations

import json

from slipstream.measure.audit.certificate import ALWAYS_UNTESTED, Audit, power_words, sampling_words
from slipstream.measure.audit.findings import ALARM, Check
from slipstream.measure.page import esc, lines, page, table

_LIMIT = 1.95


def html(audit: Audit) -> str:
    """Return the whole page."""
    subject = ", ".join(f"{k} {v}" for k, v in audit.subject.items() if k != "sampling")
    lead = f"{subject}; {sampling_words(audit.subject.get('sampling', {}))}. {audit.seconds:.0f} seconds."
    title = audit.verdict.partition(":")[0]
    sections = [
        _summary(audit),
        _proved(audit),
        _tested(audit),
        _controls(audit),
        _untested(audit),
        _section("Record", f"<pre>{esc(json.dumps(audit.record, indent=2, ensure_ascii=False))}</pre>"),
    ]
    return page(f"Losslessness audit: {title}", sections, lead=lead)


def _section(title: str, *parts: str) -> str:
    return f"<section><h2>{esc(title)}</h2>" + "".join(parts) + "</section>"


def _p(text: str) -> str:
    return f"<p>{esc(text)}</p>"


def _outcome(check: Check) -> str:
    return "holds" if check.passed else "FAILS"


def _summary(audit: Audit) -> str:
    rows = []
    for title, level in (("proved", "proved"), ("tested", "tested"), ("planted errors flagged", "control")):
        checks = audit.of(level)  # type: ignore[arg-type]
        rows.append((title, f"{sum(bool(c.passed) for c in checks)} of {len(checks)}"))
    alarm = (
        f"A right engine fails the tests below in at most {ALARM:.0%} of audits (Holm's correction over all of them)."
    )
    verdict = f"<p><strong>{esc(audit.verdict)}</strong></p>"
    power = [_p(f"Power on {words}.") for words in power_words(audit)]
    return _section("Verdict", verdict, table(("part", "outcome"), rows), *power, _p(alarm))


def _proved(audit: Audit) -> str:
    checks = audit.of("proved")
    text = (
        "Rule, controller and engine were run through every branch of their randomness on a vocabulary of three, with "
        "these sampling parameters, and the law of whole requests was compared with plain decoding."
    )
    worst = max((c.numbers.get("total_variation", 0.0) for c in checks), default=0.0)
    rows = [(c.name, f"{c.numbers.get('total_variation', 0.0):.1e}", _outcome(c)) for c in checks]
    shown = table(("what", "total variation", "outcome"), rows)
    many = f"<details><summary>{len(checks)} laws, largest total variation {worst:.1e}</summary>{shown}</details>"
    return _section("Proved", _p(text), many)


def _tested(audit: Audit) -> str:
    checks = audit.of("tested")
    rows = [(c.name, c.said, _outcome(c)) for c in checks]
    edge = {f"limit {sign}": [(0.0, height), (1.0, height)] for sign, height in (("+", _LIMIT), ("-", -_LIMIT))}
    drawn = {where: points for where, points in audit.curves.items() if points}
    chart = lines(drawn | edge, x="U", y="gap to uniform, times root n") if drawn else ""
    note = (
        "U of each emitted token: its place in the target's law, tokens favoured by the draft first. A right engine "
        "makes it uniform, so these curves wander around zero; one that leans to the draft rises on the left. "
        f"Beyond the limits (about 1 chance in 1000) is a gap of {_LIMIT}."
    )
    return _section("Tested", table(("what", "found", "outcome"), rows), chart, _p(note) if drawn else "")


def _controls(audit: Audit) -> str:
    text = "Errors planted into a copy of the engine during this very run. One that is not flagged fails the audit."
    rows = [
        (c.name.removeprefix("planted: "), c.said, "flagged" if c.passed else "MISSED") for c in audit.of("control")
    ]
    return _section("Planted errors", _p(text), table(("error", "found", "outcome"), rows))


def _untested(audit: Audit) -> str:
    items = [f"{c.name}: {c.said}" for c in audit.of("skipped")] + list(ALWAYS_UNTESTED)
    return _section("Not tested", "<ul>" + "".join(f"<li>{esc(item)}</li>" for item in items) + "</ul>")
