"""The certificate says first what matters most, and its page shows everything and trusts no text."""

from __future__ import annotations

import json

import pytest

from slipstream.measure.audit import Audit, Check
from slipstream.measure.audit.certificate import text
from slipstream.measure.audit.findings import skipped
from slipstream.measure.audit.html import html

PROVED = Check("rule chain: drawn chain", "proved", "exact", True, numbers={"total_variation": 2e-16})
TESTED = Check("no lean <b>", "tested", "p = 0.5", True, p_value=0.5)
PLANTED = Check("planted: bonus row off by one", "control", "flagged", True)
SUBJECT = {"model": "m<script>", "drafter": "lookup", "verify": "typical", "sampling": {"temperature": 0.8}}
POWER = {"tokens": 100, "open_tokens": 40, "bias": 0.03, "probability": 0.25, "least_bias_found_99": 0.1}


def audit(**changes: object) -> Audit:
    checks = [PROVED, TESTED, PLANTED, skipped("tied drafts", "none <drawn>")]
    values = {"subject": SUBJECT, "checks": checks, "power": {"the model's rows": POWER}, "record": {"argv": ["<x>"]}}
    return Audit(**(values | changes))  # type: ignore[arg-type]


def failing(check: Check) -> Check:
    return Check(check.name, check.level, check.said, False, check.p_value, check.numbers)


def test_a_pass_needs_everything() -> None:
    assert audit().passed
    assert audit().verdict == "PASS: no bias found: 1 laws proved exact, 1 tests held, all 1 planted errors flagged"
    for check in (PROVED, TESTED, PLANTED):
        assert not audit(checks=[failing(check)]).passed
    assert not audit(lossless=False).passed


@pytest.mark.parametrize(
    ("changes", "first"),
    [
        ({"checks": [failing(PROVED), failing(TESTED)]}, "FAIL: rule chain: drawn chain: exact and 1 more"),
        ({"checks": [PROVED, failing(PLANTED)]}, "FAIL: this audit could not have seen a bug: 1 planted"),
        ({"lossless": False}, "LOSSY: rule 'typical' gives up the target's law"),
        ({"lossless": False, "checks": [failing(TESTED)]}, "LOSSY: "),
    ],
)
def test_the_first_line(changes: dict[str, object], first: str) -> None:
    assert text(audit(**changes))[0].startswith(first)


def test_text_states_power_and_what_was_not_tested() -> None:
    said = "\n".join(text(audit()))
    assert "power on the model's rows: 100 sampled tokens, 40 where draft and target differ" in said
    assert "a bias of 0.03 would have been detected with probability 0.25, one of 0.1 with 0.99" in said
    assert "tied drafts" in said
    assert "largest total variation 2.0e-16" in said
    none = audit(power={"the model's rows": POWER | {"least_bias_found_99": None}})
    assert "raise --tokens" in "\n".join(text(none))


def test_a_failed_proof_is_named_and_a_right_one_is_counted() -> None:
    assert "drawn chain" not in "\n".join(text(audit())[1:])
    assert "FAIL rule chain: drawn chain" in "\n".join(text(audit(checks=[failing(PROVED)]))[1:])


def test_json_holds_all_levels() -> None:
    found = json.loads(json.dumps(audit().as_dict()))
    assert [check["name"] for check in found["proved"]] == [PROVED.name]
    assert found["tested"][0]["p_value"] == 0.5
    assert found["not_tested"][0]["name"] == "tied drafts"
    assert len(found["not_tested"]) > 1
    assert found["controls"][0]["passed"] is True


def test_the_page_escapes_and_draws() -> None:
    page = html(audit(curves={"the model's rows": [(0.0, 0.0), (0.5, 0.4), (1.0, 0.0)]}))
    for part in ("m&lt;script&gt;", "no lean &lt;b&gt;", "none &lt;drawn&gt;", "&lt;x&gt;", "<polyline", "flagged"):
        assert part in page
    assert "<script" not in page
    assert "<svg" not in html(audit())  # nothing watched, nothing drawn
