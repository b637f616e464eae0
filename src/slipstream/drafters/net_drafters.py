"""What drafters on a draft network share: the target's ids, what was heard of each row, drafts that damage ends.

In: committed tokens with the target's features, for the network's rows. Out: logits over the target's ids. `NetDrafter`
is all of them, `FeatureDrafter` those that continue the target's features, `BlockDrafter` those that fill a block.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor

from slipstream.drafters.context_rows import ContextRows
from slipstream.drafters.drawing import Drawing, Dropped
from slipstream.drafters.feature_rows import FeatureNet, FeatureRows
from slipstream.drafters.reduced import Reduced
from slipstream.nets.dflash import DFlashNet
from slipstream.nets.draft_config import DraftConfig
from slipstream.types import Draft, Needs, Rngs, Sequence

_MOST_LOGITS = 1 << 26  # numbers computed at once: bounds the memory of many rows of a large vocabulary


class DraftNet(Protocol):
    """A network made from a drafter's checkpoint."""

    config: DraftConfig
    vocab_map: Tensor | None
    device: torch.device


class NetDrafter:
    """`dropped` counts drafts cut short because the numbers were not finite.

    `vocab` is the target's number of token ids, `device` where it wants its draft; the network may be elsewhere. A row
    that was not observed from its first token on gets no draft.
    """

    name = "net"

    def __init__(self, net: DraftNet, *, vocab: int, device: torch.device | str, tree: bool = False) -> None:
        self.net, self.vocab, self.device = net, vocab, torch.device(device)
        self.needs = Needs(taps=net.config.features.taps, tree=tree)
        self.reduced = Reduced(net.vocab_map, vocab, net.device)
        self._dropped = Dropped(f"{self.name} drafter")

    @property
    def dropped(self) -> int:
        """Drafts cut short so far."""
        return self._dropped.count


class FeatureDrafter(NetDrafter):
    """What drafters on a `FeatureNet` share."""

    net: FeatureNet

    def __init__(
        self, net: FeatureNet, *, vocab: int, max_rows: int, device: torch.device | str = "cpu", tree: bool = False
    ) -> None:
        super().__init__(net, vocab=vocab, device=device, tree=tree)
        self._rows = FeatureRows(net, max_rows)

    def observe(self, rows: list[Sequence], tokens: list[list[int]], taps: list[Mapping[int, Tensor]]) -> None:
        """Feed the rows that these tokens and their features complete, prompts and accepted tokens alike."""
        self._rows.observe(rows, tokens, taps)

    def forget(self, row: Sequence) -> None:
        """Free the row's place in the network's cache."""
        self._rows.forget(row)

    def _logits(self, states: Tensor) -> Tensor:
        """States [n, H] -> logits over the target's ids [n, V]."""
        return self.reduced.spread(self.net.logits(states))


class BlockDrafter(NetDrafter):
    """What drafters on a block network share: chains no longer than the block, `_chains` drawing them."""

    net: DFlashNet

    def __init__(
        self, net: DFlashNet, *, vocab: int, max_rows: int, device: torch.device | str = "cpu", tree: bool = False
    ) -> None:
        super().__init__(net, vocab=vocab, device=device, tree=tree)
        self.context = ContextRows(net, max_rows)

    def propose(self, rows: list[Sequence], budget: list[int], rngs: Rngs) -> Draft:
        """Draft at most `budget[b]` tokens for each row, and never more than the block has."""
        work = Drawing(rows, self.context.limits(rows, budget), rngs, vocab=self.vocab, device=self.device)
        if work.live:
            self._chains(work)
        return work.draft()

    def observe(self, rows: list[Sequence], tokens: list[list[int]], taps: list[Mapping[int, Tensor]]) -> None:
        """Feed what was committed to the network's context."""
        self.context.observe(rows, tokens, taps)

    def forget(self, row: Sequence) -> None:
        """Free the row's place in the network's cache."""
        self.context.forget(row)

    def _chains(self, work: Drawing) -> None:
        """Draw the chains of the rows that are live, one at least."""
        raise NotImplementedError

    def _at_once(self, rows: int = 1) -> int:
        """Return for how many slots of each of `rows` rows logits are computed at once."""
        return max(1, _MOST_LOGITS // (self.vocab * rows))
