"""A DSpark drafter that knows some of the target's texts by heart is accepted nearly whole there, and knows where.

This is what shows that taps, slots, previous tokens and confidence arrive where training put them: wired one off,
little is accepted; on texts it does not know, its confidence head keeps the drafts short.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

import block_reference
import draft_zoo
import overfit
from slipstream.drafters.calibration import Outcome, prefix_errors
from slipstream.drafters.dspark import DSpark, DSparkOptions
from slipstream.nets.decoder import CachedDecoder, load_decoder
from slipstream.nets.draft_config import Block, DraftCheckpoint, DraftConfig, Features, Markov, Tables, Vocab
from slipstream.nets.dspark import DSparkNet
from tiny_model import make_model

KNOWN = [[5, 9, 60, 77], [100, 4, 33], [201, 17, 8, 9, 10]]
DOUBTFUL = [[7, 7, 120], [90, 91, 44, 3]]  # texts it was only told how wrong it is about
TAPS, SIZE, COUNT, RANK = (1, 2), 4, 40, 8


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> CachedDecoder:
    folder = make_model(tmp_path_factory.mktemp("target"))
    return load_decoder(folder, "float32", "cpu", max_rows=4, max_len=100, max_nodes=32)


def loss_of(
    config: DraftConfig, tables: Tables, known: list[overfit.Greedy], doubtful: list[overfit.Greedy]
) -> Callable[[dict[str, Tensor]], Tensor]:
    """Cross-entropy on the known texts; everywhere, confidence in what the drafter itself gives the right token."""
    head = tables.head(torch.eye(tables.hidden, dtype=tables.dtype))
    ahead = torch.arange(SIZE)
    work = []
    for text in [*known, *doubtful]:
        anchors = list(range(text.prompt - 1, len(text.tokens) - SIZE))
        at = torch.tensor(anchors)[:, None] + ahead
        ids = torch.tensor(text.tokens)
        work.append((text.taps, [(a, text.tokens[a]) for a in anchors], ids[at], ids[at + 1], text in known))

    def loss(w: dict[str, Tensor]) -> Tensor:
        total = torch.zeros(())
        for taps, anchors, previous, wanted, learned in work:
            h = block_reference.states(config, w, tables, taps, anchors)  # [A, S, H]
            e = w["markov.w1.weight"][previous]
            gate = torch.sigmoid(torch.cat([h, e], -1) @ w["markov.gate.weight"].T + w["markov.gate.bias"])
            logits = h @ head + (gate * e) @ w["markov.w2.weight"].T
            if learned:
                total = total + torch.nn.functional.cross_entropy(logits.flatten(0, 1), wanted.flatten())
            right = logits.detach().softmax(-1).gather(-1, wanted[..., None])[..., 0]
            sure = (torch.cat([h, e], -1) @ w["confidence.weight"].T)[..., 0] + w["confidence.bias"]
            total = total + torch.nn.functional.binary_cross_entropy_with_logits(sure, right)
        return total / len(work)

    return loss


@pytest.fixture(scope="module")
def oracle(decoder: CachedDecoder) -> DraftCheckpoint:
    known, doubtful = (
        [overfit.greedy(decoder, p, COUNT + SIZE, TAPS) for p in prompts] for prompts in (KNOWN, DOUBTFUL)
    )
    vocab = decoder.config.vocab
    config = DraftConfig(
        "dspark",
        "deepspec",
        Features(TAPS, 32),
        Vocab(vocab, vocab),
        draft_zoo.body(2, hidden=32, mlp=64, qk_norm=True),
        block=Block(SIZE, vocab - 1, True, (False, False)),
        markov=Markov("gated", RANK, "markov"),
    )
    return overfit.fit(config, loss_of(config, overfit.tables_of(decoder), known, doubtful), steps=140)


@dataclass
class Run:
    """Tokens and drafted tokens of a round on the mean, and what the confidence head said."""

    tokens: float
    drafted: float
    outcomes: list[Outcome]


def decode(
    decoder: CachedDecoder,
    found: DraftCheckpoint,
    prompts: list[list[int]],
    options: DSparkOptions | None = None,
    seconds: Callable[[int], float] | None = None,
) -> Run:
    """Decode the prompts as one batch."""
    tables = overfit.tables_of(decoder)
    net = DSparkNet(found.config, found.tensors, tables, max_rows=4, max_len=100, max_nodes=8)
    drafter = DSpark(net, vocab=tables.vocab, max_rows=4, options=options, seconds=seconds)
    drafter.collect = []
    rows = overfit.decode(decoder, drafter, prompts, tokens=COUNT, budget=SIZE)
    drafted = sum(len(outcome.logits) for outcome in drafter.collect) / max(1, len(drafter.collect))
    return Run(overfit.tokens_per_round(rows), drafted, drafter.collect)


def test_a_drafter_that_knows_the_text_is_accepted(decoder: CachedDecoder, oracle: DraftCheckpoint) -> None:
    assert decode(decoder, oracle, KNOWN).tokens > 0.95 * (SIZE + 1)


def test_wired_one_off_it_is_not(decoder: CachedDecoder, oracle: DraftCheckpoint) -> None:
    best = decode(decoder, oracle, KNOWN).tokens
    vocab = decoder.config.vocab
    for wrong in (
        overfit.changed(oracle, block=Block(SIZE, vocab - 1, False, (False, False))),
        overfit.changed(oracle, features=Features((0, 1), 32)),
    ):
        assert decode(decoder, wrong, KNOWN).tokens < 0.4 * best


@pytest.mark.parametrize(
    ("options", "seconds"),
    [(DSparkOptions(threshold=0.5), None), (DSparkOptions(schedule="hardware"), lambda n: 8.0 + n)],
    ids=["threshold", "hardware"],
)
def test_confidence_keeps_what_stands_and_drops_what_does_not(
    decoder: CachedDecoder, oracle: DraftCheckpoint, options: DSparkOptions, seconds: Callable[[int], float] | None
) -> None:
    known, doubtful = (decode(decoder, oracle, prompts, options, seconds) for prompts in (KNOWN, DOUBTFUL))
    assert known.tokens > 0.9 * (SIZE + 1)
    assert doubtful.drafted < 0.2 * known.drafted


def test_what_it_says_of_prefixes_is_what_stands(decoder: CachedDecoder, oracle: DraftCheckpoint) -> None:
    known, doubtful = (decode(decoder, oracle, prompts).outcomes for prompts in (KNOWN, DOUBTFUL))
    assert all(error < 0.05 for error in prefix_errors(known + doubtful))
    late = [Outcome(o.logits, max(0, o.accepted - 1)) for o in known]
    assert max(prefix_errors(late + doubtful)) > 0.2, "outcomes heard one off would show"
