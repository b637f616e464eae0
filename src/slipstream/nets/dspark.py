"""DSpark (2607.05147): a block drafter whose slots are corrected left to right by the token before them.

In: the states of a block's slots, which one pass of the DFlash body gives, and the token chosen before each slot. Out:
its corrected logits (Markov head: vanilla, gated or rnn) and the logit of its being accepted (confidence head). Both
read the token BEFORE the slot only, never the one drawn from it. What is drawn, and how much is kept, is decided
elsewhere.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from slipstream.nets.dflash import DFlashNet
from slipstream.nets.draft_config import DraftConfig, Markov, Tables
from slipstream.nets.draft_layers import Cast
from slipstream.nets.layers import Map
from slipstream.types import RequestError

_SAMPLE = 1 << 14  # values of each tensor that go into a fingerprint


@dataclass(frozen=True)
class Corrected:
    """One slot of each row, given the token before it: `confidence` and `state` are None where no head makes them."""

    logits: Tensor  # [R, Vd]
    confidence: Tensor | None = None  # [R], before the sigmoid
    state: Tensor | None = None  # [R, r], what the rnn hands to the next slot


class SlotHeads:
    """The Markov and confidence heads. Previous tokens are TARGET ids, whatever the drafter's own vocabulary is."""

    def __init__(self, markov: Markov, cast: Cast, *, ids: int) -> None:
        """Take the heads' tensors; `ids` is the most token ids the target has."""
        if markov.confidence == "markov" and markov.kind == "none":
            raise RequestError("confidence 'markov' reads the Markov head's table, and this drafter has no such head")
        self.markov = markov
        self.w1 = self.w2 = self.mix = self.sure = None
        if markov.kind != "none":
            self.w1, self.w2 = _table(cast.table("markov.w1.weight"), ids), cast.map("markov.w2", last=True)
        if markov.kind in ("gated", "rnn"):
            self.mix = cast.map("markov.gate" if markov.kind == "gated" else "markov.joint")
        if markov.confidence != "none":
            self.sure = cast.map("confidence")

    def __call__(self, hidden: Tensor, base: Tensor, previous: Tensor, state: Tensor | None = None) -> Corrected:
        """Correct base logits [R, Vd] of slots in states hidden [R, H] by the tokens before them, previous [R].

        `state` [R, r] is the one the slot before left; None before the first.
        """
        e = None if self.w1 is None else self.w1[previous.to(self.w1.device)].to(hidden.dtype)  # [R, r]
        confidence = None
        if self.sure is not None:
            known = hidden if self.markov.confidence == "hidden" or e is None else torch.cat([hidden, e], dim=-1)
            confidence = _wide(self.sure(known))[:, 0]
        if e is None or self.w2 is None:
            return Corrected(_wide(base), confidence)
        x, state = self._mixed(hidden, e, state)
        return Corrected(_wide(base) + _wide(self.w2(x)), confidence, state)

    def before(self, hidden: Tensor, anchors: Tensor) -> Tensor:
        """Return the rnn state [R, r] that the anchor's slot leaves where it drafts nothing: it was trained through."""
        assert self.w1 is not None
        state = self._mixed(hidden, self.w1[anchors.to(self.w1.device)].to(hidden.dtype), None)[1]
        assert state is not None
        return state

    def _mixed(self, hidden: Tensor, e: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return what the bias is a linear map of [R, r], and the rnn's next state."""
        if self.mix is None:
            return e, None
        if self.markov.kind == "gated":
            return torch.sigmoid(self.mix(torch.cat([hidden, e], dim=-1))) * e, None
        state = torch.zeros_like(e) if state is None else state
        gate, new, out = self.mix(torch.cat([state, e, hidden], dim=-1)).chunk(3, dim=-1)
        gate = torch.sigmoid(gate)
        return torch.tanh(out), gate * state + (1 - gate) * torch.tanh(new)

    @property
    def nbytes(self) -> int:
        """Bytes of memory held."""
        parts: tuple[Map | Tensor | None, ...] = (self.w1, self.w2, self.mix, self.sure)
        return sum(part.nbytes for part in parts if part is not None)


class DSparkNet(DFlashNet):
    """A DFlash network and the heads that read its slots (`heads`).

    `first` is the slot that drafts first: 0, or 1 where the anchor's slot predicts nothing; `runs_in`: the rnn reads
    that slot all the same. `fingerprint` tells drafters apart: what was fitted to one of them must not be used with
    another.
    """

    def __init__(
        self,
        config: DraftConfig,
        tensors: Mapping[str, Tensor],
        tables: Tables,
        *,
        max_rows: int,
        max_len: int,
        max_nodes: int,
    ) -> None:
        super().__init__(config, tensors, tables, max_rows=max_rows, max_len=max_len, max_nodes=max_nodes)
        ids = max(tables.vocab, config.vocab.target)
        self.heads = SlotHeads(config.markov, Cast.of(tensors, tables), ids=ids)
        self.first = 0 if self.shape.anchor_predicts else 1
        self.runs_in = self.first == 1 and config.markov.kind == "rnn"
        self.fingerprint = fingerprint(tensors)

    @torch.no_grad()
    def correct(self, hidden: Tensor, base: Tensor, previous: Tensor, state: Tensor | None = None) -> Corrected:
        """Correct one slot of each row by the token before it; see `SlotHeads`."""
        return self.heads(hidden, base, previous, state)

    @torch.no_grad()
    def before(self, hidden: Tensor, anchors: Tensor) -> Tensor:
        """Return what the anchor's slot, in states hidden [R, H], hands to the first that drafts; see `runs_in`."""
        return self.heads.before(hidden, anchors)

    @property
    def nbytes(self) -> int:
        """Bytes of the weights, the target's tables not counted."""
        return super().nbytes + self.heads.nbytes


def fingerprint(tensors: Mapping[str, Tensor]) -> str:
    """Return 16 hex digits that tell drafters apart: names, shapes and the first values of every tensor."""
    found = hashlib.sha256()
    for name in sorted(tensors):
        x = tensors[name]
        found.update(f"{name} {tuple(x.shape)};".encode())
        found.update(x.detach().flatten()[:_SAMPLE].double().cpu().numpy().tobytes())
    return found.hexdigest()[:16]


def _table(weight: Tensor, ids: int) -> Tensor:
    """Give ids the file has no row for (a target padded further) a row of zeros: no correction after them."""
    return torch.nn.functional.pad(weight, (0, 0, 0, max(0, ids - weight.shape[0])))


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()
