"""The bench for a GPU runs whole on a CPU with a tiny model, and names what it leaves out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from slipstream.measure import bench_gpu, bench_gpu_passes
from slipstream.measure.bench_gpu_passes import NODES, WAYS, random_decoder
from slipstream.nets.quantised import QuantisedLinear


def test_it_runs_on_a_tiny_model_and_writes_its_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "out.json"
    ways = "recorded;int8;row by row"
    assert bench_gpu.main(["--quick", "--device", "cpu", "--ways", ways, "--output", str(file)]) == 0
    found = json.loads(file.read_text())
    assert [r["waits"] for r in found if "waits" in r][:2] == ["none, greedy", "none, top-p"]
    timed = [r for r in found if "ms" in r]
    assert {(r["way"], r["rows"]) for r in timed} == {(way, rows) for way in ways.split(";") for rows in (1, 4)}
    assert all(list(r["ms"]) == [str(n) for n in NODES] for r in timed)
    said = capsys.readouterr().out
    assert "Waits of a round" in said
    assert "tiny, context 40, 4 row(s): ms per pass" in said
    assert "T(16)/T(1)" in said


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_device_it_skips_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench_gpu.main([]) == 0
    assert capsys.readouterr().out == "skipped: bench-gpu needs a CUDA device, and torch sees none\n"


def test_ways_that_cannot_be_had_and_models_that_are_not_here_are_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(
        bench_gpu_passes, "lacking", lambda quantize, device: "no product" if quantize == "int4" else ""
    )
    monkeypatch.setenv("SLIPSTREAM_HOME", str(tmp_path))
    assert bench_gpu.main(["--quick", "--device", "cpu", "--ways", "recorded;int4"]) == 0
    assert "skipped: int4: no product\n" in capsys.readouterr().out
    plan = bench_gpu.Plan(torch.device("cpu"), ["tiny"], ["recorded"], [40], 1, 4)
    assert bench_gpu._speeds(plan, "smollm2-135m-instruct") == []
    assert "skipped: plain and lookup: smollm2-135m-instruct is not here" in capsys.readouterr().out
    assert bench_gpu.main(["--ways", "faster", "--device", "cpu"]) == 2


def test_tables_hold_speeds_with_their_ratio() -> None:
    record = {"model": "m", "prompts": "free", "way": "int4", "plain": 50.0, "lookup": 75.0}
    assert bench_gpu.show([record]).splitlines()[-1].split() == ["free,", "int4", "50.0", "75.0", "1.50"]


def test_weights_of_a_way_are_packed() -> None:
    decoder = random_decoder("tiny", torch.device("cpu"), 64, WAYS["int8"].quantize)
    assert isinstance(decoder.net.weights.head, QuantisedLinear)
    assert decoder.nodes([0], torch.ones(1, 3, dtype=torch.int64))[0].isfinite().all()


def test_kernels_are_not_counted_where_there_are_none() -> None:
    assert bench_gpu_passes.kernels(torch.device("cpu"), lambda: None) is None
