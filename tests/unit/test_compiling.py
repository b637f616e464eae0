"""Compiled layers, with a backend that runs what it was given and counts: the same values, few graphs, no breaks."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from slipstream.nets.batch_runner import BatchRunner, runner_for
from slipstream.nets.compiling import COMPILE, Compiled, compiled
from slipstream.nets.decoder import CachedDecoder, load_decoder
from tiny_model import make_model


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def decoders(tmp_path: Path, request: pytest.FixtureRequest) -> tuple[CachedDecoder, CachedDecoder]:
    """The same model twice, with the layers of a model that is deeper than dynamo's limit of recompilations."""
    folder, quantize = make_model(tmp_path / "tiny", layers=12), getattr(request, "param", "none")
    dtype = torch.float64 if quantize == "none" else torch.bfloat16
    made = [load_decoder(folder, dtype, max_rows=4, max_nodes=8, quantize=quantize) for _ in range(2)]
    for decoder in made:
        for slot in range(4):
            decoder.extend(slot, [3 + slot, 4, 5, 6, 7][: 3 + slot % 2])
    return made[0], made[1]


@pytest.mark.parametrize("decoders", ["none", "int8"], indirect=True)
def test_passes_keep_their_values_and_few_graphs_serve_all_sizes(decoders: tuple[CachedDecoder, CachedDecoder]) -> None:
    plain, fast = decoders
    graphs: list[torch.fx.GraphModule] = []

    def counted(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    fast.runner = BatchRunner(compiled(fast.net, backend=counted), fast.cache, 8)
    plain.runner = BatchRunner(plain.net, plain.cache, 8)
    for rows, nodes in ((1, 1), (1, 4), (2, 8), (4, 2), (3, 5), (1, 1), (4, 8)):
        ids = torch.randint(3, 200, (rows, nodes), generator=torch.Generator().manual_seed(nodes))
        ours, taps = fast.nodes(range(rows), ids, taps=(1, -1))
        theirs, their_taps = plain.nodes(range(rows), ids, taps=(1, -1))
        assert torch.equal(ours, theirs)
        assert all(torch.equal(taps[tap], their_taps[tap]) for tap in (1, -1))
    # before and after the attention: a single row, the first size of several, any other
    assert 2 <= len(graphs) <= 6


def test_layers_that_cannot_be_compiled_run_as_written_and_say_so_once() -> None:
    calls = []

    def broken(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        calls.append(graph)
        raise ValueError("no such machine")

    double = Compiled(lambda x: x.mul_(2), {"backend": broken})
    with pytest.warns(RuntimeWarning, match="layers cannot be compiled .*: they run as written"):
        assert double(torch.ones(2)).tolist() == [2, 2]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert double(torch.ones(2)).tolist() == [2, 2]
    assert len(calls) == 1


@pytest.mark.parametrize("asked", ["", "0", "1"])
def test_layers_are_compiled_only_when_asked(
    asked: str, decoders: tuple[CachedDecoder, CachedDecoder], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(COMPILE, asked)
    decoder = decoders[0]
    decoder.net.device = torch.device("cuda")
    runner = runner_for(decoder.net, decoder.cache, 8)
    assert runner is not None
    assert isinstance(runner.net.before, Compiled) == (asked == "1")
    assert not isinstance(decoder.net.before, Compiled)  # prompts run as written
    assert runner.net.weights is decoder.net.weights
