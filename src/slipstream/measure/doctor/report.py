"""A diagnosis in words: a table best first, the line to change, and a JSON object. Measures nothing."""

from __future__ import annotations

from typing import Any

from slipstream.measure.doctor.examine import POOR, Diagnosis, Finding
from slipstream.measure.report import table

_HEAD = ("reading", "first token", "95 %", "accepted", "gain", "p")


def lines_of(found: Diagnosis, name: str) -> list[str]:
    """Return the report, line by line."""
    c = found.found.config
    out = [
        f"{name}: {c.algorithm} in layout {c.layout}, taps {list(c.features.taps)}",
        f"{found.places} places in {found.texts} answers of the target, {found.depth} tokens drafted at each",
        "",
        table(_HEAD, [_row(f, found) for f in found.findings]),
        "",
    ]
    return out + verdict(found)


def verdict(found: Diagnosis) -> list[str]:
    """Return the conclusion in one line or a few."""
    out = []
    if found.winner is None:
        stands = "no reading can be told from another" if found.poor else "the file's own reading stands"
        out.append(f"{stands}: none beats the file's own by a clear margin")
    else:
        w = found.winner
        own, better = found.own.mean, w.mean
        out.append(f"read differently this drafter is better: {w.reading.name} ({own:.2f} -> {better:.2f} accepted)")
        out += [f"  change {line}" for line in w.lines]
    if found.poor:
        best = max(f.first.value for f in found.findings)
        out.append(
            f"warning: even the best reading has its first token accepted at {best:.1%} of places (below {POOR:.0%}); "
            "was this drafter trained for this target?"
        )
    return out


def as_dict(found: Diagnosis, name: str, model: str) -> dict[str, Any]:
    """Return the diagnosis for JSON."""
    c = found.found.config
    return {
        "drafter": name,
        "model": model,
        "algorithm": c.algorithm,
        "layout": c.layout,
        "places": found.places,
        "draft_tokens": found.depth,
        "chat_template": found.chat,
        "healthy": found.winner is None,
        "poor": found.poor,
        "fix": None if found.winner is None else {"reading": found.winner.reading.name, "change": _lines(found.winner)},
        "readings": [_as_dict(f, found) for f in found.findings],
        "notes": list(found.found.notes),
    }


def _lines(finding: Finding) -> list[str]:
    return list(finding.lines)


def _row(f: Finding, found: Diagnosis) -> tuple[str, ...]:
    share, mark = f.first, "* " if f.reading.own else "! " if f is found.winner else "  "
    interval = f"{share.low:.1%}-{share.high:.1%}"
    versus = ("", "") if f.against is None or f.reading.own else (f"{f.against.gain:+.2f}", f"{f.against.p_value:.2g}")
    return (mark + f.reading.name, f"{share.value:.1%}", interval, f"{f.mean:.2f}", *versus)


def _as_dict(f: Finding, found: Diagnosis) -> dict[str, Any]:
    against = f.against if not f.reading.own else None
    return {
        "reading": f.reading.name,
        "kind": f.reading.kind,
        "own": f.reading.own,
        "first_token": {"value": f.first.value, "low": f.first.low, "high": f.first.high},
        "accepted": f.mean,
        "gain": None if against is None else against.gain,
        "p_value": None if against is None else against.p_value,
        "clear": f.clear,
        "change": _lines(f),
    }
