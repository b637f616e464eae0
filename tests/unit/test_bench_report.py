"""Rates, ratios and intervals from timings; tables."""

from __future__ import annotations

import pytest

from slipstream.measure.report import Times, rate, speedup, table


def test_rate_is_all_tokens_over_the_sum_of_median_seconds() -> None:
    assert rate([Times(10, [1.0, 9.0, 1.0]), Times(30, [3.0])]) == 10.0


def test_speedup_of_medians_is_not_moved_by_one_slow_repeat() -> None:
    plain = [Times(10, [2.0, 2.0, 2.0])] * 4
    drafted = [Times(10, [1.0, 1.0, 50.0])] * 4
    assert speedup(plain, drafted).value == 2.0


def test_interval_is_a_point_without_noise_and_covers_the_value_with_it() -> None:
    plain = [Times(10, [2.0, 2.0])] * 5
    exact = speedup(plain, [Times(10, [1.0, 1.0])] * 5)
    assert exact.low == exact.value == exact.high == 2.0
    noisy = speedup(plain, [Times(10, [0.5 + 0.25 * i, 0.6 + 0.25 * i]) for i in range(5)])
    assert noisy.low < noisy.value < noisy.high


def test_interval_is_the_same_every_time_and_widens_with_the_spread_between_prompts() -> None:
    plain = [Times(10, [1.0])] * 8
    close = [Times(10, [0.5 + 0.01 * i]) for i in range(8)]
    far = [Times(10, [0.2 + 0.1 * i]) for i in range(8)]
    assert speedup(plain, far) == speedup(plain, far)
    wide, narrow = speedup(plain, far), speedup(plain, close)
    assert wide.high - wide.low > 3 * (narrow.high - narrow.low)


def test_ratio_of_different_numbers_of_prompts_is_refused() -> None:
    with pytest.raises(ValueError, match="1 plain and 2 drafted"):
        speedup([Times(1, [1.0])], [Times(1, [1.0])] * 2)


def test_table_aligns_names_left_and_numbers_right() -> None:
    assert table(["a", "value"], [["long name", "1"], ["b", "22222222"]]).split("\n") == [
        "a             value",
        "---------  --------",
        "long name         1",
        "b          22222222",
    ]
