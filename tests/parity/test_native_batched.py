"""All rows in one call, recorded or not: what the rows one by one give, whatever lies in the cache."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from native_kit import MODELS, TREE, VOCAB, save, tiny, tokens
from torch import Tensor

from graph_kit import ReplayRecorder
from slipstream.nets.batch_runner import BATCHED, BatchRunner, runner_for
from slipstream.nets.decoder import CachedDecoder, load_decoder
from slipstream.types import RequestError

BUSH = [-1, 0, 0, 0, 1]
CHAIN = list(range(-1, 39))
DEEP = [-1, 0, 0, 1, 3, 4, 5, 6, 7]  # deeper than the windows, with siblings before
SLOTS, LENGTHS = [2, 0, 3], [3, 140, 30]
SHAPES: dict[str, list[list[int]]] = {
    "roots": [CHAIN[:1]] * 3,
    "chains": [CHAIN[:4], CHAIN[:1], CHAIN[:6]],
    "trees and chains": [BUSH, TREE, CHAIN[:3]],
    "deep trees": [DEEP, BUSH, TREE],
    "more nodes than bits in a word": [CHAIN[:1], CHAIN, BUSH],
}
FAMILIES = sorted(MODELS)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {name: save(tiny(name), tmp_path_factory.mktemp(name)) for name in FAMILIES}


def double(folder: Path, recorder: ReplayRecorder | None = None, *, batched: bool = True) -> CachedDecoder:
    decoder = load_decoder(folder, torch.float64, "cpu", max_rows=4, max_len=200, max_nodes=40)
    if batched:
        decoder.runner = BatchRunner(decoder.net, decoder.cache, 40, recorder)
    return decoder


def filled(decoder: CachedDecoder) -> CachedDecoder:
    for slot, length in zip(SLOTS, LENGTHS, strict=True):
        decoder.extend(slot, tokens(length, seed=slot))
    return decoder


def padded(trees: list[list[int]], seed: int = 10) -> tuple[Tensor, Tensor, list[int]]:
    n = max(len(tree) for tree in trees)
    ids = [tokens(len(tree), seed=seed + b) + [-1] * (n - len(tree)) for b, tree in enumerate(trees)]
    parents = [tree + [-1] * (n - len(tree)) for tree in trees]
    return torch.tensor(ids), torch.tensor(parents), [len(tree) for tree in trees]


def same(decoder: CachedDecoder, plain: CachedDecoder, trees: list[list[int]], seed: int = 10) -> None:
    ids, parents, counts = padded(trees, seed)
    chain = all(tree == CHAIN[: len(tree)] for tree in trees)
    for_both = (SLOTS[: len(trees)], ids, None if chain else parents, (0, 2, -1), counts)
    ours, our_taps = decoder.nodes(*for_both)
    theirs, their_taps = plain.nodes(*for_both)
    assert ours.shape == theirs.shape
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)
    for tap, state in their_taps.items():
        torch.testing.assert_close(our_taps[tap], state, rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("shape", SHAPES)
def test_all_rows_in_one_call_are_the_rows_one_by_one(name: str, shape: str, folders: dict[str, Path]) -> None:
    same(filled(double(folders[name])), filled(double(folders[name], batched=False)), SHAPES[shape])


@pytest.mark.parametrize("name", ["llama", "gemma3_capped", "mistral_sliding"])
def test_a_replay_follows_new_lengths_slots_and_trees(name: str, folders: dict[str, Path]) -> None:
    recorder = ReplayRecorder()
    decoder, plain = filled(double(folders[name], recorder)), filled(double(folders[name], batched=False))
    for seed, trees in enumerate(([BUSH, TREE, CHAIN[:3]], [TREE, CHAIN[:8], BUSH], [CHAIN[:2], BUSH, TREE])):
        same(decoder, plain, trees, seed)
        paths = [[1], [1, 3] if trees[1] is TREE else [1], []]
        for one in (decoder, plain):
            one.keep(SLOTS, paths)
    assert (recorder.recorded, recorder.replays) == (1, 3)
    for one in (decoder, plain):
        one.release(0)
        one.truncate(3, 11)
        one.extend(0, tokens(5, seed=90))
    same(decoder, plain, [TREE, BUSH, CHAIN[:2]])
    assert recorder.recorded == 2  # the longest row is gone: fewer keys
    same(decoder, plain, [TREE, BUSH])  # two rows
    same(decoder, plain, [CHAIN[:8], CHAIN[:1]])
    assert (recorder.recorded, recorder.replays) == (3, 6)


@pytest.mark.parametrize("recorder", [None, ReplayRecorder()])
@pytest.mark.parametrize("name", ["llama", "mistral_sliding"])
def test_what_is_stale_is_never_seen(name: str, recorder: ReplayRecorder | None, folders: dict[str, Path]) -> None:
    decoder = filled(double(folders[name], recorder))
    for trees in SHAPES.values():
        ids, parents, counts = padded(trees)
        clean = decoder.nodes(SLOTS, ids, parents, (), counts)[0]
        for slot, length in zip(SLOTS, LENGTHS, strict=True):
            for buffer in (decoder.cache.keys, decoder.cache.values):
                buffer[:, slot, :, length:] = torch.nan
                buffer[:, 1] = torch.nan  # nobody's
        assert torch.equal(decoder.nodes(SLOTS, ids, parents, (), counts)[0], clean)


def test_a_row_that_is_not_finite_says_so_and_leaves_its_neighbours_alone(folders: dict[str, Path]) -> None:
    decoder = filled(double(folders["llama"]))
    ids, parents, counts = padded(SHAPES["trees and chains"])
    clean = decoder.nodes(SLOTS, ids, parents, (), counts)[0]
    decoder.cache.values[1, 0, :, 7] = torch.nan  # committed in the second row
    hurt = decoder.nodes(SLOTS, ids, parents, (), counts)[0]
    assert hurt[1, :8].isnan().all()
    assert torch.equal(hurt[[0, 2]], clean[[0, 2]])


def test_outputs_are_the_callers_own(folders: dict[str, Path]) -> None:
    decoder = filled(double(folders["llama"], ReplayRecorder()))
    first, taps = decoder.nodes([2], torch.tensor([[5]]), None, (1,))
    copies = first.clone(), taps[1].clone()
    decoder.nodes([2], torch.tensor([[6]]), None, (1,))
    assert torch.equal(first, copies[0])
    assert torch.equal(taps[1], copies[1])


def test_recordings_made_under_inference_mode_serve_calls_outside_it(folders: dict[str, Path]) -> None:
    decoder = filled(double(folders["llama"], ReplayRecorder()))
    with torch.inference_mode():
        inside = decoder.nodes([2], torch.tensor([[5, 6]]))[0].clone()
    assert torch.equal(decoder.nodes([2], torch.tensor([[5, 6]]))[0], inside)


def test_the_longest_unused_recording_goes_first(folders: dict[str, Path]) -> None:
    recorder = ReplayRecorder()
    decoder = filled(double(folders["llama"], recorder))
    assert decoder.runner is not None
    assert decoder.runner.recordings is not None
    decoder.runner.recordings.limit = 2
    for n in (1, 2, 1, 4, 1):  # the recording of one node is never the longest unused
        decoder.nodes([2], torch.zeros(1, n, dtype=torch.int64))
    assert (recorder.recorded, len(decoder.runner.recordings)) == (3, 2)
    decoder.nodes([2], torch.zeros(1, 2, dtype=torch.int64))
    assert recorder.recorded == 4


def test_a_device_that_cannot_record_runs_on_and_says_so(folders: dict[str, Path]) -> None:
    class Never:
        def record(self, run):
            raise RuntimeError("operation not permitted when stream is capturing")

    decoder, plain = filled(double(folders["llama"], Never())), filled(double(folders["llama"], batched=False))
    with pytest.warns(RuntimeWarning, match="cannot be recorded"):
        same(decoder, plain, SHAPES["chains"])
    same(decoder, plain, SHAPES["roots"])


def test_wrong_ids_are_refused_before_the_lookup(folders: dict[str, Path]) -> None:
    decoder = filled(double(folders["llama"]))
    with pytest.raises(RequestError, match=f"token id {VOCAB} is not one of 0..{VOCAB - 1}"):
        decoder.nodes([2], torch.tensor([[1, VOCAB]]))
    decoder.nodes([2], torch.tensor([[1, VOCAB]]), None, (), [1])  # padding may hold anything


def test_a_cpu_runs_rows_one_by_one_and_an_accelerator_can_be_told_to(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder = double(folders["llama"], batched=False)
    assert decoder.runner is None
    decoder.net.device = torch.device("cuda")
    made = runner_for(decoder.net, decoder.cache, 40)
    assert made is not None
    monkeypatch.setenv(BATCHED, "0")
    assert runner_for(decoder.net, decoder.cache, 40) is None
