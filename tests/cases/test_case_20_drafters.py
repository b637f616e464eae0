"""Case 20 with drafters that have few of the target's tokens: a mask may leave none, and the request goes on."""

from __future__ import annotations

import pytest
import torch
from cases_kit import finish, make_engine, output, request, same_as_plain

from slipstream.drafters.drawing import Drawing
from slipstream.sampling import RequestRngs
from slipstream.testing import RandomLaw, ToyDrafter, ToyTarget
from slipstream.types import Draft, Rngs, Sequence
from toy_feed import GrowingToy

VOCAB, KNOWN = 12, 5  # the drafters have ids 0..4
LAW = RandomLaw(VOCAB, 8)


def few(prefix: tuple[int, ...]) -> list[float]:
    """The target's law as far as the drafter has its tokens."""
    return [x if t < KNOWN else 0.0 for t, x in enumerate(LAW(prefix))]


class Few(ToyDrafter):
    """A chain over a reduced vocabulary."""

    def propose(self, rows: list[Sequence], budget: list[int], rngs: Rngs) -> Draft:
        work, depth = Drawing(rows, budget, rngs, vocab=VOCAB), 0
        while work.live:
            depth += 1
            prefixes = [(*rows[b].tokens, *work.guesses[b]) for b in work.live]
            work.draw(torch.tensor([few(s) for s in prefixes], dtype=torch.float64).log(), depth)
        return work.draft()


def alternating(prefix: list[int], row: torch.Tensor) -> torch.Tensor:
    """A token the drafter has, then one it lacks; a text that breaks this has no way on."""
    for i, token in enumerate(prefix[2:]):
        if (token < KNOWN) != (i % 2 == 0):
            raise ValueError(f"{prefix} is not in the language")
    keep = torch.arange(VOCAB) < KNOWN
    return row.masked_fill(~keep if len(prefix) % 2 == 0 else keep, -torch.inf)


def picky(prefix: list[int], row: torch.Tensor) -> torch.Tensor:
    """Masks nothing, and has no way on from a text that the target would not have written."""
    if any(max(range(VOCAB), key=LAW(tuple(prefix[:n])).__getitem__) != prefix[n] for n in range(2, len(prefix))):
        raise ValueError(f"{prefix} is not the text")
    return row


DRAFTERS = {"chain": lambda: Few(VOCAB), "tree": lambda: GrowingToy(few, depth=3, top_k=2)}


def masked(**params: object) -> Sequence:
    return request(prompt=[7, 8], max_tokens=9, logits_processors=[alternating], **params)


@pytest.mark.parametrize("kind", DRAFTERS)
def test_case_20_a_mask_that_leaves_the_drafter_nothing(kind: str) -> None:
    row = same_as_plain(lambda: ToyTarget(LAW, VOCAB), DRAFTERS[kind](), masked)
    assert row.stats.num_accepted_tokens > 0


@pytest.mark.parametrize("kind", DRAFTERS)
def test_case_20_at_temperature_1_and_beside_others(kind: str) -> None:
    rows = [masked(id=i, temperature=i % 3 / 2, seed=i) for i in range(6)]
    rows.append(request(6, [7, 8], max_tokens=9, temperature=1.0, seed=6))
    finish(make_engine(ToyTarget(LAW, VOCAB), DRAFTERS[kind]()), *rows)
    assert [row.finish_reason for row in rows] == ["length"] * 7
    for row in rows[:6]:
        assert [token < KNOWN for token in output(row)] == [True, False] * 4 + [True]


@pytest.mark.parametrize("kind", DRAFTERS)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_case_20_nothing_is_drafted_that_the_drafter_lacks(kind: str, temperature: float) -> None:
    rows = [masked(temperature=temperature, seed=1), request(1, [7, 8], temperature=temperature, seed=2)]
    draft = DRAFTERS[kind]().propose(rows, [6, 6], RequestRngs(rows))
    for b in range(2):
        assert all(token < KNOWN for token in draft.tokens[b, 1 : int(draft.length[b])].tolist())
    # fixed nodes are ranked without the mask: the target's law refuses them
    assert draft.length[1] > draft.length[0] or (kind, temperature) == ("tree", 0.0)
    assert draft.q is None or float(draft.q[:, :, KNOWN:].abs().max()) == 0


def test_case_20_a_processor_that_fails_on_a_guess_ends_the_draft() -> None:
    def make() -> Sequence:
        return request(prompt=[7, 8], max_tokens=9, logits_processors=[picky])

    same_as_plain(lambda: ToyTarget(LAW, VOCAB), Few(VOCAB), make)
