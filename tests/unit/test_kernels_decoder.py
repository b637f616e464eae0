"""Attention and row operations of the kernels against float64, at every level this machine has."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch

from slipstream import kernels
from slipstream.nets.kv_cache import CacheShape

pytestmark = pytest.mark.skipif(not kernels.available(), reason=f"no kernels: {kernels.reason()}")
LEVELS = kernels.levels() if kernels.available() else []
TREE_PATHS = [[0], [0, 1], [0, 2], [0, 1, 3], [0, 2, 4], [0, 2, 4, 5]]


@pytest.fixture(autouse=True)
def _same_level_after() -> Iterator[None]:
    before = kernels.level()
    yield
    kernels.set_level(before)


class Bench:
    """A filled cache with the keys and values that went in, and queries over it."""

    def __init__(self, dim: int, kv_heads: int, groups: int, length: int, kv: torch.dtype) -> None:
        from slipstream.kernels.cache import KernelCache

        self.cache = KernelCache(CacheShape(2, 3, kv_heads, dim, length, 8), kv)
        for buffer in (self.cache.keys, self.cache.values):
            buffer.fill_(float("nan"))
        self.keys = torch.randn(length + 8, kv_heads, dim).to(kv).float()
        self.values = torch.randn(length + 8, kv_heads, dim).to(kv).float()
        self.groups, self.heads, self.dim = groups, groups * kv_heads, dim
        self.scale = dim**-0.5
        for place in range(length + 8):
            self.write(place)

    def write(self, place: int) -> None:
        key, value = self.keys[place].data_ptr(), self.values[place].data_ptr()
        kernels.native().write_entry(self.cache.native, 1, 2, place, key, value)

    def attend(self, queries: torch.Tensor, start: int, paths: list[list[int]], window: int = 0) -> torch.Tensor:
        out = torch.full_like(queries, float("nan"))
        kernels.native().attend(
            *(self.cache.native, 1, 2, start, paths, self.heads, window, self.scale),
            *(queries.data_ptr(), out.data_ptr()),
        )
        return out

    def exact(self, queries: torch.Tensor, start: int, paths: list[list[int]], window: int = 0) -> torch.Tensor:
        return self.weighed(queries, start, paths, window, self.values)

    def weighed(
        self, queries: torch.Tensor, start: int, paths: list[list[int]], window: int, values: torch.Tensor
    ) -> torch.Tensor:
        rows = []
        for q, path in zip(queries.double(), paths, strict=True):
            seen = [*range(start), *(start + node for node in path)]
            seen = seen[-window:] if window else seen
            k = self.keys[seen].double().repeat_interleave(self.groups, 1)  # [T, heads, D]
            v = values[seen].double().repeat_interleave(self.groups, 1)
            weights = torch.softmax(torch.einsum("hd,thd->ht", q, k) * self.scale, -1)
            rows.append(torch.einsum("ht,thd->hd", weights, v))
        return torch.stack(rows)


@pytest.mark.parametrize("kv", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("window", [0, 5, 300])
@pytest.mark.parametrize(("dim", "groups"), [(8, 1), (40, 2), (64, 3), (96, 4), (128, 2), (128, 6), (64, 7), (256, 1)])
def test_attention_equals_float64(dim: int, groups: int, window: int, kv: torch.dtype) -> None:
    for length in (0, 1, 15, 16, 17, 124, 127, 128, 255, 257, 600):
        bench = Bench(dim, 2, groups, length, kv)
        queries = 2 * torch.randn(len(TREE_PATHS), bench.heads, dim)
        expected = bench.exact(queries, length, TREE_PATHS, window)
        for level in LEVELS:
            if level == "amx" and kv is torch.bfloat16:
                continue  # below
            kernels.set_level(level)
            found = bench.attend(queries, length, TREE_PATHS, window)
            assert (found - expected).abs().max() < 2e-6 * (1 + expected.abs().max()), f"{level}, {length} tokens"


@pytest.mark.skipif("amx" not in LEVELS, reason="this machine lacks the level amx")
@pytest.mark.parametrize("window", [0, 5, 40, 300])
@pytest.mark.parametrize(
    ("dim", "groups"), [(7, 2), (8, 1), (40, 2), (64, 3), (96, 4), (128, 2), (128, 6), (64, 7), (80, 8), (256, 1)]
)
def test_attention_in_tiles_rounds_queries_and_weights_to_bfloat16_and_nothing_else(
    dim: int, groups: int, window: int
) -> None:
    kernels.set_level("amx")
    for length in (0, 1, 15, 16, 17, 31, 32, 33, 63, 124, 127, 128, 129, 255, 257, 600):
        bench = Bench(dim, 2, groups, length, torch.bfloat16)
        queries = 2 * torch.randn(len(TREE_PATHS), bench.heads, dim)
        rounded = queries.bfloat16().float()
        expected = bench.exact(rounded, length, TREE_PATHS, window)
        # a weight of 8 bits is moved by half its last place at most
        bound = 2**-8 * bench.weighed(rounded, length, TREE_PATHS, window, bench.values.abs()) + 1e-5
        found = bench.attend(queries, length, TREE_PATHS, window)
        assert ((found - expected).abs() <= bound).all(), f"{length} tokens"
        assert (found - expected).abs().mean() < 2e-3 * expected.abs().mean() + 1e-6


@pytest.mark.parametrize("level", LEVELS)
def test_attention_has_the_same_bits_wherever_the_nodes_lie(level: str) -> None:
    """The same keys and values, as a chain, as a path of a tree behind a shorter text, and one row at a time."""
    kernels.set_level(level)
    for length in (3, 14, 125, 126, 127, 128, 255, 500):
        bench = Bench(64, 2, 3, length, torch.bfloat16)
        queries = torch.randn(4, bench.heads, 64)
        chain = bench.attend(queries, length, [[0], [0, 1], [0, 1, 2], [0, 1, 2, 3]])
        for row in range(4):
            one = bench.attend(queries[row : row + 1], length, [list(range(row + 1))])
            assert torch.equal(one[0], chain[row])
        for source, place in ((3, 7), (2, 5), (1, 2)):
            bench.keys[length + place], bench.values[length + place] = (
                bench.keys[length + source].clone(),
                bench.values[length + source].clone(),
            )
            bench.write(length + place)
        tree = bench.attend(queries, length, [[0], [0, 2], [0, 2, 5], [0, 2, 5, 7]])
        assert torch.equal(tree, chain)


@pytest.mark.parametrize("kv", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("level", LEVELS)
def test_huge_scores_and_broken_keys(level: str, kv: torch.dtype) -> None:
    kernels.set_level(level)
    bench = Bench(64, 1, 2, 40, kv)
    queries = (1e3 * torch.randn(1, 2, 64)).to(kv).float()
    expected = bench.exact(queries, 40, [[0]])
    off = (bench.attend(queries, 40, [[0]]) - expected).abs()
    if level == "amx" and kv is torch.bfloat16:  # weights of 8 bits, as above
        off -= 2**-8 * bench.weighed(queries, 40, [[0]], 0, bench.values.abs())
    assert off.max() < 1e-4
    bench.keys[7] = float("nan")
    bench.write(7)
    assert bench.attend(queries, 40, [[0]]).isnan().all()
    assert bench.attend(queries, 40, [[0]], window=20).isfinite().all()
    assert not math.isnan(float(bench.attend(torch.zeros(1, 2, 64), 40, [[0]], window=3).sum()))


@pytest.mark.parametrize("broken", [math.nan, math.inf])
@pytest.mark.parametrize("level", LEVELS)
def test_a_broken_value_reaches_only_the_rows_that_see_it(level: str, broken: float) -> None:
    kernels.set_level(level)
    chain = [list(range(row + 1)) for row in range(6)]
    for length, window in ((3, 0), (29, 0), (126, 0), (60, 40)):
        bench = Bench(64, 2, 3, length, torch.bfloat16)
        queries = torch.randn(6, bench.heads, 64)
        clean = bench.attend(queries, length, chain, window)
        place = length - 37 if window else length + 3  # the first position that row 3 does not see, or its own
        bench.values[place, :, 5] = broken
        bench.write(place)
        found = bench.attend(queries, length, chain, window)
        sees = [place > length + row - window if window else row >= 3 for row in range(6)]
        assert sees == [True] * 3 + [False] * 3 if window else sees == [False] * 3 + [True] * 3
        for row, seen in enumerate(sees):
            assert bool(found[row, :, 5].isfinite().any()) != seen
            assert torch.equal(found[row], clean[row]) != seen
