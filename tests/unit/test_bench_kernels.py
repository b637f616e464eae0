"""The kernels' bench on shapes of a few rows: its numbers agree with each other, and limits are noticed."""

from __future__ import annotations

import pytest

from slipstream import kernels
from slipstream.measure import bench_kernels as bench

TINY = bench.Shapes(((64, 64), (33, 256)), 2, (100, 64))


def row(**changed: object) -> dict[str, object]:
    good = {"model": "1.5B", "kind": "q8", "least": 0.7, "share": 0.8, "ratios": [1, 1, 1, 1, 1.4, 2]}
    return {**good, "bytes": 1, "ms": [1] * 6, "gbs": 1, "read": 1, **changed}


@pytest.mark.skipif(not kernels.available(), reason=f"kernels: {kernels.reason()}")
def test_measures_every_kind(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(bench, "MODELS", {"1.5B": TINY})
    monkeypatch.setattr(bench, "BANDWIDTH_BYTES", 1 << 20)
    assert bench.run(["--model", "1.5B", "--repeats", "2"]) == 0
    said = capsys.readouterr().out
    assert all(name in said for name, *_ in bench.KINDS)
    assert kernels.level() in said


@pytest.mark.skipif(not kernels.available(), reason=f"kernels: {kernels.reason()}")
def test_ratios_are_of_the_measured_times() -> None:
    found = bench.measure(TINY, "q4", "Q4_K", 1)
    assert found["ratios"][0] == 1
    assert found["ratios"][4] == pytest.approx(found["ms"][4] / found["ms"][0])
    assert found["gbs"] == pytest.approx(found["bytes"] / found["ms"][0] * 1e-6)
    assert found["share"] == pytest.approx(found["gbs"] / found["read"])


def test_limits_name_what_misses_them() -> None:
    assert bench.shortfalls([row()], "amx") == []
    slow = bench.shortfalls([row(share=0.5)], "avx512")
    steep = bench.shortfalls([row(ratios=[1, 1, 1, 1, 1.6, 2])], "amx")
    assert "50%" in slow[0]
    assert "1.60" in steep[0]
    assert bench.shortfalls([row(share=0.1, ratios=[1, 2, 3, 4, 9, 9])], "avx2") == []


def test_without_kernels_it_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "available", lambda: False)
    monkeypatch.setattr(kernels, "reason", lambda: "not built")
    with pytest.raises(bench.WorkError, match="not built"):
        bench.run([])
