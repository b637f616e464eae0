"""Prove, when a target is built, that its model really forgets rejected tokens.

In: a way to make rows, and a fresh full pass. Out: nothing, or a RequestError. Two rows take turns (state hidden in the
model's modules would mix them) and a chain of each is partly rejected; what follows must be what a fresh pass over the
committed text says. Some ten short forwards. It measures neither speed nor near-ties.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from slipstream.targets.hf_cache import RowCache
from slipstream.types import RequestError

_FLOOR = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 3e-2, torch.float16: 1e-2}
_SHARE = 0.2  # of the error that rejected tokens left in the state would make


def self_check(make_row: Callable[[], RowCache], fresh: Callable[[list[int]], Tensor], vocab: int) -> None:
    """Raise RequestError unless a row with rejections behind it agrees with `fresh` (tokens -> logits [T, V])."""
    text = [(5 + 11 * i) % vocab for i in range(13)]
    other = [(2 + 7 * i) % vocab for i in range(10)]
    wrong = [(t + 1) % vocab for t in text]
    a, b = make_row(), make_row()
    a.append(text[:6])
    b.append(other[:5])
    a.score([text[6], text[7], *wrong[8:10]])
    a.keep(2)
    b.score([other[5], (other[6] + 1) % vocab])
    b.keep(1)
    got = [a.score(text[8:12]), b.score(other[6:9])]
    a.keep(4)
    got.append(a.score(text[12:13]))
    whole, whole_b = fresh(text), fresh(other)
    want = [whole[8:12], whole_b[6:9], whole[12:13]]
    dirty = fresh([*text[:8], *wrong[8:10], *text[8:12]])[10:14]
    for what, g, w in zip(("after a rejection", "with a second row", "one token at a time"), got, want, strict=True):
        _agree(what, g, w, whole[8:12], dirty)


def _agree(what: str, got: Tensor, want: Tensor, clean: Tensor, dirty: Tensor) -> None:
    error = float((got - want).abs().float().mean())
    allowed = _FLOOR.get(want.dtype, 3e-2) * float(want.abs().float().mean())
    allowed += _SHARE * float((clean - dirty).abs().float().mean())
    if not error <= allowed:
        raise RequestError(
            f"its cached state is wrong {what}: logits differ by {error:.2g} from a fresh pass, {allowed:.2g} at most"
        )
