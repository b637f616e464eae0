"""The benchmark's sections on a tiny model made here: what they time is what they say, and nothing is half-written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from slipstream import LLM
from slipstream.measure import bench, bench_hf, bench_overhead
from slipstream.measure.workloads import Prompt
from slipstream.types import SamplingParams
from tiny_model import make_model

PROMPTS = {"one": [5, 6, 7, 8, 9], "two": [9, 8, 7]}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def llm(tiny: Path) -> LLM:
    return LLM(str(tiny), "lookup", dtype="float32", max_rows=1)


def test_native_and_transformers_emit_the_same_tokens(llm: LLM) -> None:
    ticks: list[None] = []
    plain = llm.with_drafter("none")
    found = bench_hf.against_transformers(plain, PROMPTS, 12, 2, lambda: ticks.append(None))
    assert found["equal_outputs"] == 2
    assert len(ticks) == 2 * 2 * 2
    assert "outputs equal on 2 of 2" in bench_hf.show(found)


def test_overhead_has_a_row_per_drafter(llm: LLM) -> None:
    llms = {"none": llm.with_drafter("none"), "lookup": llm}
    params = SamplingParams(max_tokens=24, ignore_eos=True)
    rows = bench_overhead.overhead(llms, PROMPTS, params, 1, lambda: None)
    assert [row["drafter"] for row in rows] == ["none", "lookup"]
    plain, lookup = rows
    assert plain["rounds"] == 2 * 24
    assert 0 < lookup["rounds"] <= 2 * 24
    assert all(row["target_ms"] > 0 and row["other_percent"] > 0 for row in rows)


def test_output_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    bench._write(tmp_path / "found.json", {"a": 1})
    assert json.loads((tmp_path / "found.json").read_text()) == {"a": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["found.json"]
    with pytest.raises(bench.WorkError, match="cannot write"):
        bench._write(tmp_path / "nowhere" / "found.json", {"a": 1})


def test_speed_section_of_a_local_model(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench, "ROOM", 128)
    monkeypatch.setattr(bench, "load_prompts", lambda *_: bench_prompts())
    target = tmp_path / "speed.json"
    argv = ["--model", str(tiny), "--only", "speed", "--prompts", "free", "--dtype", "float32", "--max-tokens", "20"]
    assert bench.main([*argv, "--repeats", "2", "--output", str(target)]) == 0
    text = capsys.readouterr().out
    assert "outputs identical" in text
    assert "record: revision" in text
    found = json.loads(target.read_text())
    assert found["speed"]["free"]["statement"] == "outputs identical"
    assert len(found["speed"]["free"]["prompts"][0]["plain_decode_seconds"]) == 2


def bench_prompts() -> list[Prompt]:
    return [Prompt("cat", "free", [{"role": "user", "content": "the cat sat"}])]
