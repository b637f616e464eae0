"""All randomness of one round: counter-based Philox streams (Salmon et al. 2011), one set per row.

A stream is the key (seed, sample, stream name); its counter is (round, call in the round) for draft, accept and correct
draws, and the absolute position for the shared noise. Every (key, counter) is used once in a run, the shared noise
apart, which is one noise vector per position by design (Daliri et al. 2408.07978). Random bits are made on the CPU by
numpy, so that a request draws the same whatever the batch, the padding and the device. Where only an accelerator knows
which rows draw, it counts the calls itself and picks from uniforms made ahead: nobody waits for it.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Callable
from collections.abc import Sequence as Seq
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from slipstream import kernels
from slipstream.devices import known, moved, on_host
from slipstream.sampling.picking import need_mass, pick, pick_here
from slipstream.types import Sequence

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

_HELD = 16  # noise vectors kept: a round asks for a position's twice, to draft and to verify
_AHEAD = 8  # calls whose uniforms are made at a time when only the device knows who draws
_FEW = 64  # words for which a generator of numpy's takes longer to make
_WORD = 2**64 - 1
_MULTIPLIERS, _WEYL = (0xD2E7470EE14C6C93, 0xCA5A826395121157), (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)  # of the paper


class Stream(enum.IntEnum):
    """The streams of a sample: part of the key, so that no two share a block."""

    DRAFT = 1
    ACCEPT = 2
    CORRECT = 3
    NOISE = 4


def new_seed() -> int:
    """Return a seed for a request that named none, from the operating system."""
    return int.from_bytes(os.urandom(8), "little") >> 1


def raw(key: tuple[int, int], counter: tuple[int, int], n: int) -> Array:
    """Return n words of 64 random bits: `counter` is the upper half of Philox's counter, blocks count in the lower."""
    if n <= _FEW and kernels.available():
        return np.array(kernels.native().philox(key, counter, n), dtype=np.uint64)
    if n <= len(_MULTIPLIERS) * 2:
        return np.array(_block(key, (1, 0, *counter))[:n], dtype=np.uint64)
    counter_words = np.array([0, 0, *counter], dtype=np.uint64)
    return np.asarray(np.random.Philox(key=np.array(key, dtype=np.uint64), counter=counter_words).random_raw(n))


def _block(key: tuple[int, int], counter: tuple[int, int, int, int]) -> tuple[int, ...]:
    """Return Philox4x64-10 of one counter: what a generator of numpy's begins with, which takes longer to make."""
    (k0, k1), (a, b, c, d) = key, counter
    for _ in range(10):
        left, right = _MULTIPLIERS[0] * a, _MULTIPLIERS[1] * c
        a, b, c, d = (right >> 64) ^ b ^ k0, right & _WORD, (left >> 64) ^ d ^ k1, left & _WORD
        k0, k1 = (k0 + _WEYL[0]) & _WORD, (k1 + _WEYL[1]) & _WORD
    return a, b, c, d


class RequestRngs:
    """The production `Rngs` of one round. Build one per round: `rounds` and `tokens` of the rows are read here.

    Draws of a stream are numbered per row: an inactive row uses up no number, and K coins in one call are K lanes under
    one number, so that neither padded rows nor padded lanes change what a row draws later. With `shared_noise`,
    `draft(w, depth)` uses the noise of the position the token would take, as `shared(w, depth)` does.
    """

    def __init__(self, rows: list[Sequence], shared_noise: bool = False) -> None:
        self.shared_noise = shared_noise
        self._ids = [(row.seed & _WORD, row.sample) for row in rows]
        self._rounds = [row.rounds for row in rows]
        self._ends = [len(row.tokens) for row in rows]
        self._calls: dict[tuple[Stream, int], int] = {}  # draws so far
        self._ahead: dict[Stream, _Ahead] = {}
        self._noise: dict[tuple[int, int, int], Array] = {}

    def draft(self, w: Tensor, depth: int, active: Tensor | None = None) -> Tensor:
        """Draw the token at `depth` of each row from w [B, V] -> [B]; inactive rows get 0."""
        if self.shared_noise:
            return self.shared(w, depth, active)
        return self._draw(Stream.DRAFT, w, active)

    def draft_nodes(self, w: Tensor, depth: int, owners: Seq[int]) -> Tensor:
        """Draw a token for each node at `depth` from w [R, V] -> [R]; node i is one of row `owners[i]`."""
        if not len(owners):
            return torch.zeros(0, dtype=torch.int64, device=w.device)
        if self.shared_noise:
            return self._race(w.detach(), depth, owners)
        self._count_here(Stream.DRAFT)
        return self._invert(Stream.DRAFT, w.detach(), owners)

    def correct(self, w: Tensor, active: Tensor | None = None) -> Tensor:
        """Draw the token after the accepted path from w [B, V] -> [B]; inactive rows get 0."""
        return self._draw(Stream.CORRECT, w, active)

    def accept(self, a: Tensor, active: Tensor | None = None) -> Tensor:
        """Flip coins with probabilities a [B] or [B, K]: uniform of 53 bits in [0, 1), strictly below a."""
        lanes = a[0].numel()
        # compared in float64: a uniform rounded to float32 could reach 1, and fail a probability of 1
        chance = a.detach().double()
        if self._counted_there(Stream.ACCEPT, active, lanes):
            coins = self._take(Stream.ACCEPT, active, a.device)
            fine = (coins.view(a.shape) < chance).view(a.shape[0], lanes)
            return (fine if active is None else fine & active[:, None]).view(a.shape)
        made = [[np.inf] * lanes for _ in range(a.shape[0])]
        for b in self._active(a.shape[0], active):
            made[b] = self._uniform(Stream.ACCEPT, b, lanes)
        return moved(torch.tensor(made, dtype=torch.float64), a.device).view(a.shape) < chance

    def shared(self, w: Tensor, depth: int, active: Tensor | None = None) -> Tensor:
        """Race for the token at index `len(tokens) + depth - 1`: the least E/w wins, E that position's exponentials."""
        if active is not None and not known(active):
            # those who do not draw race too, over weights that are fine: the noise counts no calls
            return torch.where(active, self.shared(torch.where(active[:, None], w, 1.0), depth), 0)
        rows = self._active(w.shape[0], active)
        out = torch.zeros(w.shape[0], dtype=torch.int64, device=w.device)
        if not rows:
            return out
        at = moved(torch.tensor(rows), w.device)
        out[at] = self._race(w.detach()[at], depth, rows)
        return out

    def _race(self, w: Tensor, depth: int, owners: Seq[int]) -> Tensor:
        noise = np.stack([self._exponential(b, self._ends[b] + depth - 1, w.shape[1]) for b in owners])
        runners = w.double()  # [A, V]
        need_mass(runners.sum(-1), owners)
        return torch.where(runners > 0, runners / moved(torch.from_numpy(noise), w.device), -1.0).argmax(-1)

    def _draw(self, stream: Stream, w: Tensor, active: Tensor | None) -> Tensor:
        if self._counted_there(stream, active, 1):
            u = self._take(stream, active, w.device)
            if active is None:
                return pick(w.detach(), u)
            return torch.where(active, pick(torch.where(active[:, None], w.detach(), 1.0), u), 0)
        rows = self._active(w.shape[0], active)
        if rows and len(rows) == w.shape[0]:
            return self._invert(stream, w.detach(), rows)
        out = torch.zeros(w.shape[0], dtype=torch.int64, device=w.device)
        if not rows:
            return out
        at = moved(torch.tensor(rows), w.device)
        out[at] = self._invert(stream, w.detach()[at], rows)
        return out

    def _invert(self, stream: Stream, w: Tensor, owners: Seq[int]) -> Tensor:
        u = [uniform for b in owners for uniform in self._uniform(stream, b, 1)]  # [A]
        if w.is_cpu:
            return torch.tensor(pick_here(w, u, owners))
        return pick(w, moved(torch.tensor(u, dtype=torch.float64), w.device), owners)

    def _active(self, b: int, active: Tensor | None) -> list[int]:
        if b != len(self._ids):
            raise ValueError(f"weights for {b} rows, but the round has {len(self._ids)}")
        return list(range(b)) if active is None else [i for i, on in enumerate(on_host(active).tolist()) if on]

    def _uniform(self, stream: Stream, b: int, n: int) -> list[float]:
        call = self._calls.get((stream, b), 0)
        self._calls[stream, b] = call + 1
        return self._at(stream, b, call, n)

    def _at(self, stream: Stream, b: int, call: int, n: int) -> list[float]:
        words = raw(self._key(stream, b), (call, self._rounds[b]), n).tolist()
        return [(word >> 11) * 2.0**-53 for word in words]

    def _counted_there(self, stream: Stream, active: Tensor | None, lanes: int) -> bool:
        """Say whether the device counts this stream's calls; calls of several lanes are counted by the host."""
        if lanes == 1:
            return stream in self._ahead or not (active is None or known(active))
        self._count_here(stream)
        return False

    def _count_here(self, stream: Stream) -> None:
        if stream in self._ahead:
            self._calls.update({(stream, b): n for b, n in enumerate(self._ahead.pop(stream).settled())})

    def _take(self, stream: Stream, active: Tensor | None, device: torch.device) -> Tensor:
        if stream not in self._ahead:
            calls = [self._calls.get((stream, b), 0) for b in range(len(self._ids))]
            self._ahead[stream] = _Ahead(lambda b, call: self._at(stream, b, call, 1), calls, device)
        return self._ahead[stream].take(active)

    def _exponential(self, b: int, position: int, vocab: int) -> Array:
        where = (b, position, vocab)
        if where not in self._noise:
            words = raw(self._key(Stream.NOISE, b), (0, position), vocab)
            # 52 bits and a half: neither 0 nor 1 can occur, so the logarithm is finite and not zero
            noise = -np.log(((words >> np.uint64(12)) + 0.5) * 2.0**-52)
            while len(self._noise) >= _HELD:
                del self._noise[next(iter(self._noise))]
            self._noise[where] = noise
        return self._noise[where]

    def _key(self, stream: Stream, b: int) -> tuple[int, int]:
        seed, sample = self._ids[b]
        return seed, sample << 8 | stream


class _Ahead:
    """The uniforms of a stream's next calls; how many calls each row has made since is a tensor of the device."""

    def __init__(self, make: Callable[[int, int], list[float]], calls: list[int], device: torch.device) -> None:
        self._make, self._first, self._device = make, calls, device
        self._used = torch.zeros(len(calls), dtype=torch.int64, device=device)
        self._table = torch.zeros(len(calls), 0, dtype=torch.float64, device=device)  # [B, calls]
        self._asked = 0

    def take(self, active: Tensor | None) -> Tensor:
        """Return a uniform for each row [B], and count a call of those that are active."""
        if self._asked == self._table.shape[1]:
            self._extend()
        u = self._table.gather(1, self._used[:, None])[:, 0]
        self._used = self._used + (1 if active is None else active.long())
        self._asked += 1
        return u

    def settled(self) -> list[int]:
        """Wait for the device, and return how many calls each row has made."""
        return [first + used for first, used in zip(self._first, self._used.tolist(), strict=True)]

    def _extend(self) -> None:
        calls = range(self._asked, self._asked + _AHEAD)
        more = [[self._make(b, first + i)[0] for i in calls] for b, first in enumerate(self._first)]
        self._table = torch.cat([self._table, moved(torch.tensor(more, dtype=torch.float64), self._device)], 1)
