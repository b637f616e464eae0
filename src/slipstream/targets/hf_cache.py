"""One sequence's cache inside a transformers model, with an undo that holds for every kind of layer.

In: a forward over (tokens, cache). Out: `RowCache`, which appends tokens, scores a chain and keeps a prefix of it.
Scoring runs on a fork: layers that only append share their tensors with it, all other state (recurrent, convolution,
the model's own) is deep-copied. A rejection cuts the fork where that is possible, else drops it and runs the accepted
tokens again in front of the next draft (replay). A cache's own `crop` is never called: it is wrong on full windows
and on running sums.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import cache_utils
from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

Forward = Callable[[list[int], Any, int], tuple[Tensor, Any]]
"""(tokens, cache, rows) -> (logits of the last `rows` tokens [rows, V], cache): may change the cache it was given."""

REPLAY_LIMIT = 16
"""Most accepted tokens carried in front of a draft: up to about here a longer forward costs what a shorter one does."""

# exact types: a subclass may keep state this file knows nothing about
_APPENDING: tuple[type | None, ...] = (
    DynamicLayer,
    DynamicSlidingWindowLayer,
    getattr(cache_utils, "DummyLayer", None),
)


def rollback(cache: Any) -> Literal["crop", "replay"]:
    """Say how a rejected draft is undone in this cache: cut off, or dropped and the accepted part run again."""
    return "crop" if type(cache) is DynamicCache and all(map(_appends, cache.layers)) else "replay"


def describe(cache: Any) -> str:
    """Name a cache and its kinds of layers, for error messages."""
    kinds = sorted({type(layer).__name__ for layer in getattr(cache, "layers", ())})
    return type(cache).__name__ + (f" of {', '.join(kinds)}" if kinds else "")


def fork(cache: Any, shared: Seq[object] = ()) -> Any:
    """Return a cache that a forward may change without the original noticing; objects in `shared` are not copied."""
    memo = {id(one): one for one in shared}
    if type(cache) is not DynamicCache:
        return copy.deepcopy(cache, memo)
    twin = copy.copy(cache)
    # appending layers replace their tensors and never write into them, so a shallow copy is a snapshot
    twin.layers = [copy.copy(layer) if _appends(layer) else copy.deepcopy(layer, memo) for layer in cache.layers]
    return twin


def cut(before: Any, after: Any, keep: int, added: int) -> Any | None:
    """Return `before` plus the first `keep` of the `added` tokens that made it `after`; None if only a replay can."""
    if rollback(after) == "replay":
        return None
    old_layers = before.layers if before is not None else []
    layers = []
    for i, layer in enumerate(after.layers):
        old = old_layers[i] if i < len(old_layers) else None
        layer = _cut_layer(old, layer, keep, added)
        if layer is None:
            return None
        layers.append(layer)
    twin = copy.copy(after)
    twin.layers = layers
    return twin


def _appends(layer: Any) -> bool:
    return type(layer) in _APPENDING


def _cut_layer(old: Any, new: Any, keep: int, added: int) -> Any | None:
    twin: Any = copy.copy(new)
    if getattr(new, "keys", None) is None:
        return twin  # a layer that reads another one's keys
    drop = added - keep
    if not getattr(new, "is_sliding", False):
        twin.keys = new.keys[..., : new.keys.shape[-2] - drop, :]
        twin.values = new.values[..., : new.values.shape[-2] - drop, :]
        return twin
    if new.keys.shape[-2] < added:
        return None  # the window is shorter than the draft: its first tokens are gone already
    twin.keys = _rejoin(old and old.keys, new.keys, keep, added, new.sliding_window)
    twin.values = _rejoin(old and old.values, new.values, keep, added, new.sliding_window)
    twin.cumulative_length = new.cumulative_length - drop
    return twin


def _rejoin(old: Tensor | None, new: Tensor, keep: int, added: int, window: int) -> Tensor:
    first = new.shape[-2] - added
    kept = new[..., first : first + keep, :]  # [1, heads, keep, dim]
    whole = kept if old is None else torch.cat([old, kept], dim=-2)
    return whole[..., -(window - 1) :, :]


@dataclass
class _Open:
    """A scored chain that nobody has kept yet."""

    cache: Any
    tokens: list[int]


class RowCache:
    """One sequence's place in the model. `length` counts committed tokens, those still to be replayed included.

    Between `score` and `keep` both the committed cache and its fork are alive (appending layers: two copies of the keys
    and values, as in any cache that grows by concatenation).
    """

    def __init__(self, forward: Forward, shared: Seq[object] = ()) -> None:
        self.length = 0
        self.cache: Any = None
        self.pending: list[int] = []
        self._open: _Open | None = None
        self._forward = forward
        self._shared = shared

    def append(self, tokens: list[int]) -> None:
        """Commit tokens. An exception in the forward leaves the row as it was."""
        self._open = None
        if not tokens:
            return
        _, self.cache = self._run(self.pending + tokens, 1)
        self.pending = []
        self.length += len(tokens)

    def score(self, tokens: list[int]) -> Tensor:
        """Return the logits after each token of a chain [N, V], committing nothing; drops an earlier chain not kept."""
        self._open = None
        if len(self.pending) > REPLAY_LIMIT:
            _, self.cache = self._run(self.pending, 1)
            self.pending = []
        logits, cache = self._run(self.pending + tokens, len(tokens))
        self._open = _Open(cache, tokens)
        return logits

    @property
    def scored(self) -> int:
        """Number of tokens of the chain waiting for `keep`; 0 when there is none."""
        return len(self._open.tokens) if self._open else 0

    def drop(self) -> None:
        """Forget the chain waiting for `keep`."""
        self._open = None

    def keep(self, count: int) -> None:
        """Commit the first `count` (at least 1) tokens of the scored chain and forget the rest."""
        assert self._open is not None, "keep without a score"
        assert 1 <= count <= self.scored, (count, self.scored)
        after, tokens = self._open.cache, self._open.tokens
        keep, added = len(self.pending) + count, len(self.pending) + len(tokens)
        cache = after if keep == added else cut(self.cache, after, keep, added)
        if cache is None:
            self.pending = self.pending + tokens[:count]
        else:
            self.cache, self.pending = cache, []
        self.length += count
        self._open = None

    def _run(self, tokens: list[int], rows: int) -> tuple[Tensor, Any]:
        return self._forward(tokens, fork(self.cache, self._shared), rows)
