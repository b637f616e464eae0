"""A DFlash 2 drafter that knows the target's texts is accepted whole; wired one off, or its pairs turned, it is not.

Its slots alone do not know the texts: they are trained on what follows any of two tokens. The pairs decide.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import block_reference
import draft_zoo
import overfit
from slipstream.drafters.dflash2 import DFlash2
from slipstream.nets.decoder import CachedDecoder, load_decoder
from slipstream.nets.dflash2 import DFlash2Net
from slipstream.nets.draft_config import Block, DraftCheckpoint, DraftConfig, Features, Paths, Tables, Vocab
from tiny_model import make_model

PROMPTS = [[5, 9, 60, 77], [100, 4, 33], [201, 17, 8, 9, 10]]
TAPS, SIZE, COUNT = (1, 2), 5, 40


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> CachedDecoder:
    folder = make_model(tmp_path_factory.mktemp("target"))
    return load_decoder(folder, "float32", "cpu", max_rows=4, max_len=100, max_nodes=32)


def loss_of(config: DraftConfig, tables: Tables, texts: list[overfit.Greedy]) -> Callable[[dict[str, Tensor]], Tensor]:
    """Cross-entropy of the scores behind the text's own tokens. Slots see the text's decoy as often as the text."""
    head = tables.head(torch.eye(tables.hidden, dtype=tables.dtype))
    ahead = torch.arange(SIZE - 1)
    work = []
    for text in texts:
        anchors = list(range(text.prompt - 1, len(text.tokens) - SIZE))
        at = torch.tensor(anchors)[:, None] + ahead
        ids = torch.tensor(text.tokens)
        decoy = (ids[at + 1] + 1 + torch.arange(SIZE - 1)) % tables.vocab
        work.append((text.taps, [(a, text.tokens[a]) for a in anchors], ids[at], ids[at + 1], decoy))

    def loss(w: dict[str, Tensor]) -> Tensor:
        total = torch.zeros(())
        for taps, anchors, previous, wanted, decoy in work:
            h = block_reference.states(config, w, tables, taps, anchors)[:, 1:]  # [A, S - 1, H]
            unary = h @ head
            pairs = (w["paths.before.weight"][previous] * (h @ w["paths.mix.weight"].T)) @ w["paths.after.weight"].T
            for logits, right in ((unary, wanted), (unary, decoy), (unary.detach() + pairs, wanted)):
                total = total + torch.nn.functional.cross_entropy(logits.flatten(0, 1), right.flatten())
        return total / len(work)

    return loss


@pytest.fixture(scope="module")
def oracle(decoder: CachedDecoder) -> DraftCheckpoint:
    texts = [overfit.greedy(decoder, prompt, COUNT + SIZE, TAPS) for prompt in PROMPTS]
    vocab = decoder.config.vocab
    body = draft_zoo.body(2, hidden=32, mlp=64, qk_norm=True, windows=(12, None))
    block, paths = Block(SIZE, vocab - 1, False, (False, False)), Paths(2, 4, 8, 4)
    config = DraftConfig("dflash2", "zlab", Features(TAPS, 32), Vocab(vocab, vocab), body, block=block, paths=paths)
    return overfit.fit(config, loss_of(config, overfit.tables_of(decoder), texts), steps=100)


def tokens_per_round(decoder: CachedDecoder, found: DraftCheckpoint) -> float:
    """Decode all prompts as one batch; return the mean tokens of a round."""
    tables = overfit.tables_of(decoder)
    net = DFlash2Net(found.config, found.tensors, tables, max_rows=4, max_len=100, max_nodes=8)
    drafter = DFlash2(net, vocab=tables.vocab, max_rows=4)
    return overfit.tokens_per_round(overfit.decode(decoder, drafter, PROMPTS, tokens=COUNT, budget=SIZE - 1))


def test_a_drafter_that_knows_the_text_is_accepted(decoder: CachedDecoder, oracle: DraftCheckpoint) -> None:
    assert tokens_per_round(decoder, oracle) > 0.95 * SIZE


def turned(oracle: DraftCheckpoint, *names: str) -> DraftCheckpoint:
    """The drafter with two tensors exchanged, or one read backwards along its first axis."""
    first, last = oracle.tensors[names[0]], oracle.tensors[names[-1]]
    new = {names[0]: last, names[-1]: first} if len(names) == 2 else {names[0]: first.flip(0)}
    return replace(oracle, tensors={**oracle.tensors, **new})


@pytest.mark.parametrize(
    "wrong",
    [
        {"features": Features((0, 1), 32)},
        {"features": Features((2, 1), 32)},
        {"block": Block(SIZE, 299, True, (False, False))},
    ],
    ids=["taps one lower", "taps exchanged", "slots one off"],
)
def test_wired_one_off_it_is_not(decoder: CachedDecoder, oracle: DraftCheckpoint, wrong: dict[str, object]) -> None:
    assert tokens_per_round(decoder, overfit.changed(oracle, **wrong)) < 1.5


@pytest.mark.parametrize(
    ("names", "most"),
    [
        (("paths.before.weight", "paths.after.weight"), 2.5),
        (("layers.0.attention_conv.base",), 2.5),
        (("layers.1.attention_conv.base", "layers.1.mlp_conv.base"), 4.0),
    ],
    ids=["predecessors for successors", "sides exchanged", "attention's for the MLP's"],
)
def test_nor_with_its_parts_exchanged(
    decoder: CachedDecoder, oracle: DraftCheckpoint, names: tuple[str, ...], most: float
) -> None:
    assert tokens_per_round(decoder, turned(oracle, *names)) < most


def test_the_slots_alone_do_not_know_the_text(decoder: CachedDecoder, oracle: DraftCheckpoint) -> None:
    assert oracle.config.paths is not None
    assert tokens_per_round(decoder, overfit.changed(oracle, paths=replace(oracle.config.paths, top_k=1))) < 0.75 * SIZE
