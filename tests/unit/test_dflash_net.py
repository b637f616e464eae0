"""DFlash's network against a second, uncached writing of it: contexts in pieces, ragged rows, windows, flags."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import pytest
import torch
from torch import Tensor

import block_reference
import draft_zoo
from slipstream.nets.dflash import DFlashNet
from slipstream.nets.draft_config import Block, DraftCheckpoint, Features, Vocab
from slipstream.nets.draft_layers import Segment
from slipstream.types import RequestError

MASK = draft_zoo.VOCAB
TABLES = draft_zoo.tables()


def dflash(windows: tuple[int | None, ...], causal: tuple[bool, ...], size: int = 4, **changes: Any) -> DraftCheckpoint:
    body = draft_zoo.body(len(windows), windows=windows, **({"qk_norm": True} | changes.pop("body", {})))
    return draft_zoo.tiny("dflash", body=body, block=Block(size, MASK, False, causal), **changes)


KINDS = {
    "full": dflash((None, None), (False, False)),
    "full, causal": dflash((None, None), (True, True)),
    "sliding, causal": dflash((3, 3), (True, True)),
    "sliding, both ways": dflash((5, 5), (False, False)),
    "window shorter than the block": dflash((2, 2), (False, False)),
    "a layer of each": dflash((None, 3, 6), (False, True, False)),
    "one window, two flags": dflash((4, 4), (False, True)),
    "window 1": dflash((1, None), (True, False)),
    "block of 2": dflash((None, 3), (False, True), size=2),
    "biases, no qk-norm": dflash((None,), (False,), body={"biases": ("qkv", "out"), "qk_norm": False}),
    "three taps, each normed": dflash((None,), (False,), features=Features((0, 2, -1), draft_zoo.H, "each")),
    "two wide taps, normed together": dflash((None,), (False,), features=Features((1, 2), 20, "whole")),
}


def net_of(found: DraftCheckpoint, rows: int = 4, length: int = 40) -> DFlashNet:
    return DFlashNet(found.config, found.tensors, TABLES, max_rows=rows, max_len=length, max_nodes=4)


def features(found: DraftCheckpoint, length: int, seed: int = 0) -> dict[int, Tensor]:
    g = torch.Generator().manual_seed(seed)
    f = found.config.features
    return {tap: torch.randn(length, f.width, generator=g, dtype=TABLES.dtype) for tap in f.taps}


def cut(taps: dict[int, Tensor], begin: int, end: int) -> dict[int, Tensor]:
    return {tap: x[begin:end] for tap, x in taps.items()}


def expected(found: DraftCheckpoint, taps: dict[int, Tensor], length: int, token: int) -> Tensor:
    return block_reference.states(found.config, found.tensors, TABLES, cut(taps, 0, length), [(length, token)])[0]


def same(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=0, atol=1e-7)  # the rotary tables are made in float32


@pytest.mark.parametrize("kind", KINDS)
def test_context_in_pieces_and_rounds_equals_the_uncached_forward(kind: str) -> None:
    found = KINDS[kind]
    net, taps, rng = net_of(found), features(found, 30), random.Random(1)
    length = 0
    while length < 30:
        size = min(rng.choice([1, 1, 2, 3, 7]), 30 - length)
        net.context(cut(taps, length, length + size), [Segment(2, length, range(length, length + size))])
        length += size
        token = rng.randrange(draft_zoo.VOCAB)
        same(net.block(torch.tensor([token]), [2])[0], expected(found, taps, length, token))
        assert net.layers.length(2) == length, "a block commits nothing"


@pytest.mark.parametrize("kind", KINDS)
def test_a_ragged_batch_equals_its_rows_alone(kind: str) -> None:
    found = KINDS[kind]
    net = net_of(found)
    felt = [features(found, 20, seed) for seed in range(3)]
    slots, at = [3, 0, 1], [0, 0, 0]
    for sizes in ([5, 1, 9], [1, 3, 2], [4, 1, 1]):
        parts = [cut(x, a, a + n) for x, a, n in zip(felt, at, sizes, strict=True)]
        joined = {tap: torch.cat([part[tap] for part in parts]) for tap in parts[0]}
        net.context(joined, [Segment(s, a, range(a, a + n)) for s, a, n in zip(slots, at, sizes, strict=True)])
        at = [a + n for a, n in zip(at, sizes, strict=True)]
        out = net.block(torch.tensor([1, 2, 3]), slots)
        for b in range(3):
            same(out[b], expected(found, felt[b], at[b], b + 1))
    swapped = net.block(torch.tensor([3, 1]), [1, 3])
    same(swapped, torch.stack([out[2], out[0]]))


def test_an_empty_context_is_allowed() -> None:
    found = KINDS["a layer of each"]
    same(net_of(found).block(torch.tensor([5]), [0])[0], expected(found, features(found, 0), 0, 5))


def test_what_a_dropped_block_or_a_former_row_left_never_leaks() -> None:
    found = KINDS["a layer of each"]
    net, taps = net_of(found), features(found, 12)
    net.layers.cache.keys.fill_(torch.nan)
    net.layers.cache.values.fill_(torch.nan)
    net.context(cut(taps, 0, 9), [Segment(1, 0, range(9))])
    same(net.block(torch.tensor([4]), [1])[0], expected(found, taps, 9, 4))
    net.layers.keep(1, 0)
    net.context({tap: x + torch.nan for tap, x in cut(taps, 0, 12).items()}, [Segment(1, 0, range(12))])
    assert net.block(torch.tensor([4]), [1]).isnan().any()
    net.layers.keep(1, 0)
    net.context(cut(taps, 0, 3), [Segment(1, 0, range(3))])
    same(net.block(torch.tensor([4]), [1])[0], expected(found, taps, 3, 4))


def test_a_row_of_broken_features_does_not_touch_its_neighbours() -> None:
    found = KINDS["full"]
    net, taps = net_of(found), features(found, 6)
    broken = {tap: torch.cat([x, x * torch.inf]) for tap, x in taps.items()}
    net.context(broken, [Segment(0, 0, range(6)), Segment(1, 0, range(6))])
    out = net.block(torch.tensor([1, 1]), [0, 1])
    same(out[0], expected(found, taps, 6, 1))
    assert out[1].isnan().all()


def test_a_window_ends_where_it_says() -> None:
    """A sliding layer of window w at slot k sees the context rows at distance below w, and no other."""
    found = dflash((4,), (True,))
    taps = features(found, 10)

    def changed(place: int) -> list[bool]:
        net, other = net_of(found), {tap: x.clone() for tap, x in taps.items()}
        for x in other.values():
            x[place] += 1
        net.context(other, [Segment(0, 0, range(10))])
        return [not torch.equal(a, b) for a, b in zip(net.block(torch.tensor([2]), [0])[0], before, strict=True)]

    net = net_of(found)
    net.context(taps, [Segment(0, 0, range(10))])
    before = net.block(torch.tensor([2]), [0])[0]
    assert [changed(place) for place in (6, 7, 8, 9)] == [
        [False] * 4,
        [True, False, False, False],
        [True, True, False, False],
        [True, True, True, False],
    ]


@pytest.mark.parametrize(("causal", "alike"), [(True, True), (False, False)])
def test_fewer_slots_change_the_others_only_where_they_are_seen(causal: bool, alike: bool) -> None:
    found = dflash((None, None), (causal, causal))
    net, taps = net_of(found), features(found, 6)
    net.context(taps, [Segment(0, 0, range(6))])
    whole, part = net.block(torch.tensor([3]), [0]), net.block(torch.tensor([3]), [0], size=2)
    assert torch.allclose(whole[:, :2], part, atol=1e-9) == alike


def test_own_tables_and_a_reduced_head() -> None:
    found = dflash((None,), (False,), vocab=Vocab(13, 5, own_embed=True, own_head=True))
    net, taps = net_of(found), features(found, 6)
    net.context(taps, [Segment(0, 0, range(6))])
    out = net.block(torch.tensor([3]), [0])[0]
    same(out, expected(found, taps, 6, 3))
    same(net.logits(out), out @ found.tensors["head.weight"].T)


def test_a_reduced_vocabulary_without_a_head_reads_the_target_s_rows() -> None:
    found = dflash((None,), (False,), vocab=Vocab(12, 5))
    net = net_of(found)
    x = torch.randn(2, draft_zoo.H, dtype=TABLES.dtype)
    same(net.logits(x), TABLES.head(x)[:, found.tensors["vocab_map"]])


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (draft_zoo.tiny("dflash", block=Block(4, 14, False, (False, False))), "mask token 14"),
        (draft_zoo.tiny("dflash", vocab=9, block=Block(4, 9, False, (False, False))), None),
        (dflash((None,), (False,), vocab=Vocab(5, 5, own_embed=True), features=Features((1,), 16)), "mask token 12"),
        (draft_zoo.tiny("dflash", block=None), "without a block"),
    ],
)
def test_a_drafter_that_cannot_work_is_refused(found: DraftCheckpoint, says: str | None) -> None:
    if says is None:
        net_of(found)
        return
    with pytest.raises(RequestError, match=says):
        net_of(found)


def test_another_width_needs_own_tables() -> None:
    tables = dataclasses.replace(TABLES, hidden=24)
    found = KINDS["full"]
    with pytest.raises(RequestError, match="width 16 is not the target's, 24"):
        DFlashNet(found.config, found.tensors, tables, max_rows=1, max_len=8, max_nodes=4)


def test_a_block_of_a_size_that_was_not_trained_is_refused() -> None:
    with pytest.raises(RequestError, match="5 slots"):
        net_of(KINDS["full"]).block(torch.tensor([1]), [0], size=5)


def test_sizes_are_told() -> None:
    found = KINDS["full"]
    net = net_of(found)
    assert net.nbytes == sum(x.nbytes for x in found.tensors.values())
    assert net.row_bytes == 2 * 2 * 2 * 8 * 8
