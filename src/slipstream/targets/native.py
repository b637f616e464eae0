"""The target on our own decoder: static cache, tree drafts, taps, several rows.

In: slots and drafts. Out: scores after every node. Padding of a draft is never read and costs nothing: a pass is as
long as the drafts of its rows together. Knows no drafter and no rule.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq

from torch import Tensor

from slipstream.devices import listed
from slipstream.nets.decoder import CachedDecoder
from slipstream.types import Caps, Draft, Scores


class NativeTarget:
    """Play `slipstream.types.Target` over a `CachedDecoder`; `taps` are the states handed to the drafter."""

    def __init__(self, decoder: CachedDecoder, taps: Seq[int] = ()) -> None:
        self.decoder, self.taps = decoder, tuple(taps)
        c = decoder.config
        self.caps = Caps(
            vocab=c.vocab,
            max_len=c.max_len,
            max_rows=decoder.max_rows,
            max_nodes=decoder.max_nodes,
            tree=True,
            layers=c.layers,
            hidden=c.hidden,
            own_threads=decoder.own_threads,
        )

    def prefill(self, slot: int, tokens: list[int]) -> Mapping[int, Tensor]:
        """Append tokens to a slot's cache; return {tap: [T, H]}."""
        return self.decoder.extend(slot, tokens, self.taps)

    def score(self, slots: list[int], draft: Draft) -> Scores:
        """Run one forward over all nodes of a draft, commit nothing; rows beyond a draft's `length` are zeros."""
        parents = None if draft.chain else draft.parents
        counts = None if draft.nodes == 1 else listed(draft.length)
        logits, taps = self.decoder.nodes(slots, draft.tokens, parents, self.taps, counts)
        return Scores.with_peaks(logits, taps, self.decoder.peaks)

    def commit(self, slots: list[int], paths: list[list[int]]) -> None:
        """Keep the root and the accepted nodes of the last `score`."""
        self.decoder.keep(slots, paths)

    def release(self, slot: int) -> None:
        """Empty a slot."""
        self.decoder.release(slot)
