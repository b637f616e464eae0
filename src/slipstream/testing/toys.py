"""A target whose every conditional law is known, and small things around it: random tables, a byte tokenizer.

The toy target keeps a real list of cached tokens per row and computes laws from that cache, so an engine that breaks
law 1 or commits the wrong path gets wrong laws, and the enumeration tests see it. Everything is float64 on the CPU.
"""

from __future__ import annotations

import math
import random
import zlib
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq

import torch
from torch import Tensor

from slipstream.types import Caps, Draft, Scores, WorkError

Law = Callable[[tuple[int, ...]], Seq[float]]

ZERO_LOGIT = -1e4  # exp() of it is exactly 0, yet it is finite: a toy's impossible token is not a damaged row


class RandomLaw:
    """A random conditional law: a pure function of the last `order` tokens (None: of the whole prefix).

    `zeros` removes one token from each row, `lean` raises rows to a power (0: uniform, large: near one-hot).
    """

    def __init__(
        self, vocab: int, seed: int, *, zeros: bool = False, order: int | None = None, lean: float = 1
    ) -> None:
        self.vocab, self.seed, self.zeros, self.order, self.lean = vocab, seed, zeros, order, lean
        self._rows: dict[tuple[int, ...], tuple[float, ...]] = {}

    def __call__(self, prefix: tuple[int, ...]) -> tuple[float, ...]:
        """Return the law of the token after `prefix`."""
        key = tuple(prefix) if self.order is None else tuple(prefix[len(prefix) - self.order :])
        if key not in self._rows:
            rand = random.Random(zlib.crc32(repr((self.seed, key)).encode()))
            weights = [rand.gammavariate(0.7, 1.0) ** self.lean for _ in range(self.vocab)]
            if self.zeros and self.vocab > 1:
                weights[rand.randrange(self.vocab)] = 0.0
            self._rows[key] = tuple(w / sum(weights) for w in weights)
        return self._rows[key]


def memoryless(*row: float) -> Law:
    """Return the law that is `row` after every prefix."""
    return lambda _prefix: row


def one_hot(token: int, vocab: int) -> tuple[float, ...]:
    """Return the point mass at `token`."""
    return tuple(float(v == token) for v in range(vocab))


def scripted(tokens: Seq[int], vocab: int, prompt_len: int, peak: float = 1.0) -> Law:
    """Return the law that puts `peak` on `tokens[i]` after prompt + i tokens and spreads the rest evenly."""

    def law(prefix: tuple[int, ...]) -> tuple[float, ...]:
        token = tokens[(len(prefix) - prompt_len) % len(tokens)]
        rest = (1.0 - peak) / (vocab - 1)
        return tuple(peak if v == token else rest for v in range(vocab))

    return law


def logits_of(row: Seq[float]) -> list[float]:
    """Return logits whose softmax is `row`."""
    return [math.log(w) if w > 0 else ZERO_LOGIT for w in row]


class ToyTarget:
    """The `Target` role over a known law. Tap 0 of a token is (token, its position): enough to check alignment.

    `fail_at` names calls of `score` (from 1) that raise; `poison(prefix)` marks rows whose logits come out as NaN.
    """

    def __init__(
        self,
        law: Law,
        vocab: int,
        *,
        max_rows: int = 64,
        max_nodes: int = 64,
        max_len: int = 4096,
        tree: bool = True,
    ) -> None:
        self.law = law
        self.caps = Caps(vocab=vocab, max_len=max_len, max_rows=max_rows, max_nodes=max_nodes, tree=tree, hidden=2)
        self.taps = (0,)
        self.cache: dict[int, list[int]] = {}
        self.calls = 0
        self.fail_at: frozenset[int] = frozenset()
        self.poison: Callable[[tuple[int, ...]], bool] = lambda _prefix: False
        self._scored: tuple[list[int], Draft] | None = None

    def prefill(self, slot: int, tokens: list[int]) -> Mapping[int, Tensor]:
        """Append tokens to the slot's cache."""
        cache = self.cache.setdefault(slot, [])
        start = len(cache)
        cache.extend(tokens)
        return {0: _taps(tokens, range(start, len(cache)))}

    def score(self, slots: list[int], draft: Draft) -> Scores:
        """Score every node from the slot's own cache and the path that leads to the node."""
        self.calls += 1
        if self.calls in self.fail_at:
            raise RuntimeError(f"toy target fails at call {self.calls}, as it was told to")
        if draft.nodes > self.caps.max_nodes or len(slots) > self.caps.max_rows:
            raise WorkError(f"toy target got {len(slots)} rows of {draft.nodes} nodes; its caps are {self.caps}")
        tokens, parents, length = draft.tokens.tolist(), draft.parents.tolist(), draft.length.tolist()
        logits = torch.zeros(len(slots), draft.nodes, self.caps.vocab, dtype=torch.float64)
        taps = torch.zeros(len(slots), draft.nodes, 2, dtype=torch.float64)
        for b, slot in enumerate(slots):
            cache = tuple(self.cache.setdefault(slot, []))
            prefixes: list[tuple[int, ...]] = []
            for i in range(length[b]):
                before = cache if i == 0 else prefixes[parents[b][i]]
                prefixes.append((*before, tokens[b][i]))
            if prefixes:
                logits[b, : length[b]] = torch.tensor([self._logits(s) for s in prefixes], dtype=torch.float64)
                taps[b, : length[b]] = torch.tensor([(s[-1], len(s) - 1) for s in prefixes], dtype=torch.float64)
        self._scored = (list(slots), draft)
        return Scores(logits, {0: taps})

    def commit(self, slots: list[int], paths: list[list[int]]) -> None:
        """Keep the root and the path of each row of the last `score`."""
        if self._scored is None or self._scored[0] != list(slots):
            raise WorkError(f"commit of slots {slots} does not follow a score of the same slots in the same order")
        draft = self._scored[1]
        for b, (slot, path) in enumerate(zip(slots, paths, strict=True)):
            for above, node in zip([0, *path], path, strict=False):
                if int(draft.parents[b, node]) != above or node >= int(draft.length[b]):
                    raise WorkError(f"commit of path {path} in slot {slot}: node {node} does not follow node {above}")
            self.cache[slot].extend(draft.tokens[b, [0, *path]].tolist())
        self._scored = None

    def release(self, slot: int) -> None:
        """Empty a slot."""
        self.cache.pop(slot, None)

    def _logits(self, prefix: tuple[int, ...]) -> list[float]:
        if self.poison(prefix):
            return [math.nan] * self.caps.vocab
        return logits_of(self.law(prefix))


class ByteTokenizer:
    """Ids are bytes, id 256 ends the text (and decodes to nothing)."""

    vocab = 257
    eos_ids: tuple[int, ...] = (256,)

    def encode(self, text: str) -> list[int]:
        """Return the UTF-8 bytes of `text`."""
        return list(text.encode())

    def decode(self, ids: Seq[int]) -> str:
        """Return the text of `ids`; broken UTF-8 shows as the replacement character."""
        return bytes(i for i in ids if i < 256).decode(errors="replace")


def _taps(tokens: Seq[int], positions: Seq[int]) -> Tensor:
    return torch.tensor([tokens, positions], dtype=torch.float64).T
