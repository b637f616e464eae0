"""`slipstream audit` on a tiny model: green on the right engine, red with an error planted into it, and why."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from slipstream import LLM, build
from slipstream.engine import Engine
from slipstream.measure.audit import AuditOptions, run_audit
from slipstream.measure.audit import run as audit_run
from slipstream.testing import planted, planted_engine
from slipstream.types import SamplingParams

WARM = ("--temperature", "0.8", "--top-p", "0.9", "--seed", "5")


@pytest.fixture
def audit(cli, tiny: Path):
    def run(*argv: str):
        return cli("audit", "--model", str(tiny), "--dtype", "float32", "--tokens", "300", "--quick", *argv)

    return run


@pytest.fixture(autouse=True)
def _few_proofs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Proofs and controls have tests of their own; here they only take time."""
    monkeypatch.setattr(audit_run, "QUICK_ROWS", 300)
    monkeypatch.setattr(audit_run, "controls", lambda: iter(()))
    monkeypatch.setattr(audit_run, "_proofs", lambda llm, options: iter(()))
    monkeypatch.setattr(audit_run, "new_seed", lambda: 7 << 31)


def test_a_right_engine_passes_and_the_certificate_is_whole(cli, tiny: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(audit_run, "QUICK_ROWS", 300)
    monkeypatch.setattr(audit_run, "new_seed", lambda: 7 << 31)
    page, cert = tmp_path / "audit.html", tmp_path / "cert.json"
    argv = ["audit", "--model", str(tiny), "--dtype", "float32", "--drafter", "lookup", "--tokens", "300", "--quick"]
    found = cli(*argv, *WARM, "--json", "--report", str(page), "--output", str(cert))
    assert found.status == 0, found.json["verdict"]
    assert found.json == json.loads(cert.read_text())
    assert found.json["verdict"].startswith("PASS")
    assert found.json["false_alarm_rate"] == 0.01
    assert found.json["sampling"] == {"temperature": 0.8, "top_p": 0.9}
    assert len(found.json["proved"]) >= 35
    assert all(check["numbers"]["total_variation"] < 1e-12 for check in found.json["proved"])
    assert len(found.json["controls"]) >= 30
    assert found.json["power"]["the model's rows"]["tokens"] >= 250
    assert found.json["record"]["model_hash"]
    assert found.json["record"]["seed"] == 5
    html = page.read_text()
    assert "PASS" in html
    assert "<script" not in html
    assert not list(tmp_path.glob("*.part"))


def test_the_first_line_is_the_verdict(audit) -> None:
    found = audit("--drafter", "lookup", *WARM)
    assert found.status == 0, found.out
    lines = found.out.splitlines()
    assert lines[0].startswith("PASS: no bias found")
    assert any(line.startswith("power on ") and "with probability" in line for line in lines)
    assert any("near-ties" in line for line in lines)


@pytest.mark.parametrize("argv", [("--drafter", "none"), ("--verify", "coupled"), ("--presence-penalty", "0.7")])
def test_other_settings_pass(audit, argv: tuple[str, ...]) -> None:
    found = audit(*argv)  # greedy by default: laws are tested at temperature 1
    assert found.status == 0, found.out
    assert "greedy is a point mass" in found.out


def test_a_drawn_draft_passes(audit, other: Path) -> None:
    found = audit("--drafter", f"draft_model:{other}", "--json", *WARM)
    assert found.status == 0, found.json["verdict"]
    names = [check["name"] for check in found.json["tested"]]
    assert "drafted tokens have the recorded law, the model's rows" in names


# ---------------------------------------------------------------- planted into the engine of the user


def wrong_rule(llm: LLM) -> None:
    llm.engine.rule = planted.WrongChain(coins=torch.ones_like)


def half_coins(llm: LLM) -> None:
    llm.engine.rule = planted.WrongChain(coins=lambda a: a.sqrt())


def shared_stream(llm: LLM) -> None:
    llm.engine.make_rngs = planted_engine.SharedStream


def low_precision(llm: LLM) -> None:
    llm.engine.make_rngs = planted_engine.LowPrecision


def repeated_rounds(llm: LLM) -> None:
    llm.engine.make_rngs = planted_engine.RepeatedRounds


def frozen_penalty(llm: LLM) -> None:
    llm.engine._laws = planted_engine.frozen_laws  # type: ignore[method-assign]


def stale_slot(llm: LLM) -> None:
    llm.engine.target = planted_engine.StaleSlot(llm.engine.target)  # type: ignore[assignment]


def bonus_row(llm: LLM) -> None:
    llm.engine.rule = planted.RowBefore()


def hot_drafts(llm: LLM) -> None:
    """The draft model draws at another temperature than the one its q is recorded at."""
    propose = llm.engine.drafter.propose

    def wrong(rows: Any, budget: Any, rngs: Any) -> Any:
        draft = propose(rows, budget, rngs)
        if draft.q is None:
            return draft
        q = draft.q.clamp(min=1e-30) ** 0.5
        return dataclasses.replace(draft, q=q / q.sum(-1, keepdim=True))

    llm.engine.drafter.propose = wrong  # type: ignore[method-assign]


PLANTS: dict[str, tuple[Callable[[LLM], None], str, str]] = {
    "everything accepted": (wrong_rule, "model", "law"),
    "coins too generous": (half_coins, "lookup", "guesses"),
    "a shared stream": (shared_stream, "model", "twice"),
    "bfloat16 uniforms": (low_precision, "lookup", "coins and draws"),
    "rounds draw alike": (repeated_rounds, "lookup", "twice"),
    "a frozen penalty": (frozen_penalty, "lookup", "laws verified against"),
    "a stale slot": (stale_slot, "lookup", "fresh pass"),
    "the bonus row off by one": (bonus_row, "self", "law"),
    "a wrong q": (hot_drafts, "model", "recorded law"),
}


@pytest.mark.parametrize("name", PLANTS)
def test_an_error_planted_into_the_engine_turns_the_audit_red(tiny: Path, other: Path, name: str) -> None:
    plant, drafter, where = PLANTS[name]
    spec = {"model": f"draft_model:{other}", "self": f"draft_model:{tiny}"}.get(drafter, drafter)
    llm = LLM(str(tiny), spec, dtype="float32", verify="chain")
    plant(llm)
    params = SamplingParams(temperature=0.9, presence_penalty=0.8, seed=3)
    found = run_audit(llm, AuditOptions(params, tokens=800, quick=True))
    assert not found.passed
    assert found.verdict.startswith("FAIL: ")
    assert any(where in check.name for check in found.failed), [check.name for check in found.failed]


def test_a_lossy_rule_says_so_in_the_first_line(audit, monkeypatch) -> None:
    rule = planted.Typical()
    monkeypatch.setattr(rule, "lossless", False)
    rules = dict(build.RULES) | {"auto": build.PlugIn("lossy", lambda: rule)}
    monkeypatch.setattr(build, "RULES", rules)
    found = audit(*WARM)
    assert found.status == 1
    assert found.out.splitlines()[0].startswith("LOSSY: ")


def test_an_audit_that_sees_no_planted_error_fails(audit, monkeypatch) -> None:
    from slipstream.measure.audit import Check

    blind = Check("planted: something", "control", "NOT flagged", passed=False)
    monkeypatch.setattr(audit_run, "controls", lambda: iter([blind]))
    found = audit(*WARM)
    assert found.status == 1
    assert "this audit could not have seen a bug" in found.out.splitlines()[0]


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("--tokens", "3"), "too few"),
        (("--n", "2"), "--n has no effect"),
        (("--logprobs", "1"), "--logprobs has no effect"),
        (("--report", "/nowhere/x.html"), "its folder does not exist"),
    ],
)
def test_wrong_requests(cli, tiny: Path, argv: tuple[str, ...], said: str) -> None:
    found = cli("audit", "--model", str(tiny), *argv)
    assert found.status == 2
    assert said in found.err
    assert found.out == ""


def test_the_engine_is_left_as_it_was(tiny: Path) -> None:
    llm = LLM(str(tiny), "lookup", dtype="float32")
    run_audit(llm, AuditOptions(SamplingParams(temperature=1.0), tokens=100, quick=True))
    assert llm.engine.watch is None
    assert llm.engine.idle
    assert isinstance(llm.engine, Engine)
