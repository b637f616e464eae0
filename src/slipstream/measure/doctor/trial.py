"""Measure one reading: the drafter built from it drafts at every place of texts the target wrote.

In: a `DraftCheckpoint`, the target's tables, texts with their taps. Out: accepted lengths [texts, places]. The drafters
are the very ones that decode, fed through `observe` and `propose`; the target does not run.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence as Seq

import numpy as np
from torch import Tensor

from slipstream import learned
from slipstream.measure.doctor.statistics import Array
from slipstream.measure.doctor.texts import Text
from slipstream.nets.draft_config import DraftCheckpoint, DraftConfig, Tables
from slipstream.types import Drafter, RequestError, Rngs, SamplingParams, Sequence

MOST = 5  # tokens drafted at each place


def draftable(config: DraftConfig) -> int:
    """Return the most tokens this drafter can draft at once, `MOST` at most."""
    if config.heads is not None:
        return min(MOST, config.heads.count)
    if config.algorithm in ("dflash", "dflash2", "dspark") and config.block is not None:
        return min(MOST, config.block.drafts)
    return MOST


def make_drafter(found: DraftCheckpoint, tables: Tables, *, rows: int, length: int) -> Drafter:
    """Build the drafter of a checkpoint, as a chain, for `rows` rows of `length` tokens."""
    net = learned.make_net(found, tables, rows=rows, max_len=length, max_nodes=64)
    parts = learned.ALGORITHMS[found.config.algorithm]
    options = parts.choose(**({"shape": "chain"} if "shape" in parts.option_names() else {}))
    return parts.make(net, vocab=tables.vocab, max_rows=rows, device=tables.device, options=options)


def accepted(found: DraftCheckpoint, tables: Tables, texts: Seq[Text], depth: int) -> Array:
    """Return how many of `depth` drafted tokens the target would have kept at each place; -1: no such place."""
    drafter = make_drafter(found, tables, rows=len(texts), length=max(len(t.ids) for t in texts))
    rows = [Sequence(id=-1 - k, tokens=[], prompt_len=t.prompt, params=SamplingParams()) for k, t in enumerate(texts)]
    places = [max(0, t.written + 1 - depth) for t in texts]
    lengths = np.full((len(texts), max(places)), -1, dtype=np.int64)
    with warnings.catch_warnings():
        # a reading may well give numbers that are not finite; its drafts end there and it loses
        warnings.simplefilter("ignore", RuntimeWarning)
        for place in range(max(places)):
            live = [k for k, n in enumerate(places) if place < n]
            for k in live:
                _advance(drafter, rows[k], texts[k], place)
            drafted = drafter.propose([rows[k] for k in live], [depth] * len(live), _NoDraws())
            for k, guess, n in zip(live, drafted.tokens.tolist(), drafted.length.tolist(), strict=True):
                lengths[k, place] = _agree(guess[1:n], texts[k].ids[len(rows[k].tokens) :])
    for row in rows:
        drafter.forget(row)
    return lengths


def _advance(drafter: Drafter, row: Sequence, text: Text, place: int) -> None:
    """Let the drafter hear the tokens up to the next root, which is the last one of the prompt at place 0."""
    root = text.prompt - 1 + place
    new = slice(row.cached, root)
    row.tokens, row.cached = text.ids[: root + 1], root
    if new.start < new.stop:
        drafter.observe([row], [text.ids[new]], [{tap: x[new] for tap, x in text.taps.items()}])


def _agree(guess: Seq[int], truth: Seq[int]) -> int:
    pairs = enumerate(zip(guess, truth, strict=False))
    return next((k for k, (a, b) in pairs if a != b), min(len(guess), len(truth)))


class _NoDraws(Rngs):
    """Greedy drafts draw nothing."""

    def draft(self, w: Tensor, depth: int, active: Tensor | None = None) -> Tensor:
        """Never called: every row is greedy."""
        raise RequestError("a greedy draft asked for a random token")

    def draft_nodes(self, w: Tensor, depth: int, owners: Seq[int]) -> Tensor:
        """Never called: every row is greedy."""
        raise RequestError("a greedy draft asked for a random token")

    def accept(self, a: Tensor, active: Tensor | None = None) -> Tensor:
        """Never called: nothing is verified."""
        raise RequestError("a greedy draft asked for a coin")

    def correct(self, w: Tensor, active: Tensor | None = None) -> Tensor:
        """Never called: nothing is verified."""
        raise RequestError("a greedy draft asked for a random token")

    def shared(self, w: Tensor, depth: int, active: Tensor | None = None) -> Tensor:
        """Never called: nothing is verified."""
        raise RequestError("a greedy draft asked for a random token")
