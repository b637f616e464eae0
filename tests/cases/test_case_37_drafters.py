"""Case 37 for learned drafters: each option has an effect or is refused by name, whatever its type."""

from __future__ import annotations

from typing import Any

import pytest

from slipstream.drafters.dspark import DSparkOptions
from slipstream.drafters.eagle import EagleOptions
from slipstream.drafters.peagle import PEagleOptions
from slipstream.types import RequestError

ODD = [0, -1, 2.5, "3", True, None, [1]]


@pytest.mark.parametrize("value", [v for v in ODD if v is not None])
@pytest.mark.parametrize("name", ["depth", "top_k"])
def test_case_37_a_trees_size_is_a_whole_number(name: str, value: Any) -> None:
    with pytest.raises(RequestError, match=f"{name}="):
        EagleOptions(shape="tree", **{name: value})


@pytest.mark.parametrize("name", ["depth", "top_k"])
def test_case_37_a_trees_size_is_refused_for_a_chain(name: str) -> None:
    with pytest.raises(RequestError, match=f"{name}=3 has no effect on a chain"):
        EagleOptions(**{name: 3})
    assert getattr(EagleOptions(shape="tree", **{name: 3}).growth, name) == 3


@pytest.mark.parametrize("value", ODD)
def test_case_37_peagle_depth(value: Any) -> None:
    with pytest.raises(RequestError, match="depth="):
        PEagleOptions(depth=value)


@pytest.mark.parametrize("value", [-1, 1, 1.5, "0.5", True, None, [0.5], float("nan")])
def test_case_37_dspark_threshold(value: Any) -> None:
    with pytest.raises(RequestError, match="threshold="):
        DSparkOptions(threshold=value)


@pytest.mark.parametrize("value", [0, 2, None, {}, {"1": 2}, True, [0.0], ["2"], [float("inf")]])
def test_case_37_dspark_temperatures(value: Any) -> None:
    with pytest.raises(RequestError, match="temperature"):
        DSparkOptions(temperatures=value)
