"""The certificate: what was proved, what was tested, what was not, the controls, and the record.

In: an `Audit`, all checks decided. Out: the verdict in one line, text, and one JSON object.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from slipstream.measure.audit.findings import ALARM, Check, Level

_TITLES: dict[Level, str] = {"proved": "proved", "tested": "tested", "skipped": "not tested", "control": "controls"}
_MARK = {True: "ok  ", False: "FAIL", None: "?   "}

ALWAYS_UNTESTED = (
    "the model's own quality, and anything its weights do",
    "endings and texts (stop strings, detokenisation): no law says what they should be",
    "laws at other sampling parameters than these",
)


@dataclass
class Audit:
    """Everything an audit found. `lossless`: what the rule says of itself. `curves`: how U strays from uniform."""

    subject: dict[str, Any]
    lossless: bool = True
    checks: list[Check] = field(default_factory=list)
    power: dict[str, Any] = field(default_factory=dict)
    curves: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    record: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def failed(self) -> list[Check]:
        """Checks that failed, controls apart."""
        return [c for c in self.checks if c.level != "control" and not c.passed]

    @property
    def blind(self) -> list[Check]:
        """Planted errors that were not flagged."""
        return self.of("control", passed=False)

    @property
    def passed(self) -> bool:
        """True if the setting is lossless by its own word, no check failed, and every planted error was flagged."""
        return self.lossless and not self.failed and not self.blind

    def of(self, level: Level, passed: bool | None = None) -> list[Check]:
        """Return the checks of a level, all or those with this outcome."""
        return [c for c in self.checks if c.level == level and (passed is None or c.passed == passed)]

    @property
    def verdict(self) -> str:
        """Return the one line that matters."""
        if not self.lossless:
            rule = self.subject.get("verify")
            return f"LOSSY: rule {rule!r} gives up the target's law by design; the output is not the model's"
        if self.failed:
            first = self.failed[0]
            more = f" and {len(self.failed) - 1} more" if len(self.failed) > 1 else ""
            return f"FAIL: {first.name}: {first.said}{more}"
        if self.blind:
            return (
                f"FAIL: this audit could not have seen a bug: {len(self.blind)} planted error(s) were not flagged, "
                f"the first: {self.blind[0].name.removeprefix('planted: ')}"
            )
        proved, tested, planted = (len(self.of(level)) for level in ("proved", "tested", "control"))
        held = f"{proved} laws proved exact, {tested} tests held"
        return f"PASS: no bias found: {held}, all {planted} planted errors flagged"

    def as_dict(self) -> dict[str, Any]:
        """Return the certificate for JSON."""
        return {
            "verdict": self.verdict,
            "passed": self.passed,
            "lossless": self.lossless,
            **self.subject,
            "proved": [c.as_dict() for c in self.of("proved")],
            "tested": [c.as_dict() for c in self.of("tested")],
            "not_tested": [c.as_dict() for c in self.of("skipped")] + [{"name": name} for name in ALWAYS_UNTESTED],
            "controls": [c.as_dict() for c in self.of("control")],
            "false_alarm_rate": ALARM,
            "power": self.power,
            "seconds": self.seconds,
            "record": self.record,
        }


def power_words(audit: Audit) -> list[str]:
    """Say what the statistics could have seen, on toy rows and on the model's."""
    return [f"{where}: {_power(found)}" for where, found in audit.power.items()]


def _power(found: dict[str, Any]) -> str:
    said = f"{found['tokens']} sampled tokens, {found['open_tokens']} where draft and target differ"
    said += f"; a bias of {found['bias']:g} would have been detected with probability {found['probability']:.2f}"
    least = found["least_bias_found_99"]
    return said + (f", one of {least:g} with 0.99" if least else "; too few to be sure of any size: raise --tokens")


def text(audit: Audit) -> list[str]:
    """Return the certificate in lines; the first is the verdict."""
    subject = ", ".join(f"{k} {v}" for k, v in audit.subject.items() if k != "sampling")
    lines = [audit.verdict, f"{subject}; {sampling_words(audit.subject.get('sampling', {}))}"]
    for level, title in _TITLES.items():
        checks = audit.of(level)
        lines.append("")
        lines.append(f"{title} ({sum(bool(c.passed) for c in checks)} of {len(checks)} hold)" if checks else title)
        lines += [f"  {_MARK[c.passed] if level != 'skipped' else '-'} {c.name}: {c.said}" for c in _shown(checks)]
        if level == "proved" and checks:
            worst = max(c.numbers.get("total_variation", 0.0) for c in checks)
            lines.append(f"  largest total variation {worst:.1e}, over every branch of whole requests on 3 tokens")
        if level == "skipped":
            lines += [f"  - {name}" for name in ALWAYS_UNTESTED]
    lines += ["", *(f"power on {words}" for words in power_words(audit))]
    lines.append(f"false alarms: a right engine fails the tests above in at most {ALARM:.0%} of audits (Holm)")
    return lines


def _shown(checks: list[Check]) -> list[Check]:
    """Proofs are many and alike: name them only when they fail."""
    return [c for c in checks if c.level != "proved" or not c.passed]


def sampling_words(sampling: dict[str, Any]) -> str:
    """Write sampling parameters in one line."""
    return "sampling " + (", ".join(f"{k}={v}" for k, v in sampling.items()) or "defaults")
