"""The kernels say where each row of logits is highest, beside the logits: what numpy's argmax of them says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from kernels_kit import fast, needs_kernels, rounded
from native_kit import SIZES, VOCAB, tokens
from torch import Tensor

from slipstream import kernels
from slipstream.nets.decoder import CachedDecoder
from slipstream.targets.native import NativeTarget
from slipstream.types import Draft

pytestmark = [needs_kernels, pytest.mark.usefixtures("same_kernels_after")]
LEVELS = kernels.levels() if kernels.available() else []
NAN, INF = float("nan"), float("inf")
COLS = (1, 2, 15, 16, 17, 31, 33, 511, 512, 513, 1037, 4099)
HIDDEN = int(SIZES["hidden_size"])


def numpys(x: Tensor) -> list[int]:
    """The peaks of rows x [R, V]; -1 where they are not finite."""
    return [int(row.argmax()) if np.isfinite(row[row.argmax()]) else -1 for row in x.numpy()]


def found(row: Tensor) -> int:
    value, at = kernels.native().peak(row.data_ptr(), len(row))
    return at if np.isfinite(value) else -1


def rows_of(cols: int) -> list[Tensor]:
    """Rows that are smooth, tied, masked, infinite or broken, at every sort of place."""
    smooth, tied = torch.randn(cols), torch.randint(-2, 3, (cols,)).float()
    zeros = torch.where(torch.arange(cols) % 2 == 0, -0.0, 0.0)
    rows = [smooth, tied, zeros, -smooth.abs() - 1, torch.full((cols,), -INF), torch.full((cols,), NAN), smooth * 1e38]
    for at in {0, cols // 2, cols - 1}:
        for value in (9.0, -INF, INF, NAN, 3.4e38):
            for row in (smooth, tied, torch.full((cols,), -INF)):
                rows.append(row.clone())
                rows[-1][at] = value
    rows.append(torch.cat([smooth, torch.tensor([INF, NAN])])[-cols:])
    return rows


@pytest.mark.parametrize("level", LEVELS)
def test_a_rows_peak_is_numpys(level: str) -> None:
    kernels.set_level(level)
    for cols in COLS:
        for row in rows_of(cols):
            assert found(row) == numpys(row[None])[0], f"{cols} columns: {row}"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {name: rounded(name, tmp_path_factory.mktemp(name)) for name in ("llama", "gemma3_capped")}


def with_head(decoder: CachedDecoder, sizes: list[int], size: float = 1.0) -> CachedDecoder:
    """Give a decoder an output layer of parts in which three ids and more share a row: peaks are tied."""
    from slipstream.kernels.linear import pack

    weight = (size * torch.randn(VOCAB // 3, HIDDEN)).repeat(4, 1)[:VOCAB].bfloat16()
    decoder.net.native.set_head([1.0] * HIDDEN, [pack(part, None, "bf16") for part in weight.split(sizes)])
    return decoder


def check(decoder: CachedDecoder, ids: Tensor, counts: list[int] | None = None) -> list[int]:
    logits, _ = decoder.nodes(list(range(len(ids))), ids, None, (), counts)
    assert decoder.peaks is not None
    assert decoder.peaks.shape == ids.shape
    said: list[int] = decoder.peaks.flatten().tolist()
    assert said == numpys(logits.flatten(0, 1))
    return said


@pytest.mark.parametrize("sizes", [[VOCAB], [64, VOCAB - 64], [1, 33, VOCAB - 34]], ids=str)
@pytest.mark.parametrize("name", ["llama", "gemma3_capped"])
def test_every_shape_of_pass_says_its_peaks(name: str, sizes: list[int], folders: dict[str, Path]) -> None:
    for level in LEVELS:
        kernels.set_level(level)
        for threads in (1, 2, 4):
            kernels.set_threads(threads)
            decoder = with_head(fast(folders[name], rows=2, max_nodes=40), sizes)
            said = check(decoder, torch.tensor([tokens(1)]))
            said += check(decoder, torch.tensor([tokens(40), tokens(40, seed=1)]))
            assert max(said) < VOCAB // 3, "of tied ids the lowest is the peak"
            assert len(set(said)) > 5
            check(decoder, torch.tensor([tokens(7), tokens(7, seed=2)]), [7, 3])


def test_a_cap_comes_before_the_peak(folders: dict[str, Path]) -> None:
    """Logits so large that many meet at the cap: the highest of them is not the one that was highest before."""
    decoder = with_head(fast(folders["gemma3_capped"], max_nodes=40), [VOCAB], 50.0)
    logits, _ = decoder.nodes([0], torch.tensor([tokens(40)]))
    assert logits.max() == 5.0
    check(decoder, torch.tensor([tokens(40)]))


def test_more_rows_than_go_through_the_layers_together(folders: dict[str, Path]) -> None:
    decoder = with_head(fast(folders["llama"], max_nodes=600, max_len=1), [VOCAB])
    assert len(set(check(decoder, torch.tensor([tokens(600)])))) > 5


def test_broken_rows_and_padding(folders: dict[str, Path]) -> None:
    decoder = fast(folders["llama"], rows=2)
    decoder.extend(0, tokens(9))
    decoder.extend(1, tokens(9))
    decoder.cache.keys[0, 1, :, 0, :, 3] = NAN
    ids = torch.tensor([tokens(4), tokens(4)])
    said = check(decoder, ids)
    assert min(said[:4]) >= 0
    assert said[4:] == [-1] * 4
    scores = NativeTarget(decoder).score([0, 1], Draft(ids, ids, torch.tensor([2, 1]), ids))
    assert scores.peaks is not None
    assert scores.peaks.tolist() == [[*said[:2], 0, 0], [-1, 0, 0, 0]]
