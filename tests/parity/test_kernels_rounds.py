"""On the kernels a row keeps its bits: trees, chains, batches, prompts in pieces, threads and rejected drafts."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from kernels_kit import exact, fast, needs_kernels, rounded
from native_kit import PATHS, TREE, assert_stale_entries_stay_unseen, tokens

from slipstream import kernels
from slipstream.nets.decoder import CachedDecoder
from slipstream.targets.native import NativeTarget
from slipstream.types import Draft, RequestError

pytestmark = [needs_kernels, pytest.mark.usefixtures("same_kernels_after")]
FAMILIES = ["llama", "mistral_sliding", "gemma3", "smollm3"]
FORMATS = ["none", "int4", "int8", "w8a8"]
FOUR = "int4"  # where a prompt is read in an arithmetic of its own


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {name: rounded(name, tmp_path_factory.mktemp(name)) for name in FAMILIES}


def one_by_one(decoder: CachedDecoder, ids: list[int]) -> torch.Tensor:
    """Logits [T, V] of a text decoded token by token."""
    rows = []
    for token in ids:
        rows.append(decoder.nodes([0], torch.tensor([[token]]))[0][0, 0])
        decoder.keep([0], [[]])
    return torch.stack(rows)


@pytest.mark.parametrize("quantize", FORMATS)
@pytest.mark.parametrize("name", FAMILIES)
def test_every_number_of_rows_and_threads_gives_the_same_bits(
    name: str, quantize: str, folders: dict[str, Path]
) -> None:
    ids = tokens(40)
    kernels.set_threads(1)
    plain = one_by_one(fast(folders[name], quantize), ids)
    for threads in (1, 2, 3):
        kernels.set_threads(threads)
        for width in (2, 3, 5, 7, 8, 9, 13, 16, 17, 31, 33, 40):
            decoder = fast(folders[name], quantize, max_nodes=40)
            for start in range(0, 40 - width + 1, width):
                scored, _ = decoder.nodes([0], torch.tensor([ids[start : start + width]]))
                assert torch.equal(scored[0], plain[start : start + width]), f"{width} rows, {threads} threads"
                decoder.keep([0], [list(range(1, width))])


@pytest.mark.parametrize("level", kernels.levels() if kernels.available() else [])
def test_every_level_keeps_the_bits(level: str, folders: dict[str, Path]) -> None:
    kernels.set_level(level)
    ids = tokens(35)
    for quantize in FORMATS:
        plain = one_by_one(fast(folders["gemma3"], quantize), ids)
        many, _ = fast(folders["gemma3"], quantize, max_nodes=40).nodes([0], torch.tensor([ids]))
        assert torch.equal(many[0], plain), quantize


@pytest.mark.parametrize("name", FAMILIES)
def test_tree_pass_equals_its_paths_bit_for_bit(name: str, folders: dict[str, Path]) -> None:
    decoder = fast(folders[name])
    for length in (1, 13, 30):
        decoder.extend(0, tokens(length, seed=length))
        draft = torch.tensor([tokens(len(TREE), seed=1)])
        scored, felt = decoder.nodes([0], draft, torch.tensor([TREE]), (2, -1))
        for path in PATHS:
            nodes = [0, *path]
            chain, chain_felt = decoder.nodes([0], draft[:, nodes], None, (2, -1))
            assert torch.equal(scored[0, nodes], chain[0])
            assert all(torch.equal(felt[tap][0, nodes], chain_felt[tap][0]) for tap in (2, -1))


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("shape", ["chain", "tree"])
def test_ragged_batch_equals_its_rows_bit_for_bit(name: str, shape: str, folders: dict[str, Path]) -> None:
    decoder, alone = fast(folders[name], rows=4), fast(folders[name])
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
        assert torch.equal(scored[b], one[0])
        assert torch.equal(felt[-1][b], one_felt[-1][0])


@pytest.mark.parametrize("shape", ["chain", "tree"])
def test_rows_of_different_lengths_share_a_pass_bit_for_bit(shape: str, folders: dict[str, Path]) -> None:
    decoder, alone = fast(folders["llama"], rows=4), fast(folders["llama"])
    slots, lengths, counts = [2, 0, 3, 1], [3, 17, 8, 1], [1, 8, 3, 5]
    draft = torch.tensor([tokens(8, seed=10 + b) for b in range(4)])
    parents = torch.tensor([TREE] * 4) if shape == "tree" else None
    for slot, length in zip(slots, lengths, strict=True):
        decoder.extend(slot, tokens(length, seed=slot))
    scored, felt = decoder.nodes(slots, draft, parents, (-1,), counts)
    for b, (slot, length, n) in enumerate(zip(slots, lengths, counts, strict=True)):
        alone.release(0)
        alone.extend(0, tokens(length, seed=slot))
        tree = None if parents is None else parents[b : b + 1, :n]
        one, one_felt = alone.nodes([0], draft[b : b + 1, :n], tree, (-1,))
        assert torch.equal(scored[b, :n], one[0])
        assert torch.equal(felt[-1][b, :n], one_felt[-1][0])
        assert not scored[b, n:].any()


@pytest.mark.parametrize("quantize", ["none", "int4"])
@pytest.mark.parametrize("heads", [2, 7])
def test_sizes_that_threads_share_without_waiting_keep_the_bits(heads: int, quantize: str, tmp_path: Path) -> None:
    """Heads and gates in whole groups are rounded by the threads that made them: one row, many, and any threads."""
    sizes = {"head_dim": 32, "intermediate_size": 160, "num_attention_heads": heads, "num_key_value_heads": 1}
    folder = rounded("llama", tmp_path, hidden_size=32 * heads, num_hidden_layers=2, **sizes)
    ids = tokens(80)
    kernels.set_threads(1)
    plain = one_by_one(fast(folder, quantize), ids)
    for threads in (1, 2, 3, 5):
        kernels.set_threads(threads)
        for width in (1, 4, 80):
            decoder = fast(folder, quantize, max_nodes=80)
            for start in range(0, 80, width):
                scored, _ = decoder.nodes([0], torch.tensor([ids[start : start + width]]))
                assert torch.equal(scored[0], plain[start : start + width]), f"{width} rows, {threads} threads"
                decoder.keep([0], [list(range(1, width))])
    if quantize == "none":  # random weights in four bits are far from themselves
        logits, _ = exact(folder, max_nodes=80).nodes([0], torch.tensor([ids]))
        assert (plain - logits).norm() < 0.02 * logits.norm()


@pytest.mark.parametrize("quantize", ["none", FOUR])
@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_prompt_in_pieces_equals_the_whole_across_spans_and_chunks(name: str, quantize: str, tmp_path: Path) -> None:
    folder = rounded(name, tmp_path, max_position_embeddings=2048, num_hidden_layers=2)
    ids = tokens(700)
    whole, pieces = fast(folder, quantize, max_len=1024), fast(folder, quantize, max_len=1024)
    expected = whole.extend(0, ids, (1, 2, -1))
    found: dict[int, list[torch.Tensor]] = {1: [], 2: [], -1: []}
    at, draw = 0, random.Random(0)
    while at < len(ids):
        size = draw.choice([1, 2, 5, 16, 33, 130, 300])
        for tap, part in pieces.extend(0, ids[at : at + size], (1, 2, -1)).items():
            found[tap].append(part)
        at += size
    for tap, parts in found.items():
        assert torch.equal(torch.cat(parts), expected[tap])
    assert torch.equal(whole.nodes([0], torch.tensor([[3]]))[0], pieces.nodes([0], torch.tensor([[3]]))[0])


def assert_fresh(decoder: CachedDecoder, slot: int, prompt: list[int], decoded: list[int], folder: Path) -> None:
    """The slot's cache has the bits of one that only ever saw the committed tokens, each in its role."""
    fresh, committed = fast(folder, FOUR), len(prompt) + len(decoded)
    fresh.extend(0, prompt)
    fresh.extend(0, decoded, prompt=False)
    assert decoder.length(slot) == committed
    for ours, theirs in zip(decoder.cache.entries(slot, committed), fresh.cache.entries(0, committed), strict=True):
        assert torch.equal(ours, theirs)
    probe = torch.tensor([[5, 6]])
    assert torch.equal(decoder.nodes([slot], probe)[0], fresh.nodes([0], probe)[0])


@pytest.mark.parametrize("name", FAMILIES)
def test_random_history_of_trees_and_chains_leaves_the_bits_of_a_fresh_cache(
    name: str, folders: dict[str, Path]
) -> None:
    decoder, draw = fast(folders[name], FOUR, rows=3), random.Random(name)
    prompts: dict[int, list[int]] = {0: tokens(4), 1: tokens(11), 2: tokens(1)}
    decoded: dict[int, list[int]] = {0: [], 1: [], 2: []}
    for slot, prefix in prompts.items():
        decoder.extend(slot, prefix)
    for turn in range(14):
        slots = draw.sample([0, 1, 2], draw.randint(1, 3))
        tree = draw.random() < 0.7
        draft = torch.tensor([tokens(len(TREE), seed=100 * turn + s) for s in slots])
        paths = [draw.choice(PATHS) if tree else list(range(1, draw.randint(1, 8))) for _ in slots]
        decoder.nodes(slots, draft, torch.tensor([TREE] * len(slots)) if tree else None)
        decoder.keep(slots, paths)
        for b, slot in enumerate(slots):
            decoded[slot] += draft[b, [0, *paths[b]]].tolist()
        if draw.random() < 0.2:
            decoder.release(slots[0])
            prompts[slots[0]], decoded[slots[0]] = tokens(6, seed=turn), []
            decoder.extend(slots[0], prompts[slots[0]])
    for slot, prefix in prompts.items():
        assert_fresh(decoder, slot, prefix, decoded[slot], folders[name])


@pytest.mark.parametrize("quantize", FORMATS)
def test_the_same_tokens_read_and_decoded_are_near_and_only_bfloat16_is_equal(
    quantize: str, folders: dict[str, Path]
) -> None:
    if "amx" not in kernels.levels():
        pytest.skip("this machine lacks the level amx")
    ids, last = tokens(40), torch.tensor([[5]])
    read, decoded = fast(folders["llama"], quantize), fast(folders["llama"], quantize)
    read.extend(0, ids)
    decoded.extend(0, ids, prompt=False)
    a, b = read.nodes([0], last)[0], decoded.nodes([0], last)[0]
    assert torch.equal(a, b) == (quantize == "none")
    assert (a - b).norm() < 0.1 * b.norm()  # 8-bit activations of tiny states


@pytest.mark.parametrize("kv", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", FAMILIES)
def test_nan_behind_the_committed_tokens_never_reaches_an_output(
    name: str, kv: torch.dtype, folders: dict[str, Path]
) -> None:
    clean, poisoned = fast(folders[name], rows=2, kv=kv), fast(folders[name], rows=2, kv=kv)

    def poison() -> None:
        cache = poisoned.cache
        for slot in (0, 1):
            together = cache.values.shape[-1]
            stale = torch.arange(cache.values.shape[3] * together) >= poisoned.length(slot)
            cache.keys[:, slot].masked_fill_(stale.view(-1, 1, 16, 1), float("nan"))
            cache.values[:, slot].masked_fill_(stale.view(-1, 1, together), float("nan"))

    assert_stale_entries_stay_unseen(clean, poisoned, poison)


def test_a_broken_row_fails_alone(folders: dict[str, Path]) -> None:
    decoder, clean = fast(folders["llama"], rows=2), fast(folders["llama"], rows=2)
    for d in (decoder, clean):
        d.extend(0, tokens(9))
        d.extend(1, tokens(9))
    decoder.cache.keys[0, 1, :, 0, :, 3] = float("nan")
    draft = torch.tensor([tokens(4), tokens(4)])
    scored, _ = decoder.nodes([0, 1], draft)
    assert scored[1].isnan().all()
    assert torch.equal(scored[0], clean.nodes([0, 1], draft)[0][0])


def test_target_replaces_padding_and_wrong_use_is_refused(folders: dict[str, Path]) -> None:
    decoder = fast(folders["llama"], rows=2)
    target = NativeTarget(decoder, (1,))
    assert target.caps.own_threads
    target.prefill(0, tokens(10))
    ids = torch.tensor([[4, 5, 999_999, -7]])
    lengths = torch.tensor([2])
    parents = torch.tensor([[-1, 0, 1, 2]])
    scores = target.score([0], Draft(ids, parents, lengths, torch.zeros_like(ids)))
    assert torch.equal(scores.logits[:, :2], decoder.nodes([0], ids[:, :2])[0])
    wrong = {
        "one distinct slot": lambda: decoder.nodes([0, 0], torch.tensor([[1], [2]])),
        "max_rows": lambda: decoder.nodes([2], torch.tensor([[1]])),
        "max_nodes": lambda: decoder.nodes([0], torch.zeros(1, 17, dtype=torch.int64)),
        "token id 97": lambda: decoder.nodes([0], torch.tensor([[97]])),
        "not a tree": lambda: decoder.nodes([0], torch.tensor([[1, 2]]), torch.tensor([[-1, 1]])),
        "tap 5": lambda: decoder.nodes([0], torch.tensor([[1]]), None, (5,)),
        "max_len 96": lambda: decoder.extend(0, tokens(90)),
        "cannot be cut to 13": lambda: decoder.truncate(0, 13),
        "nothing to keep": lambda: decoder.keep([1], [[]]),
    }
    for message, use in wrong.items():
        with pytest.raises(RequestError, match=message):
            use()
    assert decoder.length(0) == 10
