"""Any transformers causal language model as a target: chains only, one row after the other, right for every cache.

In: a model or where to find one. Out: the `Target` role. How rejected tokens are undone is chosen when the target is
built, from the cache a probe forward returns (`hf_cache`), and proved on a few tokens (`hf_check`): a model that cannot
forget them is refused then, not at the first request. It does not batch rows into one forward and scores no trees.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from slipstream.targets.hf_cache import RowCache, describe, rollback
from slipstream.targets.hf_check import self_check
from slipstream.targets.hf_taps import Taps, find_layers
from slipstream.types import Caps, Draft, RequestError, Scores, WorkError

# the name of the cache in forward and in its output: today's, and those of older releases and of remote code
_CACHE_NAMES = ("cache", "past_key_values", "cache_params", "state")
_UNLIMITED = 1 << 20  # positions, for models whose config states no limit


class HFTarget:
    """A transformers model as a `Target`. `rollback` says how rejected tokens are undone: "crop" or "replay";
    `stepwise` that the model only goes on from its state one token at a time (a warning says so too).

    `vocab` cuts padded logits to the real token ids; `taps` are the hidden states to return. A model object is used as
    it is, moved to `device` and `dtype` when these are given. Raises RequestError when the model cannot be loaded,
    keeps no cache, or its state cannot be rolled back; WorkError when memory runs out.
    """

    def __init__(
        self,
        model_or_path: Any,
        *,
        dtype: torch.dtype | str | None = None,
        device: torch.device | str | None = None,
        vocab: int | None = None,
        max_rows: int = 1,
        max_len: int | None = None,
        trust_remote_code: bool = False,
        taps: tuple[int, ...] = (),
    ) -> None:
        model = model_or_path
        if not isinstance(model, torch.nn.Module):
            model = _load(str(model), dtype, trust_remote_code)
        elif dtype not in (None, "auto"):
            model = model.to(_dtype(dtype))
        self.model = model.to(device) if device is not None else model
        self.model.eval()
        self.kind = getattr(model.config, "model_type", None) or type(model).__name__
        self._cache_name, self._takes_keep = _signature(model, self.kind)
        self._device = next(model.parameters()).device
        self.caps = self._describe(vocab, max_rows, max_len)
        self.stepwise = False
        self._taps = Taps(model, tuple(taps), self.caps.layers)
        self.rollback = self._probe()
        self._rows = [self._new_row() for _ in range(max_rows)]

    @property
    def taps(self) -> tuple[int, ...]:
        """The hidden states returned; another choice counts from the next pass on."""
        return tuple(self._taps.wanted)

    @taps.setter
    def taps(self, wanted: tuple[int, ...]) -> None:
        self._taps = Taps(self.model, tuple(wanted), self.caps.layers)

    def prefill(self, slot: int, tokens: list[int]) -> Mapping[int, Tensor]:
        """See `Target.prefill`."""
        row = self._row(slot)
        self._check(row, slot, tokens)
        row.append(tokens)
        if not tokens:
            dtype = next(self.model.parameters()).dtype
            empty = torch.empty(0, self.caps.hidden, dtype=dtype, device=self._device)
            return dict.fromkeys(self._taps.wanted, empty)
        return self._taps.take(len(tokens), self.caps.hidden)

    def score(self, slots: list[int], draft: Draft) -> Scores:
        """See `Target.score`. Rows beyond a draft's `length` are zeros."""
        if len(set(slots)) != len(slots):
            raise RequestError(f"slots {slots}: a slot can be scored once per draft")
        rows = [self._row(slot) for slot in slots]
        chains = _chains(draft)
        for slot, row, chain in zip(slots, rows, chains, strict=True):
            row.drop()
            self._check(row, slot, chain)
        parts = []
        try:
            for row, chain in zip(rows, chains, strict=True):
                parts.append((row.score(chain), self._taps.take(len(chain), self.caps.hidden)))
        except BaseException:
            for row in rows:  # all rows or none: a half-scored batch must not be committable
                row.drop()
            raise
        logits = _pad([part for part, _ in parts], draft.nodes)  # [B, N, V]
        taps = {tap: _pad([seen[tap] for _, seen in parts], draft.nodes) for tap in self._taps.wanted}
        return Scores(logits, taps)

    def commit(self, slots: list[int], paths: list[list[int]]) -> None:
        """See `Target.commit`."""
        for slot, path in zip(slots, paths, strict=True):
            row = self._row(slot)
            if not row.scored:
                raise WorkError(f"slot {slot}: commit without a score before it")
            if path != list(range(1, len(path) + 1)) or len(path) >= row.scored:
                raise RequestError(f"slot {slot}: path {path} is not the start of a chain of {row.scored} nodes")
        for slot, path in zip(slots, paths, strict=True):
            self._row(slot).keep(len(path) + 1)

    def release(self, slot: int) -> None:
        """See `Target.release`."""
        self._row(slot)
        self._rows[slot] = self._new_row()

    def length(self, slot: int) -> int:
        """Return the number of tokens committed to a slot."""
        return self._row(slot).length

    def _row(self, slot: int) -> RowCache:
        if not 0 <= slot < len(self._rows):
            raise RequestError(f"slot {slot}: this target has slots 0 to {len(self._rows) - 1} (max_rows)")
        return self._rows[slot]

    def _new_row(self) -> RowCache:
        # a cache may point at its model or config: those are never part of a snapshot
        return RowCache(self._forward, (self.model, self.model.base_model, self.model.config))

    def _check(self, row: RowCache, slot: int, tokens: list[int]) -> None:
        if row.length + len(tokens) > self.caps.max_len:
            raise RequestError(
                f"slot {slot}: {row.length} + {len(tokens)} tokens do not fit max_len {self.caps.max_len}; "
                "draft less, or use a shorter prompt"
            )
        bad = next((t for t in tokens if not 0 <= t < self.caps.vocab), None)
        if bad is not None:
            raise RequestError(f"slot {slot}: token id {bad} is outside the vocabulary 0..{self.caps.vocab - 1}")

    @torch.no_grad()
    def _forward(self, tokens: list[int], cache: Any, rows: int) -> tuple[Tensor, Any]:
        self._taps.clear()
        if not self.stepwise or cache is None:
            return self._pass(tokens, cache, rows)
        parts = []
        for token in tokens:
            part, cache = self._pass([token], cache, 1)
            parts.append(part)
        return torch.cat(parts[-rows:]), cache

    def _pass(self, tokens: list[int], cache: Any, rows: int) -> tuple[Tensor, Any]:
        ids = torch.tensor([tokens], device=self._device)  # [1, T]
        options: dict[str, Any] = {self._cache_name: cache, "use_cache": True}
        if self._takes_keep:
            options["logits_to_keep"] = rows
        try:
            with self._taps.listen():
                out = self.model(input_ids=ids, **options)
        except torch.OutOfMemoryError as error:
            raise WorkError(
                f"out of memory in a pass over {len(tokens)} tokens; use fewer rows or shorter prompts"
            ) from error
        return out.logits[0, -rows:, : self.caps.vocab], _cache_of(out)

    def _describe(self, vocab: int | None, max_rows: int, max_len: int | None) -> Caps:
        config = self.model.config.get_text_config(decoder=True)
        limit = getattr(config, "max_position_embeddings", None) or _UNLIMITED
        if limit < 16:
            raise RequestError(f"model {self.kind!r} has {limit} positions; a target needs at least 16")
        width = getattr(config, "vocab_size", None) or vocab or 0
        if vocab is not None and vocab < 1:
            raise RequestError(f"vocab {vocab}: at least 1 token id is needed")
        if max_len is not None and not 1 <= max_len <= limit:
            raise RequestError(f"max_len {max_len}: model {self.kind!r} has {limit} positions; use 1 to {limit}")
        if max_rows < 1:
            raise RequestError(f"max_rows {max_rows}: at least 1 row is needed")
        depth = getattr(config, "num_hidden_layers", 0) or 0
        return Caps(
            vocab=min(vocab or width, width),  # a tokenizer may know ids the model has no row for
            max_len=max_len or limit,
            max_rows=max_rows,
            max_nodes=max_len or limit,
            tree=False,
            layers=depth if depth and find_layers(self.model, depth) is not None else 0,
            hidden=getattr(config, "hidden_size", 0) or 0,
        )

    def _probe(self) -> Any:
        """Choose the rollback from a real cache, then make the model prove it."""
        seen: Any = None
        try:
            probe = self._new_row()
            probe.append([5 % self.caps.vocab, 2 % self.caps.vocab])
            seen = probe.cache
            if seen is None:
                raise RequestError("its forward returns no cache")
            if self._taps.wanted:
                self._taps.take(2, self.caps.hidden)
            self._prove()
        except (WorkError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            cache = f", cache {describe(seen)}" if seen is not None else ""
            raise RequestError(
                f"model {self.kind!r}{cache}: rejected tokens cannot be rolled back, so it cannot be a target "
                f"({error}); use a model that keeps all its state in a cache that can be copied"
            ) from error
        finally:
            self._taps.clear()
        return rollback(seen)

    def _prove(self) -> None:
        try:
            return self_check(self._new_row, self._fresh, self.caps.vocab)
        except RequestError as error:
            first = error
        self.stepwise = True
        try:
            self_check(self._new_row, self._fresh, self.caps.vocab)
        except RequestError:
            raise first from None
        warnings.warn(
            f"model {self.kind!r} loses its state when several tokens follow at once; they are run one at a time, "
            "which is right, but drafting cannot make it faster",
            stacklevel=4,
        )

    def _fresh(self, tokens: list[int]) -> Tensor:
        return self._forward(tokens, None, len(tokens))[0]


def _signature(model: Any, kind: str) -> tuple[str, bool]:
    names = inspect.signature(model.forward).parameters
    found = next((name for name in _CACHE_NAMES if name in names), None)
    if found is None:
        raise RequestError(f"model {kind!r} takes no cache (none of {', '.join(_CACHE_NAMES)}); it cannot be a target")
    return found, "logits_to_keep" in names


def _cache_of(out: Any) -> Any:
    named = out.keys()
    return next((out[name] for name in _CACHE_NAMES if name in named), None)


def _chains(draft: Draft) -> list[list[int]]:
    chains = []
    for b, length in enumerate(draft.length.tolist()):
        if not draft.chain and draft.parents[b, :length].tolist() != list(range(-1, length - 1)):
            raise RequestError("a transformers target scores chains, and this draft is a tree; use a drafter of chains")
        chains.append(draft.tokens[b, :length].tolist())
    return chains


def _pad(parts: list[Tensor], nodes: int) -> Tensor:
    out = parts[0].new_zeros(len(parts), nodes, parts[0].shape[-1])  # [B, N, *]
    for b, part in enumerate(parts):
        out[b, : len(part)] = part
    return out


def _dtype(dtype: torch.dtype | str) -> torch.dtype | str:
    if isinstance(dtype, torch.dtype) or dtype == "auto":
        return dtype
    found = getattr(torch, dtype, None)
    if not isinstance(found, torch.dtype):
        raise RequestError(f"dtype {dtype!r}: use float32, bfloat16, float16 or auto")
    return found


@contextlib.contextmanager
def _bar_on_terminals_only() -> Iterator[None]:
    from transformers.utils import logging

    hide = logging.is_progress_bar_enabled() and not sys.stderr.isatty()
    if hide:
        logging.disable_progress_bar()
    try:
        yield
    finally:
        if hide:
            logging.enable_progress_bar()


def _load(path: str, dtype: torch.dtype | str | None, trust_remote_code: bool) -> Any:
    from transformers import AutoModelForCausalLM

    try:
        with _bar_on_terminals_only():
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                path, dtype=_dtype(dtype or "auto"), trust_remote_code=trust_remote_code, output_loading_info=True
            )
    except (OSError, ValueError) as error:
        raise RequestError(f"model {path!r} cannot be loaded as a causal language model: {error}") from error
    model, info = loaded
    if info["missing_keys"] or info["mismatched_keys"]:
        names = sorted(map(str, [*info["missing_keys"], *info["mismatched_keys"]]))
        raise RequestError(
            f"model {path!r}: weights missing or of another shape: {', '.join(names[:3])} ({len(names)} in all)"
        )
    return model
