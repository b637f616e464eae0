"""A drafter's own, smaller vocabulary, mapped to the target's ids before anything is drawn (law 3).

In: logits over the ids the drafter has. Out: logits over the target's real ids, -inf where the drafter has none, so
that q is zero there and the residual covers the whole vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from slipstream.sampling.laws import fit_vocab


class Reduced:
    """Map logits and ids of a drafter to the target's. `vocab` is the target's number of real ids.

    `to` [Vd] holds absolute target ids, or is None when draft ids are target ids. Ids of `vocab` and above, which the
    target has no row for, are never proposed.
    """

    def __init__(self, to: Tensor | None, vocab: int, device: torch.device | str = "cpu") -> None:
        self.vocab, self.to = vocab, None if to is None else to.to(device, torch.int64)
        self._kept: Tensor | None = None
        if self.to is not None and int(self.to.max()) >= vocab:
            self._kept = (self.to < vocab).nonzero()[:, 0]

    def spread(self, logits: Tensor) -> Tensor:
        """Rows [R, Vd] -> [R, V]."""
        if self.to is None:
            return fit_vocab(logits, self.vocab, logits=True)
        to = self.to
        if self._kept is not None:
            to, logits = to[self._kept], logits[:, self._kept]
        out = logits.new_full((logits.shape[0], self.vocab), -torch.inf)
        out[:, to] = logits
        return out
