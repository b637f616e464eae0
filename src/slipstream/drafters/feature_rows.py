"""Which target features of which row an EAGLE-type network has been fed, and the rows a draft adds behind them.

In: committed tokens with their taps; drafted tokens with the states of their parents. Out: states. Row t of a slot
pairs the token at t + 1 with the feature at t and sits at place and position t, so n committed tokens make n - 1 rows.
Rows fed from the target stay; what a draft adds lies in the scratch behind them, forgotten by the next `begin`.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from slipstream.drafters.slots import Slots
from slipstream.nets.draft_config import DraftConfig
from slipstream.nets.draft_layers import DraftLayers, Segment
from slipstream.types import Sequence

_CHUNK = 512  # rows of one slot in a pass: bounds the mask and the activations


class FeatureNet(Protocol):
    """The part of `nets.eagle.EagleNet` and its relatives that drafting needs."""

    config: DraftConfig
    layers: DraftLayers
    vocab_map: Tensor | None
    device: torch.device
    max_len: int
    max_nodes: int

    def fuse(self, taps: Mapping[int, Tensor]) -> Tensor:
        """{tap: [R, Ht]} -> features [R, H]."""

    def step(self, tokens: Tensor, features: Tensor, segments: Seq[Segment]) -> Tensor:
        """Run rows -> states [R, H], to be fed back as features."""

    def logits(self, states: Tensor) -> Tensor:
        """States [R, H] -> logits [R, Vd]."""


@dataclass
class _Held:
    """A row's slot, the committed tokens heard of in it, and the state of its last row (None: nothing to draft from).

    `lost`: its history has a gap, or no longer fits; nothing is drafted until the row is forgotten.
    """

    slot: int
    heard: int = 0
    state: Tensor | None = None
    lost: bool = False


@dataclass
class _Piece:
    """Committed rows of one slot waiting to be fed: tokens one ahead of their features."""

    held: _Held
    at: int
    tokens: list[int]
    taps: Mapping[int, Tensor]

    def chunks(self) -> list[_Piece]:
        """Cut to what one pass takes."""
        return [
            _Piece(
                self.held,
                self.at + i,
                self.tokens[i : i + _CHUNK],
                {tap: x[i : i + _CHUNK] for tap, x in self.taps.items()},
            )
            for i in range(0, len(self.tokens), _CHUNK)
        ]


class FeatureRows:
    """The rows of every sequence, one slot each from its first observed token until `forget`."""

    def __init__(self, net: FeatureNet, max_rows: int) -> None:
        self.net, self.taps = net, net.config.features.taps
        self.held = Slots(max_rows, _Held, f"{net.config.algorithm} drafter")
        self._round: list[_Held] = []  # of `begin`, by batch row
        self._places: list[list[int]] = []  # positions of the scratch rows written since, by batch row

    def observe(self, rows: Seq[Sequence], tokens: Seq[list[int]], taps: Seq[Mapping[int, Tensor]]) -> None:
        """Feed the rows that `tokens[b]`, now in the target's cache, and their taps complete."""
        pieces = [self._piece(row, new, felt) for row, new, felt in zip(rows, tokens, taps, strict=True) if new]
        queues = [piece.chunks() for piece in pieces if piece is not None]
        while queues:
            self._feed([queue.pop(0) for queue in queues])
            queues = [queue for queue in queues if queue]

    def begin(self, rows: Seq[Sequence]) -> list[bool]:
        """Start a draft for these rows with empty scratch; say which have a state to draft from."""
        idle = _Held(-1, lost=True)
        self._round = [self.held.get(row.id, idle) for row in rows]
        self._places = [[] for _ in rows]
        for held, row in zip(self._round, rows, strict=True):
            held.lost |= held.heard != len(row.tokens) - 1
        return [not held.lost and held.state is not None for held in self._round]

    def states(self, which: Seq[int]) -> Tensor:
        """Return the states of the last rows fed of the batch rows `which` -> [n, H]: they predict depth 1."""
        found = [self._round[b].state for b in which]
        return torch.stack([state for state in found if state is not None])

    def step(
        self,
        which: Seq[int],
        tokens: Tensor,
        states: Tensor,
        depth: int | Seq[int],
        seen: Seq[Tensor | None] | None = None,
    ) -> Tensor:
        """Feed drafted tokens at `depth` (1: children of the root) of the batch rows `which` -> their states [n, H].

        `which` [n] names the batch row of each node; nodes of one batch row are contiguous. `states` [n, H] are those
        of their parents. The nodes are written at the next free scratch places of their slot, in order. `seen[i]`, for
        the i-th distinct batch row, is bool [nodes, places used so far + nodes]: which scratch places each node sees,
        itself included; None: a chain, all of them.
        """
        depths = [depth] * len(which) if isinstance(depth, int) else list(depth)
        segments, at = [], 0
        for i, (b, n) in enumerate(_runs(which)):
            held, behind = self._round[b], self._places[b]
            positions, at = [held.heard - 1 + d for d in depths[at : at + n]], at + n
            mask = None if seen is None else seen[i]
            segments.append(Segment(held.slot, held.heard + len(behind), positions, held.heard, mask, tuple(behind)))
            behind.extend(positions)
        return self.net.step(tokens, states, segments)

    def forget(self, row: Sequence) -> None:
        """Free the row's slot, for another to use."""
        held = self.held.drop(row)
        if held is not None:
            self.net.layers.keep(held.slot, 0)

    def _piece(self, row: Sequence, new: list[int], taps: Mapping[int, Tensor]) -> _Piece | None:
        held = self.held.of(row)
        at, held.heard = held.heard, held.heard + len(new)
        ahead = row.tokens[at + 1 : held.heard + 1]
        follows = row.tokens[at : held.heard] == new and len(ahead) == len(new)
        held.lost |= not follows or held.heard > self.net.max_len
        return None if held.lost else _Piece(held, at, ahead, taps)

    def _feed(self, pieces: list[_Piece]) -> None:
        """Feed a piece of every row in one pass and commit it."""
        taps = {tap: _joined([piece.taps[tap] for piece in pieces]) for tap in self.taps}
        features = self.net.fuse(taps)  # [R, H]
        fine = features.isfinite().all(-1, keepdim=True)
        tokens = torch.tensor([t for piece in pieces for t in piece.tokens], device=features.device)
        segments = [Segment(p.held.slot, p.at, range(p.at, p.at + len(p.tokens))) for p in pieces]
        # a damaged feature ends the drafts after it, but must not stay in the cache
        states = self.net.step(tokens, torch.where(fine, features, 0), segments)
        states = torch.where(fine, states, torch.nan)
        end = 0
        for piece in pieces:
            end += len(piece.tokens)
            piece.held.state = states[end - 1].clone()
            self.net.layers.keep(piece.held.slot, piece.at + len(piece.tokens))


def _joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _runs(which: Seq[int]) -> list[tuple[int, int]]:
    """[0, 0, 2] -> [(0, 2), (2, 1)]."""
    runs: list[tuple[int, int]] = []
    for b in which:
        if runs and runs[-1][0] == b:
            runs[-1] = (b, runs[-1][1] + 1)
        else:
            runs.append((b, 1))
    return runs
