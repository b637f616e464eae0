"""The cache: what is written where, what a kept path leaves behind, and that unused length costs nothing."""

from __future__ import annotations

import resource
import sys

import pytest
import torch

from slipstream.measure.memory import resident
from slipstream.nets.kv_cache import CacheShape, KVCache, zero_pages
from slipstream.types import RequestError, WorkError

CPU = torch.device("cpu")


def cache(rows: int = 2) -> KVCache:
    return KVCache(CacheShape(layers=3, rows=rows, kv_heads=2, head_dim=4, max_len=10, scratch=6), torch.float32, CPU)


def entries(*marks: int) -> torch.Tensor:
    """Entries [N, KV, D] filled with recognisable numbers."""
    return torch.tensor(marks, dtype=torch.float32)[:, None, None].expand(-1, 2, 4)


def fill(kv: KVCache, slot: int, *marks: int) -> None:
    """Write one entry per mark at the slot's length, in every layer; values are the negated keys."""
    for layer in range(kv.shape.layers):
        shifted = entries(*marks) + 100 * layer
        kv.write(layer, slot, kv.lengths[slot], shifted, -shifted)


def held(kv: KVCache, slot: int, layer: int = 0) -> list[float]:
    keys, values = kv.read(layer, slot, 0, kv.lengths[slot])
    assert torch.equal(keys, -values)
    assert (keys == keys[:1, :, :1]).all()
    return (keys[0, :, 0] - 100 * layer).tolist()


@pytest.mark.parametrize(
    "path, kept",
    [([], [1, 2, 10]), ([1], [1, 2, 10, 11]), ([1, 2, 3], [1, 2, 10, 11, 12, 13]), ([2, 3, 5], [1, 2, 10, 12, 13, 15])],
)
def test_kept_path_moves_into_place_in_every_layer(path: list[int], kept: list[int]) -> None:
    kv = cache()
    fill(kv, 1, 1, 2)
    kv.keep(1, [1])
    fill(kv, 1, 10, 11, 12, 13, 14, 15)
    kv.keep(1, path)
    assert [held(kv, 1, layer) for layer in range(3)] == [kept] * 3
    assert kv.lengths == [0, len(kept)]


def test_overlapping_move_reads_before_it_writes() -> None:
    kv = cache()
    fill(kv, 0, 0, 1, 2, 3, 4, 5)
    kv.keep(0, [2, 3, 4, 5])
    assert held(kv, 0) == [0, 2, 3, 4, 5]


def test_other_rows_are_untouched() -> None:
    kv = cache()
    fill(kv, 0, 7, 8)
    kv.keep(0, [1])
    fill(kv, 1, 1, 2, 3)
    kv.keep(1, [2])
    assert held(kv, 0) == [7, 8]


def test_truncate_cuts_and_refuses_to_grow() -> None:
    kv = cache()
    fill(kv, 0, 1, 2, 3)
    kv.keep(0, [1, 2])
    kv.truncate(0, 1)
    assert held(kv, 0) == [1]
    for wrong in (2, -1):
        with pytest.raises(RequestError, match="holds 1 tokens"):
            kv.truncate(0, wrong)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_unused_length_costs_no_memory(dtype: torch.dtype) -> None:
    shape = CacheShape(layers=16, rows=8, kv_heads=2, head_dim=64, max_len=65536, scratch=64)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    kv = KVCache(shape, dtype, CPU)
    kv.write(15, 7, 65500, torch.ones(4, 2, 64, dtype=dtype), torch.ones(4, 2, 64, dtype=dtype))
    assert kv.read(15, 7, 65500, 65504)[0].sum() == 4 * 2 * 64
    assert kv.keys.dtype == dtype
    assert kv.nbytes == 2 * 16 * 8 * 2 * 65600 * 64 * dtype.itemsize
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # KiB, of more than 4 million


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
def test_a_short_text_takes_small_pages() -> None:
    """With huge ones each layer and head would take 2 MiB for its first token."""
    buffer = zero_pages((16, 8, 2, 16384, 64), torch.bfloat16)
    before = resident()["RssAnon"]
    buffer[:, 0, :, :2] = 1
    assert 32 * 4096 <= resident()["RssAnon"] - before < 8 << 20


def test_cache_that_cannot_fit_says_what_to_change() -> None:
    with pytest.raises(WorkError, match=r"GiB \(4 rows of 1000000064 tokens\) does not fit; use a smaller max_len"):
        KVCache(CacheShape(32, 4, 64, 128, 10**9, 64), torch.float32, CPU)
