"""Guess nothing: every round is one plain decoding step, so that baselines run the loop that is measured."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from slipstream.drafters.chains import chain_draft
from slipstream.types import Draft, Needs, Rngs, Sequence


class NoDraft:
    """A drafter that returns the root alone, whatever the budget. Keeps no state."""

    name = "none"
    needs = Needs()

    def __init__(self, *, device: torch.device | str = "cpu") -> None:
        self.device = torch.device(device)

    def propose(self, rows: list[Sequence], budget: list[int], rngs: Rngs) -> Draft:
        """Return one root per row."""
        return chain_draft(rows, [()] * len(rows), device=self.device)

    def observe(self, rows: list[Sequence], tokens: list[list[int]], taps: list[Mapping[int, Tensor]]) -> None:
        """Learn nothing."""

    def forget(self, row: Sequence) -> None:
        """Drop nothing: there is no state."""
