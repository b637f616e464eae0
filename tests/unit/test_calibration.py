"""Sequential temperature scaling: planted temperatures come back, errors fall, and a wrong file is refused."""

import json

import pytest
import torch

from slipstream.drafters.calibration import Calibration, Outcome, calibration_error, fit, load, prefix_errors
from slipstream.types import RequestError

PLANTED = (2.0, 0.5, 4.0)


def rounds(n, temperatures=PLANTED, *, seed=0, cut=None):
    """Rounds whose token k stands with chance sigmoid(logit / T_k) once those before it do."""
    g = torch.Generator().manual_seed(seed)
    logits = 1.5 + 2.5 * torch.randn(n, len(temperatures), generator=g, dtype=torch.float64)
    stands = torch.rand(logits.shape, generator=g) < torch.sigmoid(logits / torch.tensor(temperatures))
    accepted = stands.long().cumprod(1).sum(1).tolist()
    made = []
    for b, (row, a) in enumerate(zip(logits.tolist(), accepted, strict=True)):
        most = len(row) if cut is None or b % 2 else cut
        made.append(Outcome(tuple(row[:most]), min(a, most)))
    return made


@pytest.fixture(scope="module")
def fitted():
    return fit(rounds(30_000), drafter="ab", target="toy")


def test_planted_temperatures_come_back(fitted):
    for found, planted in zip(fitted.temperatures, PLANTED, strict=True):
        assert 0.7 < found / planted < 1.4
    assert fitted.counts == (30_000,) * 3


def test_the_error_falls_on_rounds_it_was_not_fitted_to(fitted):
    fresh = rounds(30_000, seed=1)
    before, after = prefix_errors(fresh), prefix_errors(fresh, fitted.temperatures)
    assert all(b > 0.03 for b in before)
    assert all(a < 0.012 for a in after)


def test_each_depth_is_fitted_on_top_of_the_earlier_ones():
    """Were depth 2 fitted alone, its own planted 1 would come back whatever depth 1 was."""
    short = fit(rounds(30_000, (1.0, 1.0)))
    assert all(0.75 < t < 1.33 for t in short.temperatures)
    wrong_first = [Outcome((o.logits[0] - 2.0, o.logits[1]), o.accepted) for o in rounds(30_000, (1.0, 1.0))]
    made_up = fit(wrong_first).temperatures
    errors = prefix_errors(wrong_first, made_up)
    alone = prefix_errors(wrong_first, (made_up[0], 1.0))
    assert errors[1] < alone[1]


def test_a_depth_hardly_seen_keeps_one():
    found = fit(rounds(1_000, cut=1)[:200])
    assert found.counts == (200, 100, 100)
    assert found.temperatures[1:] == (1.0, 1.0)
    assert found.temperatures[0] != 1.0
    assert fit([]).temperatures == ()


def test_rounds_cut_short_count_where_they_reach():
    found = fit(rounds(60_000, cut=1))
    assert found.counts == (60_000, 30_000, 30_000)
    assert all(0.7 < f / p < 1.4 for f, p in zip(found.temperatures, PLANTED, strict=True))


def test_a_confidence_that_is_no_number_is_left_out():
    made = rounds(2_000, (1.0,))
    found = fit([*made, *[Outcome((float("nan"),), 0)] * 500])
    assert found == fit(made)


def test_the_error_by_hand():
    chances = torch.tensor([[0.1, 0.12, 0.9, 1.0]])
    stood = torch.tensor([False, True, True, False])
    want = (abs(0.1 + 0.12 - 1) + abs(0.9 - 1) + abs(1.0 - 0)) / 4
    assert float(calibration_error(chances, stood, 10)) == pytest.approx(
        (abs(0.1 + 0.12 - 1) + abs(0.9 + 1.0 - 1)) / 4, abs=1e-7
    ), "0.9 and 1 share the last of 10 bins"
    assert float(calibration_error(chances, stood, 20)) == pytest.approx(want, abs=1e-7)


class TestFiles:
    def test_round_trip(self, fitted, tmp_path):
        path = tmp_path / "dspark.json"
        fitted.save(path)
        assert load(path) == fitted
        assert load(path, drafter="ab", target="toy") == fitted
        assert [p.name for p in tmp_path.iterdir()] == ["dspark.json"]

    @pytest.mark.parametrize(("named", "word"), [({"drafter": "cd"}, "drafter"), ({"target": "other"}, "target")])
    def test_of_another_drafter_or_target(self, fitted, tmp_path, named, word):
        fitted.save(tmp_path / "c.json")
        with pytest.raises(RequestError, match=word):
            load(tmp_path / "c.json", **named)

    @pytest.mark.parametrize(
        ("change", "says"),
        [
            ({"version": 2}, "version 2"),
            ({"version": None}, "version None"),
            ({"temperatures": [1.0, 0.0]}, "temperature 0.0"),
            ({"temperatures": [1.0, True]}, "temperature True"),
            ({"temperatures": ["1"]}, "temperature '1'"),
            ({"temperatures": [float("inf")]}, "temperature inf"),
            ({"temperatures": 1.0}, "temperatures 1.0"),
            ({"bins": "20"}, "bins '20'"),
            ({"counts": [1]}, "2 temperatures but 1 counts"),
            ({"target": None}, "target None"),
        ],
    )
    def test_a_wrong_file_is_refused_by_name(self, tmp_path, change, says):
        path = tmp_path / "c.json"
        Calibration((1.0, 2.0), 20, (5, 5), "ab", "toy").save(path)
        path.write_text(json.dumps(json.loads(path.read_text()) | change))
        with pytest.raises(RequestError, match=says) as error:
            load(path)
        assert "c.json" in str(error.value)

    @pytest.mark.parametrize(("text", "says"), [("not json", "not JSON"), ("[]", "version None")])
    def test_what_is_no_calibration(self, tmp_path, text, says):
        (tmp_path / "c.json").write_text(text)
        with pytest.raises(RequestError, match=says):
            load(tmp_path / "c.json")

    def test_no_file(self, tmp_path):
        with pytest.raises(RequestError, match=r"absent\.json"):
            load(tmp_path / "absent.json")
