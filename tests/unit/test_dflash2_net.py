"""DFlash 2's network against a second writing of its convolutions and scores, slot by slot and channel by channel."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import pytest
import torch
from torch import Tensor

import block_reference
import draft_zoo
from slipstream.nets.dflash2 import DFlash2Net
from slipstream.nets.draft_config import Block, DraftCheckpoint, Paths, Vocab
from slipstream.nets.draft_layers import Segment
from slipstream.types import RequestError

MASK, H = draft_zoo.VOCAB, draft_zoo.H
TABLES = draft_zoo.tables()


def dflash2(
    windows: tuple[int | None, ...] = (None, None),
    causal: tuple[bool, ...] | None = None,
    *,
    paths: Paths | None = None,
    size: int = 5,
    anchor: bool = False,
    **changes: Any,
) -> DraftCheckpoint:
    body = draft_zoo.body(len(windows), windows=windows, qk_norm=True)
    block = Block(size, MASK, anchor, causal or (False,) * len(windows))
    return draft_zoo.tiny("dflash2", body=body, block=block, paths=paths or Paths(2, 4, 6, 4), **changes)


KINDS = {
    "two taps": dflash2(),
    "three taps": dflash2(paths=Paths(3, 8, 6, 4)),
    "one tap": dflash2(paths=Paths(1, 16, 6, 4)),
    "as many taps as slots": dflash2(paths=Paths(5, 2, 6, 4)),
    "more taps than slots": dflash2(paths=Paths(4, 1, 6, 4), size=3),
    "sliding both ways": dflash2((3, 4)),
    "sliding, causal": dflash2((3, None), (True, False)),
    "causal": dflash2((None, None), (True, True)),
    "anchor predicts": dflash2(anchor=True),
}


def net_of(found: DraftCheckpoint, tables: Any = TABLES, rows: int = 3) -> DFlash2Net:
    return DFlash2Net(found.config, found.tensors, tables, max_rows=rows, max_len=30, max_nodes=4)


def features(found: DraftCheckpoint, length: int, seed: int = 0) -> dict[int, Tensor]:
    g = torch.Generator().manual_seed(seed)
    return {t: torch.randn(length, H, generator=g, dtype=TABLES.dtype) for t in found.config.features.taps}


def cut(taps: dict[int, Tensor], begin: int, end: int) -> dict[int, Tensor]:
    return {tap: x[begin:end] for tap, x in taps.items()}


def expected(found: DraftCheckpoint, taps: dict[int, Tensor], length: int, token: int, tables: Any = TABLES) -> Tensor:
    return block_reference.states(found.config, found.tensors, tables, cut(taps, 0, length), [(length, token)])[0]


def same(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=0, atol=1e-7)  # the rotary tables are made in float32


def by_hand(x: Tensor, base: Tensor, given: Tensor, group: int) -> Tensor:
    """A convolution of one block x [S, H], number after number; base [T, H], given [S, T, groups]."""
    out = torch.zeros_like(x)
    for slot in range(len(x)):
        for channel in range(x.shape[1]):
            for tap in range(min(len(base), slot + 1)):
                k = base[tap, channel] + given[slot, tap, channel // group]
                out[slot, channel] += k * x[slot - tap, channel]
    return out


@pytest.mark.parametrize("paths", [Paths(1, 4, 1, 1), Paths(2, 4, 1, 1), Paths(3, 1, 1, 1), Paths(2, 16, 1, 1)])
@pytest.mark.parametrize("size", [1, 2, 5])
def test_convolutions_number_by_number(paths: Paths, size: int) -> None:
    found = dflash2(paths=paths)
    conv = net_of(found).convolutions["mlp", 1]
    g = torch.Generator().manual_seed(2)
    x = torch.randn(3 * size, H, generator=g, dtype=torch.float64)
    base, steer = (found.tensors[f"layers.1.mlp_conv.{n}"] for n in ("base", "dynamic.weight"))
    into: list[Tensor] = []

    def run(x: Tensor) -> Tensor:
        into.append(x)
        return x.flip(-1) * 2

    out = conv(x, size, run)
    for b in range(3):
        rows = slice(b * size, b * size + size)
        given = (x[rows] @ steer.T).view(size, 2, paths.taps, -1)
        before = by_hand(x[rows], base[0], given[:, 0], paths.group)
        same(into[0][rows], before)
        same(out[rows], by_hand(before.flip(-1) * 2, base[1], given[:, 1], paths.group))


@pytest.mark.parametrize("kind", KINDS)
def test_context_in_pieces_and_ragged_rounds_equal_the_uncached_forward(kind: str) -> None:
    found = KINDS[kind]
    net, rng = net_of(found), random.Random(1)
    felt = [features(found, 18, seed) for seed in range(3)]
    at = [0, 0, 0]
    while min(at) < 16:
        sizes = [min(rng.choice([1, 2, 5]), 18 - a) for a in at]
        parts = [cut(x, a, a + n) for x, a, n in zip(felt, at, sizes, strict=True)]
        joined = {tap: torch.cat([part[tap] for part in parts]) for tap in parts[0]}
        live = [b for b in range(3) if sizes[b]]
        net.context(joined, [Segment(b, at[b], range(at[b], at[b] + sizes[b])) for b in live])
        at = [a + n for a, n in zip(at, sizes, strict=True)]
        out = net.block(torch.tensor([1, 2, 3]), [0, 1, 2])
        for b in range(3):
            same(out[b], expected(found, felt[b], at[b], b + 1))


def test_convolutions_that_do_nothing_leave_dflash() -> None:
    """Base 1 at the slot itself, 0 elsewhere, nothing dynamic: the states of the plain network."""
    from slipstream.nets.dflash import DFlashNet

    found = dflash2(paths=Paths(3, 4, 6, 4))
    still = {}
    for name, x in found.tensors.items():
        still[name] = torch.zeros_like(x) if "_conv." in name else x
        if name.endswith("_conv.base"):
            still[name][:, 0] = 1
    found = dataclasses.replace(found, tensors=still)
    plain = DFlashNet(found.config, still, TABLES, max_rows=1, max_len=20, max_nodes=4)
    net, taps = net_of(found), features(found, 7)
    for each in (net, plain):
        each.context(taps, [Segment(0, 0, range(7))])
    same(net.block(torch.tensor([2]), [0]), plain.block(torch.tensor([2]), [0]))


def test_a_slot_reads_its_own_block_only_and_no_later_slot() -> None:
    found = KINDS["causal"]
    net, taps = net_of(found), features(found, 6)
    net.context(taps, [Segment(0, 0, range(6))])
    whole, part = net.block(torch.tensor([3]), [0]), net.block(torch.tensor([3]), [0], size=2)
    same(whole[:, :2], part)
    net.context(taps, [Segment(1, 0, range(6))])
    same(net.block(torch.tensor([5, 3]), [1, 0])[1], whole[0])


def test_scores_pair_by_pair() -> None:
    found = KINDS["two taps"]
    net, g = net_of(found), torch.Generator().manual_seed(4)
    states = torch.randn(3, H, generator=g, dtype=torch.float64)
    logits = torch.randn(3, 4, generator=g, dtype=torch.float64)
    tokens, previous = torch.tensor([[1, 2, 3, 0], [5, 4, 11, 2], [7, 7, 8, 9]]), torch.tensor([3, 0, 11])
    a, b, mix = (found.tensors[f"paths.{n}.weight"] for n in ("before", "after", "mix"))
    out = net.scores(net.mixed(states), previous, tokens, logits)
    for r in range(3):
        for k in range(4):
            pair = sum(float(a[previous[r], i] * (mix[i] @ states[r]) * b[tokens[r, k], i]) for i in range(6))
            assert float(out[r, k]) == pytest.approx(float(logits[r, k]) + pair, abs=1e-12)


def test_scales_and_cap_are_of_the_tables_as_stored() -> None:
    """Whatever the target does to its embeddings and logits, the drafter does its own to the stored ones."""
    paths = Paths(2, 4, 6, 4, embed_scale=3.0, logit_scale=0.5, logit_cap=2.0)
    found = dflash2(paths=paths)
    scaled = dataclasses.replace(
        TABLES,
        embed=lambda ids: TABLES.embed(ids) * 7,
        head=lambda x: TABLES.head(x).tanh(),
        bare_embed=TABLES.embed,
        bare_head=TABLES.head,
    )
    net, taps = net_of(found, scaled), features(found, 6)
    net.context(taps, [Segment(0, 0, range(6))])
    out = net.block(torch.tensor([3]), [0])[0]
    thrice = dataclasses.replace(TABLES, embed=lambda ids: TABLES.embed(ids) * 3)
    same(out, expected(found, taps, 6, 3, thrice))
    same(net.logits(out), 2 * (TABLES.head(out) * 0.5 / 2).tanh())
    bare = net_of(found)
    assert torch.equal(bare.embed(torch.tensor([1, 4])), TABLES.embed(torch.tensor([1, 4])) * 3)


def test_ids_beyond_the_file_s_tables_have_no_preference() -> None:
    found = draft_zoo.tiny("dflash2", vocab=Vocab(9, 9), block=Block(4, MASK, False, (False, False)))
    net = net_of(found)
    mixed = net.mixed(torch.randn(2, H, dtype=torch.float64))
    logits = torch.zeros(2, 2, dtype=torch.float64)
    out = net.scores(mixed, torch.tensor([11, 3]), torch.tensor([[0, 1], [10, 1]]), logits)
    assert out[0].tolist() == [0, 0]
    assert out[1, 0] == 0 != out[1, 1]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"paths": None}, "without its convolutions"),
        ({"paths": Paths(2, 5, 6, 4)}, "groups that divide the width 16"),
        ({"paths": Paths(0, 4, 6, 4)}, "at least 1 tap"),
        ({"paths": Paths(2, 4, 6, 0)}, "top_k=0"),
    ],
)
def test_a_drafter_that_cannot_work_is_refused(changes: dict[str, Any], says: str) -> None:
    found = KINDS["two taps"]
    with pytest.raises(RequestError, match=says):
        net_of(dataclasses.replace(found, config=dataclasses.replace(found.config, **changes)))


def test_sizes_are_told() -> None:
    found = KINDS["two taps"]
    net = net_of(found)
    assert net.nbytes == sum(x.nbytes for x in found.tensors.values())
    assert net.row_bytes == 2 * 2 * 2 * 8 * 8
