"""The bench of prompts made to defeat `auto`: what they are, what is compared, how the limit is judged."""

import pytest

from slipstream.measure import bench_regret
from slipstream.measure.bench_regret import Found, breaking, cases, noise
from slipstream.measure.report import Ratio


def test_a_phrase_comes_back_each_time_with_another_token_after_it():
    ids = breaking(1000, 0)
    phrase = ids[:5]
    after = [ids[i + 5] for i in range(0, len(ids) - 5, 6)]
    assert all(ids[i : i + 5] == phrase for i in range(0, len(ids), 6))
    assert len(set(after)) > 12
    assert ids == breaking(1000, 0) != breaking(1000, 1)


def test_cases_decode_as_many_tokens_either_way():
    found = cases(50, [[1, 2], [3]], 7)
    assert set(found) == {
        "temperature 0.7",
        "temperature 1.5",
        "random tokens",
        "random, temperature 1.5",
        "repeats that break",
    }
    assert all(params.ignore_eos and params.max_tokens == 7 for _, params in found.values())
    assert found["temperature 1.5"][1].seed is not None
    assert max(noise(50, 500, 3)) < 50


@pytest.mark.parametrize(
    ("low", "high", "verdict"), [(0.985, 1.1, "kept"), (0.9, 0.97, "missed"), (0.97, 1.0, "within noise")]
)
def test_the_verdict_goes_by_the_interval(low, high, verdict):
    assert Found("x", 1, 9, 1.0, Ratio((low + high) / 2, low, high)).verdict == verdict


def test_a_slower_side_is_seen(monkeypatch):
    from slipstream.measure.timing import Timing

    speeds = {"plain": 1.0, "auto": 1.25}

    class Fake:
        def __init__(self, name):
            self.name = name

        def with_drafter(self, spec):
            assert spec == "none"
            return Fake("plain")

    def runner(llm, params):
        return lambda ids: Timing([0] * params.max_tokens, speeds[llm.name], 2.0, {})

    monkeypatch.setattr(bench_regret, "llm_runner", runner)
    found = bench_regret.regret(Fake("auto"), cases(50, [[1, 2]], 8), 2, lambda: None)
    assert [round(each.ratio.value, 6) for each in found] == [0.8] * 5
    assert all(each.verdict == "missed" for each in found)
    assert "0.80x" in bench_regret.show(found, "m", "lookup")
