"""What an audit finds: one `Check` per question, and the correction for asking many.

A check either is exact (proved, or compared value by value) and passes or not, or is a statistical test with a
p-value; then it fails only if Holm's procedure over all tests of the audit rejects it. No I/O, no model.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

Level = Literal["proved", "tested", "control", "skipped"]

ALARM = 0.01  # chance that an audit of a right engine reports any bias at all


@dataclass
class Check:
    """One question and its answer. `passed` None: decided by its p-value, with all others."""

    name: str
    level: Level
    said: str
    passed: bool | None = None
    p_value: float | None = None
    numbers: dict[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return the check for JSON."""
        found: dict[str, Any] = {"name": self.name, "level": self.level, "passed": self.passed, "said": self.said}
        if self.p_value is not None:
            found["p_value"] = self.p_value
        return found | ({"numbers": self.numbers} if self.numbers else {})


def skipped(name: str, why: str) -> Check:
    """Return the record of what was not tested."""
    return Check(name, "skipped", why, passed=True)


def decide(checks: Iterable[Check], alarm: float = ALARM) -> None:
    """Decide the statistical checks together (Holm 1979): the chance of any false alarm is at most `alarm`."""
    tests = sorted((c for c in checks if c.p_value is not None), key=lambda c: c.p_value or 0.0)
    rejecting = True
    for k, check in enumerate(tests):
        assert check.p_value is not None
        # one that holds stops the procedure: no larger p-value may be rejected after it
        rejecting = rejecting and check.p_value <= alarm / (len(tests) - k)
        check.passed = not rejecting
