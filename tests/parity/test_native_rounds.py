"""Trees, batches and rollback: whatever was drafted and refused, the cache is that of a fresh prefill."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest
import torch
from native_kit import PATHS, TREE, assert_stale_entries_stay_unseen, save, tiny, tokens

from slipstream.nets.decoder import CachedDecoder, load_decoder
from slipstream.targets.native import NativeTarget
from slipstream.types import Draft, RequestError

FAMILIES = ["llama", "mistral_sliding", "gemma3", "smollm3"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {name: save(tiny(name), tmp_path_factory.mktemp(name)) for name in FAMILIES}


def double(folder: Path, rows: int = 1) -> CachedDecoder:
    """A float64 decoder: rounding cannot hide a wrong key."""
    return load_decoder(folder, torch.float64, "cpu", max_rows=rows, max_len=96, max_nodes=16)


def assert_fresh(decoder: CachedDecoder, slot: int, committed: list[int], folder: Path) -> None:
    """The slot's cache equals that of a decoder that only ever saw the committed tokens."""
    fresh = double(folder)
    fresh.extend(0, committed)
    assert decoder.length(slot) == len(committed)
    for ours, theirs in ((decoder.cache.keys, fresh.cache.keys), (decoder.cache.values, fresh.cache.values)):
        torch.testing.assert_close(
            ours[:, slot, :, : len(committed)], theirs[:, 0, :, : len(committed)], rtol=0, atol=1e-9
        )


@pytest.mark.parametrize("name", FAMILIES)
def test_tree_pass_equals_its_paths_one_by_one(name: str, folders: dict[str, Path]) -> None:
    decoder = double(folders[name])
    decoder.extend(0, tokens(13))
    draft = torch.tensor([tokens(len(TREE), seed=1)])
    scored, felt = decoder.nodes([0], draft, torch.tensor([TREE]), (2,))
    for path in PATHS:
        nodes = [0, *path]
        chain, chain_felt = decoder.nodes([0], draft[:, nodes], None, (2,))
        torch.testing.assert_close(scored[0, nodes], chain[0], rtol=0, atol=1e-9)
        torch.testing.assert_close(felt[2][0, nodes], chain_felt[2][0], rtol=0, atol=1e-9)
    assert decoder.length(0) == 13


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("shape", ["chain", "tree"])
def test_ragged_batch_equals_its_rows_one_by_one(name: str, shape: str, folders: dict[str, Path]) -> None:
    decoder, alone = double(folders[name], rows=4), double(folders[name])
    slots, lengths = [2, 0, 3], [3, 17, 8]
    draft = torch.tensor([tokens(8, seed=10 + b) for b in range(3)])
    parents = torch.tensor([TREE, [-1, *[0] * 7], list(range(-1, 7))]) if shape == "tree" else None
    for slot, length in zip(slots, lengths, strict=True):
        decoder.extend(slot, tokens(length, seed=slot))
    scored, felt = decoder.nodes(slots, draft, parents, (-1,))
    for b, (slot, length) in enumerate(zip(slots, lengths, strict=True)):
        alone.release(0)
        alone.extend(0, tokens(length, seed=slot))
        one, one_felt = alone.nodes([0], draft[b : b + 1], None if parents is None else parents[b : b + 1], (-1,))
        torch.testing.assert_close(scored[b], one[0], rtol=0, atol=1e-9)
        torch.testing.assert_close(felt[-1][b], one_felt[-1][0], rtol=0, atol=1e-9)


def test_every_pair_of_accepted_lengths_leaves_a_fresh_cache(folders: dict[str, Path]) -> None:
    """Chains of four drafted tokens in two rows, accepted 0 to 4 in all 25 combinations, one after the other."""
    decoder = double(folders["mistral_sliding"], rows=2)
    committed = [tokens(5, seed=0), tokens(9, seed=1)]
    for slot in (0, 1):
        decoder.extend(slot, committed[slot])
    for turn, accepted in enumerate(itertools.product(range(5), repeat=2)):
        if max(len(c) for c in committed) > 80:
            for slot in (0, 1):
                decoder.truncate(slot, 7)
                committed[slot] = committed[slot][:7]
        draft = torch.tensor([tokens(5, seed=2 * turn), tokens(5, seed=2 * turn + 1)])
        decoder.nodes([0, 1], draft)
        decoder.keep([0, 1], [list(range(1, a + 1)) for a in accepted])
        for slot, a in enumerate(accepted):
            committed[slot] += draft[slot, : a + 1].tolist()
            assert_fresh(decoder, slot, committed[slot], folders["mistral_sliding"])


@pytest.mark.parametrize("name", FAMILIES)
def test_random_history_of_trees_and_chains_leaves_a_fresh_cache(name: str, folders: dict[str, Path]) -> None:
    decoder, draw = double(folders[name], rows=3), random.Random(name)
    committed: dict[int, list[int]] = {0: tokens(4), 1: tokens(11), 2: tokens(1)}
    for slot, prefix in committed.items():
        decoder.extend(slot, prefix)
    for turn in range(14):
        slots = draw.sample([0, 1, 2], draw.randint(1, 3))
        tree = draw.random() < 0.7
        draft = torch.tensor([tokens(len(TREE), seed=100 * turn + s) for s in slots])
        paths = [draw.choice(PATHS) if tree else list(range(1, draw.randint(1, 8))) for _ in slots]
        decoder.nodes(slots, draft, torch.tensor([TREE] * len(slots)) if tree else None)
        decoder.keep(slots, paths)
        for b, slot in enumerate(slots):
            committed[slot] += draft[b, [0, *paths[b]]].tolist()
        if draw.random() < 0.2:
            decoder.release(slots[0])
            committed[slots[0]] = tokens(6, seed=turn)
            decoder.extend(slots[0], committed[slots[0]])
    for slot, prefix in committed.items():
        assert_fresh(decoder, slot, prefix, folders[name])


@pytest.mark.parametrize("name", FAMILIES)
def test_nan_behind_the_committed_tokens_never_reaches_an_output(name: str, folders: dict[str, Path]) -> None:
    clean, poisoned = double(folders[name], rows=2), double(folders[name], rows=2)

    def poison() -> None:
        for slot in (0, 1):
            for buffer in (poisoned.cache.keys, poisoned.cache.values):
                buffer[:, slot, :, poisoned.length(slot) :] = float("nan")

    assert_stale_entries_stay_unseen(clean, poisoned, poison)


def test_released_slot_forgets_its_former_row(folders: dict[str, Path]) -> None:
    decoder, fresh = double(folders["gemma3"]), double(folders["gemma3"])
    decoder.extend(0, tokens(40, seed=9))
    decoder.release(0)
    assert decoder.length(0) == 0
    draft = torch.tensor([tokens(5)])
    assert torch.equal(decoder.nodes([0], draft)[0], fresh.nodes([0], draft)[0])


def test_scoring_twice_or_failing_midway_commits_nothing(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder = double(folders["llama"])
    decoder.extend(0, tokens(10))
    draft, other = torch.tensor([tokens(4, seed=1)]), torch.tensor([tokens(6, seed=2)])
    first, _ = decoder.nodes([0], draft)
    decoder.nodes([0], other)
    assert torch.equal(decoder.nodes([0], draft)[0], first)

    layer = decoder.net.layer

    def failing(index: int, *rest: object) -> torch.Tensor:
        if index == 2:
            raise RuntimeError("out of memory")
        return layer(index, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(decoder.net, "layer", failing)
    with pytest.raises(RuntimeError, match="out of memory"):
        decoder.nodes([0], other)
    with pytest.raises(RequestError, match="nothing to keep"):
        decoder.keep([0], [[1]])
    with pytest.raises(RuntimeError, match="out of memory"):
        decoder.extend(0, tokens(7, seed=3))
    monkeypatch.undo()
    assert decoder.length(0) == 10
    assert torch.equal(decoder.nodes([0], draft)[0], first)


def test_wrong_use_is_refused_and_changes_nothing(folders: dict[str, Path]) -> None:
    decoder = double(folders["llama"], rows=2)
    decoder.extend(0, tokens(10))
    draft = torch.tensor([tokens(8)])
    decoder.nodes([0], draft, torch.tensor([TREE]))
    for path in ([3], [1, 2], [1, 3, 7], [8], [0], [1, 1]):
        with pytest.raises(RequestError, match="path"):
            decoder.keep([0], [path])
    decoder.keep([0], [[2]])
    wrong = {
        "one distinct slot": lambda: decoder.nodes([0, 0], draft.repeat(2, 1)),
        "max_rows": lambda: decoder.nodes([2], draft),
        "max_nodes": lambda: decoder.nodes([0], torch.zeros(1, 17, dtype=torch.int64)),
        "token id 97": lambda: decoder.nodes([0], torch.tensor([[97]])),
        "token id -1": lambda: decoder.extend(0, [-1]),
        "not a tree": lambda: decoder.nodes([0], draft, torch.tensor([[-1, 2, *TREE[2:]]])),
        "tap 5": lambda: decoder.nodes([0], draft, None, (5,)),
        "max_len 96": lambda: decoder.extend(0, tokens(90)),
        "cannot be cut to 13": lambda: decoder.truncate(0, 13),
        "nothing to keep": lambda: decoder.keep([1], [[]]),
    }
    for message, call in wrong.items():
        with pytest.raises(RequestError, match=message):
            call()
    assert decoder.length(0) == 12


def test_drafts_may_reach_past_max_len_but_not_be_kept_there(folders: dict[str, Path]) -> None:
    decoder = double(folders["llama"])
    decoder.extend(0, tokens(94))
    draft = torch.tensor([tokens(8, seed=4)])
    assert decoder.nodes([0], draft)[0].isfinite().all()
    with pytest.raises(RequestError, match="max_len 96"):
        decoder.keep([0], [[1, 2]])
    decoder.keep([0], [[1]])
    assert decoder.length(0) == 96
    assert decoder.nodes([0], draft)[0].isfinite().all()


def test_empty_extend_gives_empty_taps(folders: dict[str, Path]) -> None:
    decoder = double(folders["llama"])
    decoder.extend(0, tokens(3))
    assert decoder.extend(0, [], (0, -1))[-1].shape == (0, 48)
    assert decoder.length(0) == 3


def test_target_hides_padding_and_gives_what_its_caps_say(folders: dict[str, Path]) -> None:
    target = NativeTarget(double(folders["llama"], rows=2), taps=(1, 4))
    assert (target.caps.vocab, target.caps.layers, target.caps.hidden, target.caps.tree) == (97, 4, 48, True)
    for slot in (0, 1):
        assert target.prefill(slot, tokens(6, seed=slot))[4].shape == (6, 48)
    ids, parents = torch.tensor([tokens(8), tokens(8, seed=1)]), torch.tensor([TREE, TREE])
    full = Draft(ids, parents, torch.tensor([8, 8]), torch.zeros(2, 8, dtype=torch.int64), chain=False)
    padded_ids, padded_parents = ids.clone(), parents.clone()
    padded_ids[1, 3:], padded_parents[1, 3:] = -1, -7
    short = Draft(padded_ids, padded_parents, torch.tensor([8, 3]), full.draw, chain=False)
    expected, got = target.score([0, 1], full), target.score([0, 1], short)
    torch.testing.assert_close(got.logits[0], expected.logits[0], rtol=0, atol=1e-9)
    torch.testing.assert_close(got.logits[1, :3], expected.logits[1, :3], rtol=0, atol=1e-9)
    assert set(got.taps) == {1, 4}
    target.commit([0, 1], [[1, 3], [2]])
    assert [target.decoder.length(slot) for slot in (0, 1)] == [9, 8]
    target.release(1)
    assert target.decoder.length(1) == 0
