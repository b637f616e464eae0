"""The part of the bench that needs a GPU, in one run of a few minutes: python -m slipstream.measure.bench_gpu.

Passes of models with random weights of real shapes, by rows and nodes, each way of running them in turn; how often a
round waits for the device; and, with --model, plain decoding and prompt lookup on the shipped prompts. Figures are
medians. `--quick --device cpu` shows that it runs.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from slipstream.control.budget import FixedBudget
from slipstream.drafters.lookup import Lookup
from slipstream.drafters.none import NoDraft
from slipstream.engine import Engine, EngineOptions
from slipstream.measure.entry import guarded
from slipstream.nets.batch_runner import BATCHED, GRAPHS
from slipstream.nets.decoder import CachedDecoder, Decoder
from slipstream.nets.families import DecoderConfig, read_config
from slipstream.nets.layers import linear
from slipstream.nets.weights import LayerWeights, Weights
from slipstream.targets.native import NativeTarget
from slipstream.types import SamplingParams, Sequence
from slipstream.verify import RULES

WAYS = {"recorded": {}, "kernel by kernel": {GRAPHS: "0"}, "row by row": {BATCHED: "0"}}
SHAPES = {  # hidden, mlp, layers, heads, key heads, vocabulary
    "tiny": (64, 128, 2, 4, 2, 512),
    "135M": (576, 1536, 30, 9, 3, 49152),
    "1.5B": (1536, 8960, 28, 12, 2, 151936),
    "7B": (3584, 18944, 28, 28, 4, 152064),
}
NODES, ROWS, CONTEXTS = (1, 2, 4, 8, 16, 32), (1, 4), (200, 4000)


@dataclass(frozen=True)
class Plan:
    """What to measure and for how long."""

    device: torch.device
    shapes: list[str]
    contexts: list[int]
    repeats: int
    tokens: int


def random_decoder(shape: str, device: torch.device, max_len: int) -> CachedDecoder:
    """Return a decoder of a real shape with random weights, on the device, in bfloat16."""
    hidden, mlp, layers, heads, kv_heads, vocab = SHAPES[shape]
    family = {"model_type": "qwen2", "rope_theta": 1e6, "max_position_embeddings": max_len}
    sizes = {"hidden_size": hidden, "intermediate_size": mlp, "num_hidden_layers": layers, "vocab_size": vocab}
    more = {"num_attention_heads": heads, "num_key_value_heads": kv_heads, "tie_word_embeddings": True}
    config = read_config({**family, **sizes, **more})
    dtype = torch.bfloat16
    make = torch.Generator(device).manual_seed(0)

    def drawn(*size: int) -> Tensor:
        return (torch.randn(size, generator=make, device=device) * size[-1] ** -0.5).to(dtype)

    ones = torch.ones(hidden, device=device, dtype=dtype)
    made = [_layer(config, drawn, ones) for _ in range(layers)]
    embed = drawn(vocab, hidden)
    net = Decoder(config, Weights(embed, made, ones, linear(embed, last=True)), dtype, device)
    return CachedDecoder(net, vocab=vocab, max_rows=max(ROWS), max_len=max_len, max_nodes=max(NODES))


def _layer(c: DecoderConfig, drawn: Callable[..., Tensor], ones: Tensor) -> LayerWeights:
    wide = c.heads * c.head_dim
    qkv = linear(drawn(wide + 2 * c.kv_heads * c.head_dim, c.hidden))
    gate_up, down = linear(drawn(2 * c.mlp, c.hidden)), linear(drawn(c.hidden, c.mlp))
    return LayerWeights(ones, qkv, linear(drawn(c.hidden, wide)), ones, gate_up, down)


@contextmanager
def way(name: str) -> Iterator[None]:
    """Make decoders built inside run in one of `WAYS`."""
    before = {key: os.environ.pop(key, None) for key in (GRAPHS, BATCHED)}
    os.environ.update(WAYS[name])
    try:
        yield
    finally:
        for key, value in before.items():
            os.environ.pop(key, None)
            os.environ.update({} if value is None else {key: value})


def passes(plan: Plan, shape: str) -> list[dict[str, Any]]:
    """Time passes over chains: milliseconds by way, context, rows and nodes."""
    found: list[dict[str, Any]] = []
    for context in plan.contexts:
        decoder, runners = random_decoder(shape, plan.device, context + 200), {}
        for name in WAYS:
            with way(name):
                runners[name] = CachedDecoder(
                    decoder.net, vocab=decoder.config.vocab, max_rows=4, max_len=context + 200, max_nodes=32
                )
            for slot in range(max(ROWS)):
                runners[name].extend(slot, [1 + slot] * context)
        for rows in ROWS:
            for nodes in NODES:
                times = _in_turn(plan, runners, rows, nodes)
                found.append({"shape": shape, "context": context, "rows": rows, "nodes": nodes, **times})
                print(json.dumps(found[-1]), flush=True)
    return found


def _in_turn(plan: Plan, runners: dict[str, CachedDecoder], rows: int, nodes: int) -> dict[str, float]:
    tokens = torch.ones(rows, nodes, dtype=torch.int64)
    times: dict[str, list[float]] = {name: [] for name in runners}
    for turn in range(plan.repeats + 2):
        for name, decoder in runners.items():
            _wait(plan.device)
            start = time.perf_counter()
            decoder.nodes(range(rows), tokens)
            _wait(plan.device)
            if turn > 1:
                times[name].append(1000 * (time.perf_counter() - start))
    return {name: round(statistics.median(found), 3) for name, found in times.items()}


def waits(plan: Plan, shape: str) -> list[dict[str, Any]]:
    """Count how often a round waits for the device, by drafter and sampling."""
    found: list[dict[str, Any]] = []
    for drafter in (NoDraft(device=plan.device), Lookup(vocab=SHAPES[shape][-1], device=plan.device)):
        for kind, params in (("greedy", {}), ("top-p", {"temperature": 0.8, "top_p": 0.9})):
            target = NativeTarget(random_decoder(shape, plan.device, 400))
            engine = Engine(target, drafter, RULES["auto"], FixedBudget(8), EngineOptions(max_rows=2))
            for b in range(2):
                wanted = SamplingParams(seed=b, max_tokens=plan.tokens, **params)  # type: ignore[arg-type]
                engine.add(Sequence(100 * len(found) + b, [5, 6, 7, 8] * 6, 24, wanted))
            engine.step()
            counts = []
            while not engine.idle:
                with _counted(plan.device) as seen:
                    engine.step()
                counts.append(len(seen))
            found.append(
                {
                    "waits": f"{drafter.name}, {kind}",
                    "rounds": len(counts),
                    "most": max(counts, default=0) if plan.device.type == "cuda" else None,
                }
            )
            print(json.dumps(found[-1]), flush=True)
    return found


@contextmanager
def _counted(device: torch.device) -> Iterator[list[Any]]:
    with warnings.catch_warnings(record=True) as all_seen:
        warnings.simplefilter("always")
        seen: list[Any] = []
        if device.type == "cuda":
            torch.cuda.set_sync_debug_mode("warn")
        try:
            yield seen
        finally:
            if device.type == "cuda":
                torch.cuda.set_sync_debug_mode("default")
        seen += [w for w in all_seen if "synchroniz" in str(w.message)]


def speeds(plan: Plan, model: str) -> list[dict[str, Any]]:
    """Decode the shipped prompts greedily, plainly and with lookup, each way: tokens per second of decoding."""
    from slipstream.llm import LLM
    from slipstream.measure.timing import in_turn, llm_runner, warm_up
    from slipstream.measure.workloads import load_prompts

    params = SamplingParams(max_tokens=plan.tokens, ignore_eos=True)
    runners, encode = {}, None
    for name in WAYS:
        with way(name):
            llm = LLM(model, "lookup", device=str(plan.device), max_rows=1)
        encode = llm.encode
        runners[f"lookup, {name}"] = llm_runner(llm, params)
        runners[f"plain, {name}"] = llm_runner(llm.with_drafter("none"), params)
    found: list[dict[str, Any]] = []
    for kind in ("grounded", "free"):
        ids = [encode(p.messages) for p in load_prompts(kind)]  # type: ignore[misc]
        warm_up(runners, ids[0])
        results = in_turn(runners, ids, 2)
        for name, timed in results.items():
            all_of = [t for prompt in timed for t in prompt]
            rate = sum(len(t.tokens) for t in all_of) / sum(t.decode for t in all_of)
            found.append({"model": model, "prompts": kind, "run": name, "tok/s": round(rate, 1)})
            print(json.dumps(found[-1]), flush=True)
    return found


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def main(argv: list[str] | None = None) -> int:
    """Run what was asked for; print a line of JSON for each figure."""
    parser = argparse.ArgumentParser(prog="bench_gpu", description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--shapes", default="135M,1.5B,7B", help=f"of {', '.join(SHAPES)}")
    parser.add_argument("--model", help="a model folder or name for tokens per second")
    parser.add_argument("--quick", action="store_true", help="one tiny shape, one repeat")
    parser.add_argument("--output", type=Path, help="also write all figures there, as JSON")
    args = parser.parse_args(argv)
    shapes = ["tiny"] if args.quick else args.shapes.split(",")
    contexts, repeats, tokens = ([40], 1, 12) if args.quick else (list(CONTEXTS), 20, 128)
    plan = Plan(torch.device(args.device), shapes, contexts, repeats, tokens)
    return guarded(lambda: _run(plan, args.model, args.output))


def _run(plan: Plan, model: str | None, output: Path | None) -> int:
    found = waits(plan, plan.shapes[0])
    for shape in plan.shapes:
        found += passes(plan, shape)
    found += [] if model is None else speeds(plan, model)
    if output is not None:
        output.write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
