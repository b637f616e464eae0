"""A drafter is a guest: one that writes into the same tensors in every round is read anew in every round."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from cases_kit import PROMPT, chain_target, finish, make_engine, output, request

from slipstream.types import Draft, Needs, Rngs, Sequence

TEXT = [3, 4, 5, 6, 7, 8]
AFTER = dict(zip([PROMPT[-1], *TEXT], [*TEXT, TEXT[0]], strict=True))


class OneBuffer:
    """Guess the next token, in the tensors of the round before."""

    name, needs = "one buffer", Needs()

    def __init__(self) -> None:
        self.tokens = torch.zeros(1, 2, dtype=torch.int64)
        self.parents, self.length = torch.tensor([[-1, 0]]), torch.tensor([2])
        self.draw = torch.zeros_like(self.tokens)

    def propose(self, rows: list[Sequence], budget: list[int], rngs: Rngs) -> Draft:
        root = rows[0].tokens[-1]
        self.tokens[0] = torch.tensor([root, AFTER[root]])
        return Draft(self.tokens, self.parents, self.length, self.draw)

    def observe(self, rows: list[Sequence], tokens: list[list[int]], taps: list[Mapping[int, torch.Tensor]]) -> None:
        pass

    def forget(self, row: Sequence) -> None:
        pass


def test_a_drafter_may_write_into_the_tensors_of_the_round_before() -> None:
    row = request(max_tokens=12)
    finish(make_engine(chain_target(TEXT), OneBuffer(), 1), row)
    assert output(row) == TEXT * 2
    assert row.stats.num_accepted_tokens == row.stats.num_draft_tokens == 6
