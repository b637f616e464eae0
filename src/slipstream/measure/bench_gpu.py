"""The part of the bench that needs a GPU, in one run of a few minutes: python -m slipstream.measure.bench_gpu.

How often a round waits for the device; passes of models with random weights of real shapes, by rows and nodes, each way
of running them in turn (`bench_gpu_passes`); and plain decoding against prompt lookup on the shipped prompts. Figures
are medians; what cannot be measured here is named. `--quick --device cpu` shows that it runs.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from slipstream.config import DEFAULT_MODEL
from slipstream.control.budget import FixedBudget
from slipstream.drafters.lookup import Lookup
from slipstream.drafters.none import NoDraft
from slipstream.engine import Engine, EngineOptions
from slipstream.measure.bench_gpu_passes import (
    NODES,
    SHAPES,
    WAYS,
    Plan,
    passes,
    random_decoder,
    switched,
    unavailable,
)
from slipstream.measure.entry import guarded
from slipstream.measure.report import table
from slipstream.targets.native import NativeTarget
from slipstream.types import RequestError, SamplingParams, Sequence
from slipstream.verify import RULES


def waits(plan: Plan, shape: str) -> list[dict[str, Any]]:
    """Count how often a round waits for the device, by drafter and sampling; a round that records is left out."""
    found: list[dict[str, Any]] = []
    for drafter in (NoDraft(device=plan.device), Lookup(vocab=SHAPES[shape][-1], device=plan.device)):
        for kind, params in (("greedy", {}), ("top-p", {"temperature": 0.8, "top_p": 0.9})):
            target = NativeTarget(random_decoder(shape, plan.device, 400))
            engine = Engine(target, drafter, RULES["auto"], FixedBudget(8), EngineOptions(max_rows=2))
            for b in range(2):
                wanted = SamplingParams(seed=b, max_tokens=plan.tokens, **params)  # type: ignore[arg-type]
                engine.add(Sequence(100 * len(found) + b, [5, 6, 7, 8] * 6, 24, wanted))
            engine.step()
            counts = [n for n in _rounds(engine, plan.device) if n is not None]
            most = max(counts, default=0) if plan.device.type == "cuda" else None
            found.append({"waits": f"{drafter.name}, {kind}", "rounds": len(counts), "most": most})
    return found


def _rounds(engine: Engine, device: torch.device) -> Iterator[int | None]:
    """Run rounds to the end -> the waits of each, None for one in which passes were recorded."""
    runner = engine.target.decoder.runner  # type: ignore[attr-defined]
    recordings = getattr(runner, "recordings", None)
    while not engine.idle:
        before = 0 if recordings is None else recordings.recorded
        with _counted(device) as seen:
            engine.step()
        yield len(seen) if recordings is None or recordings.recorded == before else None


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
    for name in plan.ways:
        with switched(name):
            quantize = WAYS[name].quantize
            llm = LLM(model, "lookup", device=str(plan.device), dtype="bfloat16", quantize=quantize, max_rows=1)
        encode = llm.encode
        runners[name, "lookup"] = llm_runner(llm, params)
        runners[name, "plain"] = llm_runner(llm.with_drafter("none"), params)
    found: list[dict[str, Any]] = []
    for kind in ("grounded", "free"):
        ids = [encode(p.messages) for p in load_prompts(kind)]  # type: ignore[misc]
        named = {f"{name}: {how}": run for (name, how), run in runners.items()}
        warm_up(named, ids[0])
        results = in_turn(named, ids, 2)
        for name in plan.ways:
            rate = {}
            for how in ("plain", "lookup"):
                all_of = [t for prompt in results[f"{name}: {how}"] for t in prompt]
                rate[how] = round(sum(len(t.tokens) for t in all_of) / sum(t.decode for t in all_of), 1)
            found.append({"model": model, "prompts": kind, "way": name, **rate})
    return found


def show(found: list[dict[str, Any]]) -> str:
    """Return all figures as tables."""
    parts = []
    rounds = [[r["waits"], str(r["rounds"]), _or_dash(r["most"])] for r in found if "waits" in r]
    if rounds:
        parts.append("Waits of a round\n" + table(["drafter, sampling", "rounds", "most waits"], rounds))
    timed = [r for r in found if "ms" in r]
    for shape, context, rows in dict.fromkeys((r["shape"], r["context"], r["rows"]) for r in timed):
        these = [r for r in timed if (r["shape"], r["context"], r["rows"]) == (shape, context, rows)]
        lines = [
            [r["way"], *(f"{r['ms'][n]:.2f}" for n in NODES), _growth(r["ms"]), _or_dash(r["kernels"])] for r in these
        ]
        title = f"{shape}, context {context}, {rows} row(s): ms per pass, by nodes of a row"
        parts.append(f"{title}\n{table(['way', *map(str, NODES), 'T(16)/T(1)', 'kernels'], lines)}")
    speed = [
        [f"{r['prompts']}, {r['way']}", f"{r['plain']:.1f}", f"{r['lookup']:.1f}", f"{r['lookup'] / r['plain']:.2f}"]
        for r in found
        if "plain" in r
    ]
    if speed:
        parts.append("Tokens per second\n" + table(["prompts, way", "plain", "lookup", "ratio"], speed))
    return "\n\n".join(parts)


def _growth(ms: dict[int, float]) -> str:
    return f"{ms[max(NODES)] / ms[1]:.2f}" if ms[1] else "-"


def _or_dash(count: int | None) -> str:
    return "-" if count is None else str(count)


def main(argv: list[str] | None = None) -> int:
    """Run what was asked for; print tables, and write all figures as JSON where wanted."""
    parser = argparse.ArgumentParser(prog="bench_gpu", description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--shapes", default="135M,1.5B,7B", help=f"of {', '.join(SHAPES)}")
    parser.add_argument("--ways", default=";".join(WAYS), help=f"of {'; '.join(WAYS)}")
    parser.add_argument("--model", default=DEFAULT_MODEL, help="for tokens per second (%(default)s, if it is here)")
    parser.add_argument("--quick", action="store_true", help="one tiny shape, one repeat, no model")
    parser.add_argument("--output", type=Path, help="also write all figures there, as JSON")
    args = parser.parse_args(argv)
    return guarded(lambda: _run(args))


def _run(args: argparse.Namespace) -> int:
    device = torch.device(args.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        print("skipped: bench-gpu needs a CUDA device, and torch sees none")
        return 0
    ways = _chosen("ways", args.ways.split(";"), WAYS)
    for name, why in unavailable(device, ways).items():
        print(f"skipped: {name}: {why}")
        ways.remove(name)
    shapes = ["tiny"] if args.quick else _chosen("shapes", args.shapes.split(","), SHAPES)
    contexts, repeats, tokens = ([40], 1, 12) if args.quick else ([200, 4000], 20, 128)
    plan = Plan(device, shapes, ways, contexts, repeats, tokens)
    found = waits(plan, shapes[0])
    for shape in shapes:
        torch._dynamo.reset()
        for record in passes(plan, shape):
            print(json.dumps(record), flush=True)  # what is measured stays, whatever happens next
            found.append(record)
    found += [] if args.quick else _speeds(plan, args.model)
    print(show(found))
    if args.output is not None:
        args.output.write_text(json.dumps(found, indent=1) + "\n")
    return 0


def _speeds(plan: Plan, model: str) -> list[dict[str, Any]]:
    from slipstream import models

    folder = models.path(model) if model in models.CATALOGUE else Path(model)
    if not folder.exists():
        print(f"skipped: plain and lookup: {model} is not here; slipstream models pull {model}, or --model FOLDER")
        return []
    return speeds(plan, model)


def _chosen(what: str, asked: list[str], known: dict[str, Any]) -> list[str]:
    names = [name.strip() for name in asked]
    for name in names:
        if name not in known:
            raise RequestError(f"{what} {name!r} is not one of {', '.join(known)}")
    return names


if __name__ == "__main__":
    raise SystemExit(main())
