"""Passes on a GPU: milliseconds and kernels by way of running them, on models with random weights of real shapes.

In: a shape, contexts, a device. Out: a record for each context, number of rows and way. The ways take turns.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from slipstream.nets.batch_runner import BATCHED, GRAPHS
from slipstream.nets.compiling import COMPILE
from slipstream.nets.decoder import CachedDecoder, Decoder
from slipstream.nets.families import DecoderConfig, read_config
from slipstream.nets.layers import MapMaker, linear
from slipstream.nets.quantised import lacking, quantised
from slipstream.nets.weights import LayerWeights, Weights

SHAPES = {  # hidden, mlp, layers, heads, key heads, vocabulary
    "tiny": (64, 128, 2, 4, 2, 512),
    "135M": (576, 1536, 30, 9, 3, 49152),
    "1.5B": (1536, 8960, 28, 12, 2, 151936),
    "7B": (3584, 18944, 28, 28, 4, 152064),
}
NODES, ROWS = (1, 2, 4, 8, 16), (1, 4)


@dataclass(frozen=True)
class Way:
    """How passes are run: variables of the environment, and the format of the weights."""

    switches: dict[str, str] = field(default_factory=dict)
    quantize: str = "none"


WAYS = {
    "recorded": Way(),
    "compiled": Way({COMPILE: "1"}),
    "int8": Way(quantize="int8"),
    "int4": Way(quantize="int4"),
    "int4, compiled": Way({COMPILE: "1"}, "int4"),
    "kernel by kernel": Way({GRAPHS: "0"}),
    "row by row": Way({BATCHED: "0"}),
}


@dataclass(frozen=True)
class Plan:
    """What to measure and for how long."""

    device: torch.device
    shapes: list[str]
    ways: list[str]
    contexts: list[int]
    repeats: int
    tokens: int


def random_decoder(shape: str, device: torch.device, max_len: int, quantize: str = "none") -> CachedDecoder:
    """Return a decoder of a real shape with random weights, on the device, in bfloat16 or packed."""
    hidden, mlp, layers, heads, kv_heads, vocab = SHAPES[shape]
    family = {"model_type": "qwen2", "rope_theta": 1e6, "max_position_embeddings": max_len}
    sizes = {"hidden_size": hidden, "intermediate_size": mlp, "num_hidden_layers": layers, "vocab_size": vocab}
    more = {"num_attention_heads": heads, "num_key_value_heads": kv_heads, "tie_word_embeddings": True}
    config, generator = read_config({**family, **sizes, **more}), torch.Generator(device).manual_seed(0)

    def drawn(*size: int) -> Tensor:
        return (torch.randn(size, generator=generator, device=device) * size[-1] ** -0.5).bfloat16()

    make = linear if quantize == "none" else quantised(quantize)
    ones = torch.ones(hidden, device=device, dtype=torch.bfloat16)
    made = [_layer(config, drawn, ones, make) for _ in range(layers)]
    embed = drawn(vocab, hidden)
    net = Decoder(config, Weights(embed, made, ones, make(embed, last=True)), torch.bfloat16, device)
    return CachedDecoder(net, vocab=vocab, max_rows=max(ROWS), max_len=max_len, max_nodes=max(NODES))


def _layer(c: DecoderConfig, drawn: Callable[..., Tensor], ones: Tensor, make: MapMaker) -> LayerWeights:
    wide = c.heads * c.head_dim
    qkv = make(drawn(wide + 2 * c.kv_heads * c.head_dim, c.hidden))
    gate_up, down = make(drawn(2 * c.mlp, c.hidden)), make(drawn(c.hidden, c.mlp))
    return LayerWeights(ones, qkv, make(drawn(c.hidden, wide)), ones, gate_up, down)


@contextmanager
def switched(name: str) -> Iterator[None]:
    """Make decoders built inside run in one of `WAYS`."""
    switches = (GRAPHS, BATCHED, COMPILE)
    before = {key: os.environ.pop(key) for key in switches if key in os.environ}
    os.environ.update(WAYS[name].switches)
    try:
        yield
    finally:
        for key in switches:
            os.environ.pop(key, None)
        os.environ.update(before)


def passes(plan: Plan, shape: str) -> Iterator[dict[str, Any]]:
    """Time passes over chains: milliseconds by nodes, and the kernels of a pass over `max(NODES)`."""
    for context in plan.contexts:
        runners = _runners(plan, shape, context)
        for rows in ROWS:
            times: dict[str, dict[int, float]] = {name: {} for name in runners}
            for nodes in NODES:
                for name, ms in _in_turn(plan, runners, rows, nodes).items():
                    times[name][nodes] = ms
            for name, decoder in runners.items():
                count = kernels(plan.device, partial(_pass, decoder, rows, max(NODES)))
                where = {"shape": shape, "context": context, "rows": rows}
                yield {**where, "way": name, "ms": times[name], "kernels": count}


def _runners(plan: Plan, shape: str, context: int) -> dict[str, CachedDecoder]:
    whole: dict[str, CachedDecoder] = {}
    runners = {}
    for name in plan.ways:
        quantize = WAYS[name].quantize
        if quantize not in whole:
            whole[quantize] = random_decoder(shape, plan.device, context + 200, quantize)
        with switched(name):
            net, vocab = whole[quantize].net, whole[quantize].config.vocab
            decoder = CachedDecoder(net, vocab=vocab, max_rows=max(ROWS), max_len=context + 200, max_nodes=max(NODES))
        for slot in range(max(ROWS)):
            decoder.extend(slot, [1 + slot] * context)
        runners[name] = decoder
    return runners


def _in_turn(plan: Plan, runners: dict[str, CachedDecoder], rows: int, nodes: int) -> dict[str, float]:
    times: dict[str, list[float]] = {name: [] for name in runners}
    for turn in range(plan.repeats + 2):
        for name, decoder in runners.items():
            wait(plan.device)
            start = time.perf_counter()
            _pass(decoder, rows, nodes)
            wait(plan.device)
            if turn > 1:
                times[name].append(1000 * (time.perf_counter() - start))
    return {name: round(statistics.median(found), 3) for name, found in times.items()}


def _pass(decoder: CachedDecoder, rows: int, nodes: int) -> None:
    decoder.nodes(range(rows), torch.ones(rows, nodes, dtype=torch.int64))


def kernels(device: torch.device, run: Callable[[], None]) -> int | None:
    """Count what `run` starts on a GPU, copies included; None on a CPU."""
    if device.type != "cuda":
        return None
    wait(device)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as found:
        run()
        wait(device)
    return sum(event.device_type == torch.autograd.DeviceType.CUDA for event in found.events() or ())


def unavailable(device: torch.device, ways: list[str]) -> dict[str, str]:
    """Say of each way that cannot be had here why."""
    why = {name: lacking(q, str(device)) for name in ways if (q := WAYS[name].quantize) != "none"}
    return {name: reason for name, reason in why.items() if reason}


def wait(device: torch.device) -> None:
    """Wait for everything queued on a device."""
    if device.type == "cuda":
        torch.cuda.synchronize()
