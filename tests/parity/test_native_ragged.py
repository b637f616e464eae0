"""Rows with different numbers of nodes in one pass: each as if alone, and nothing computed for what is not there."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from native_kit import TREE, save, tiny, tokens

from slipstream.nets.decoder import CachedDecoder, load_decoder
from slipstream.targets.native import NativeTarget
from slipstream.types import Draft, RequestError

FAMILIES = ["llama", "mistral_sliding", "gemma3_capped", "smollm3"]
BUSH = [-1, 0, 0, 0, 1]
CHAIN = [-1, 0, 1, 2, 3, 4]
SLOTS, LENGTHS = [2, 0, 3, 1], [3, 17, 8, 30]
SHAPES = {
    "chains": [CHAIN[:4], CHAIN[:1], CHAIN, CHAIN[:2]],
    "trees and chains": [BUSH, TREE, CHAIN[:1], CHAIN[:3]],
    "one long row": [CHAIN[:1], CHAIN[:1], [*range(-1, 39)], CHAIN[:1]],  # too long for folded queries
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {name: save(tiny(name), tmp_path_factory.mktemp(name)) for name in FAMILIES}


def double(folder: Path, rows: int = 4) -> CachedDecoder:
    return load_decoder(folder, torch.float64, "cpu", max_rows=rows, max_len=96, max_nodes=40)


def padded(trees: list[list[int]], junk: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and parents [B, N] with `junk` where a row has no node."""
    n = max(len(tree) for tree in trees)
    ids = [tokens(len(tree), seed=10 + b) + [junk] * (n - len(tree)) for b, tree in enumerate(trees)]
    return torch.tensor(ids), torch.tensor([tree + [junk] * (n - len(tree)) for tree in trees])


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("shape", SHAPES)
def test_each_row_is_as_if_alone_and_padding_is_zeros(name: str, shape: str, folders: dict[str, Path]) -> None:
    decoder, alone, trees = double(folders[name]), double(folders[name], 1), SHAPES[shape]
    for slot, length in zip(SLOTS, LENGTHS, strict=True):
        decoder.extend(slot, tokens(length, seed=slot))
    counts = [len(tree) for tree in trees]
    ids, parents = padded(trees, junk=-3)
    chain = shape != "trees and chains"
    scored, felt = decoder.nodes(SLOTS, ids, None if chain else parents, (2, -1), counts)
    assert scored.shape == (4, max(counts), 97)
    for b, (slot, n) in enumerate(zip(SLOTS, counts, strict=True)):
        alone.release(0)
        alone.extend(0, tokens(LENGTHS[b], seed=slot))
        one, one_felt = alone.nodes([0], ids[b : b + 1, :n], None if chain else parents[b : b + 1, :n], (2, -1))
        torch.testing.assert_close(scored[b, :n], one[0], rtol=0, atol=1e-10)
        assert not scored[b, n:].any()
        for tap in (2, -1):
            torch.testing.assert_close(felt[tap][b, :n], one_felt[tap][0], rtol=0, atol=1e-10)
            assert not felt[tap][b, n:].any()


def test_what_is_kept_of_ragged_rows_is_a_fresh_cache(folders: dict[str, Path]) -> None:
    decoder, trees = double(folders["mistral_sliding"]), SHAPES["trees and chains"]
    committed = {slot: tokens(length, seed=slot) for slot, length in zip(SLOTS, LENGTHS, strict=True)}
    for slot, ids in committed.items():
        decoder.extend(slot, ids)
    draft, parents = padded(trees, junk=0)
    paths = [[1, 4], [1, 3, 6, 7], [], [1, 2]]
    decoder.nodes(SLOTS, draft, parents, (), [len(tree) for tree in trees])
    decoder.keep(SLOTS, paths)
    for b, slot in enumerate(SLOTS):
        committed[slot] += draft[b, [0, *paths[b]]].tolist()
        fresh = double(folders["mistral_sliding"], 1)
        fresh.extend(0, committed[slot])
        assert decoder.length(slot) == len(committed[slot])
        for ours, theirs in ((decoder.cache.keys, fresh.cache.keys), (decoder.cache.values, fresh.cache.values)):
            n = len(committed[slot])
            torch.testing.assert_close(ours[:, slot, :, :n], theirs[:, 0, :, :n], rtol=0, atol=1e-9)


def test_a_pass_computes_the_nodes_there_are(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = double(folders["llama"])
    target, seen = NativeTarget(decoder, taps=(1,)), []
    for slot in SLOTS:
        target.prefill(slot, tokens(5, seed=slot))
    layer, head = decoder.net.layer, decoder.net.logits
    monkeypatch.setattr(decoder.net, "layer", lambda i, h, *rest: seen.append(len(h)) or layer(i, h, *rest))
    monkeypatch.setattr(decoder.net, "logits", lambda x: seen.append(len(x)) or head(x))
    for shape in SHAPES:
        trees = SHAPES[shape]
        ids, parents = padded(trees, junk=-1)
        length = torch.tensor([len(tree) for tree in trees])
        draft = Draft(ids, parents, length, torch.zeros_like(ids), chain=shape != "trees and chains")
        seen.clear()
        target.score(SLOTS, draft)
        assert seen == [int(length.sum())] * 5, shape  # four layers and the head


def test_padding_cannot_be_kept_and_wrong_counts_are_refused(folders: dict[str, Path]) -> None:
    decoder = double(folders["llama"])
    draft = torch.tensor([tokens(4), tokens(4, seed=1)])
    decoder.nodes([0, 1], draft, None, (), [4, 2])
    with pytest.raises(RequestError, match="slot 1: path"):
        decoder.keep([0, 1], [[1, 2], [1, 2]])
    assert decoder.length(0) == 0
    for counts in ([4], [4, 0], [5, 4], [4, 4, 4]):
        with pytest.raises(RequestError, match="counts"):
            decoder.nodes([0, 1], draft, None, (), counts)
