"""A DFlash drafter that knows the target's text by heart is accepted nearly whole; wired one off, it is not.

This is what shows that taps, slots and positions arrive where training put them.
"""

from __future__ import annotations

import pytest

import draft_zoo
import overfit
from slipstream.drafters.dflash import DFlash, DFlashOptions
from slipstream.nets.decoder import CachedDecoder, load_decoder
from slipstream.nets.dflash import DFlashNet
from slipstream.nets.draft_config import Block, DraftCheckpoint, DraftConfig, Features, Vocab
from tiny_model import make_model

PROMPTS = [[5, 9, 60, 77], [100, 4, 33], [201, 17, 8, 9, 10]]
TAPS, SIZE, COUNT = (1, 2), 5, 40


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> CachedDecoder:
    folder = make_model(tmp_path_factory.mktemp("target"))
    return load_decoder(folder, "float32", "cpu", max_rows=4, max_len=100, max_nodes=32)


@pytest.fixture(scope="module")
def oracle(decoder: CachedDecoder) -> DraftCheckpoint:
    texts = [overfit.greedy(decoder, prompt, COUNT, TAPS) for prompt in PROMPTS]
    vocab = decoder.config.vocab
    body = draft_zoo.body(2, hidden=32, mlp=64, qk_norm=True, windows=(12, None))
    block = Block(SIZE, vocab - 1, False, (True, False))
    config = DraftConfig("dflash", "zlab", Features(TAPS, 32), Vocab(vocab, vocab), body, block=block)
    return overfit.fit(config, overfit.block_loss(config, overfit.tables_of(decoder), texts), steps=100)


def tokens_per_round(
    decoder: CachedDecoder, found: DraftCheckpoint, shape: str = "chain", rule: str = "chain", budget: int = SIZE - 1
) -> float:
    """Decode all prompts as one batch; return the mean tokens of a round."""
    tables = overfit.tables_of(decoder)
    net = DFlashNet(found.config, found.tensors, tables, max_rows=4, max_len=100, max_nodes=8)
    drafter = DFlash(net, vocab=tables.vocab, max_rows=4, options=DFlashOptions(shape=shape))
    return overfit.tokens_per_round(overfit.decode(decoder, drafter, PROMPTS, tokens=COUNT, budget=budget, rule=rule))


def test_a_drafter_that_knows_the_text_is_accepted(decoder: CachedDecoder, oracle: DraftCheckpoint) -> None:
    assert tokens_per_round(decoder, oracle) > 0.95 * SIZE


def test_so_is_its_tree(decoder: CachedDecoder, oracle: DraftCheckpoint) -> None:
    assert tokens_per_round(decoder, oracle, "tree", "tree", 12) > 0.95 * SIZE


@pytest.mark.parametrize(
    "wrong",
    [
        {"features": Features((0, 1), 32)},
        {"features": Features((2, 1), 32)},
        {"block": Block(SIZE, 299, True, (True, False))},
    ],
    ids=["taps one lower", "taps exchanged", "slots one off"],
)
def test_wired_one_off_it_is_not(decoder: CachedDecoder, oracle: DraftCheckpoint, wrong: dict[str, object]) -> None:
    assert tokens_per_round(decoder, overfit.changed(oracle, **wrong)) < 1.5
