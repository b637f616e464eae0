"""The cost table: interpolation, monotony, and that measuring leaves the target as it was."""

import pytest
import torch

from slipstream.control import cost
from slipstream.testing import RandomLaw, ToyTarget
from slipstream.types import RequestError


def test_lines_between_points_and_the_last_slope_beyond():
    table = cost.CostTable({1: 1.0, 4: 4.0, 8: 6.0})
    assert [table(n) for n in (1, 2, 4, 6, 8, 12)] == pytest.approx([1, 2, 4, 5, 6, 8])


def test_one_point_is_a_flat_table():
    table = cost.CostTable({4: 2.0})
    assert [table(n) for n in (1, 4, 64)] == [2.0, 2.0, 2.0]


def test_a_dip_is_noise():
    table = cost.CostTable({1: 2.0, 2: 1.0, 3: 3.0})
    assert [table(n) for n in (1, 2, 3)] == [2.0, 2.0, 3.0]


@pytest.mark.parametrize("points", [{}, {0: 1.0}, {1: 0.0}])
def test_a_table_that_says_nothing_is_refused(points):
    with pytest.raises(RequestError, match="cost table"):
        cost.CostTable(points)


def test_measuring_times_every_size_and_leaves_the_slot_empty(monkeypatch):
    class Slow(ToyTarget):
        def score(self, slots, draft):
            clock[0] += 0.001 * draft.nodes + 0.01
            return super().score(slots, draft)

    clock = [0.0]
    monkeypatch.setattr(cost.time, "perf_counter", lambda: clock[0])
    target = Slow(RandomLaw(5, 1, order=1), 5, max_rows=1)
    table = cost.measure(target, seconds=0.5)
    assert not target.cache.get(0)
    assert [table(n) for n in (1, 8, 16)] == pytest.approx([0.011, 0.018, 0.026])
    assert torch.tensor(table.nodes).max() <= target.caps.max_nodes
