"""`python -m slipstream.measure.memory`: what models take in memory, and how long they take to load.

Each line is a process of its own that loads a target and a drafter, decodes a few tokens and says what it holds: packed
weights, resident memory (its own, and pages of files, which the system may take back) and the peaks. A first start also
measures what rounds cost: its seconds are those of a second one.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from slipstream.config import DEFAULT_MODEL, QUANTIZE, choose
from slipstream.measure.entry import guarded
from slipstream.measure.report import table
from slipstream.types import WorkError

TOKENS = 8


def main(argv: list[str] | None = None) -> int:
    """Measure and print; return the exit status."""
    p = argparse.ArgumentParser(prog="python -m slipstream.measure.memory", description=(__doc__ or "").split("\n")[0])
    p.add_argument("--model", default=DEFAULT_MODEL, help="folder, .gguf or catalogue name (%(default)s)")
    p.add_argument("--quantize", default="none,int4", help=f"of {', '.join(QUANTIZE)} (%(default)s)")
    p.add_argument("--drafter", default="none", help="loaded beside the target (%(default)s)")
    p.add_argument("--max-len", type=int, default=2048, metavar="N", help="context to make room for (%(default)s)")
    p.add_argument("--one", action="store_true", help="measure in this process, and print JSON")
    args = p.parse_args(argv)
    return guarded(lambda: _one(args) if args.one else _all(args))


def _all(args: argparse.Namespace) -> int:
    rows = []
    for name in args.quantize.split(","):
        form = choose("quantize", name.strip(), QUANTIZE)
        own = ["--model", args.model, "--drafter", args.drafter, "--max-len", str(args.max_len), "--quantize", form]
        done = subprocess.run(
            [sys.executable, "-m", "slipstream.measure.memory", "--one", *own], stdout=subprocess.PIPE, check=False
        )
        if done.returncode:
            raise WorkError(f"measuring {args.model} with quantize={form} failed")
        rows.append((form, json.loads(done.stdout)))
    print(show(args.model, args.drafter, rows))
    return 0


def _one(args: argparse.Namespace) -> int:
    from slipstream import LLM, SamplingParams

    bare = resident()
    start = time.perf_counter()
    llm = LLM(args.model, args.drafter, quantize=args.quantize, max_model_len=args.max_len)
    seconds, loaded = time.perf_counter() - start, resident()
    llm.generate("The sea", SamplingParams(max_tokens=TOKENS, ignore_eos=True))
    owners = [llm.opened.target, *(part.drafter for part in llm.guess.parts)]
    found = {"seconds": seconds, "bare": bare["VmRSS"], "weights": sum(map(_weights, owners))}
    print(json.dumps(found | {"loaded": loaded["VmRSS"], "loading": loaded["VmHWM"]} | resident()))
    return 0


def _weights(owner: Any) -> int:
    """Bytes of an owner's decoder without its cache; 0 for one without."""
    decoder = getattr(getattr(owner, "_cache", owner), "decoder", None)
    return decoder.net.weights.nbytes if decoder is not None else 0


def resident() -> dict[str, int]:
    """Return the bytes this process holds, in all (VmRSS), of its own (RssAnon) and at most so far (VmHWM)."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    except OSError as e:
        raise WorkError(f"memory is measured on Linux only: {e}") from e
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    return {name: 1024 * int(fields[name].split()[0]) for name in ("VmRSS", "RssAnon", "VmHWM")}


def show(model: str, drafter: str, rows: list[tuple[str, dict[str, Any]]]) -> str:
    """Return one line per weight format."""
    head = [
        "quantize",
        "load s",
        "weights MB",
        "before",
        "loaded",
        "peak till then",
        "after decoding",
        "its own",
        "peak",
    ]
    names = ("weights", "bare", "loaded", "loading", "VmRSS", "RssAnon", "VmHWM")
    lines = [[form, f"{r['seconds']:.1f}", *(f"{r[name] / 1e6:.0f}" for name in names)] for form, r in rows]
    return f"{model}, drafter {drafter}\n{table(head, lines)}"


if __name__ == "__main__":
    raise SystemExit(main())
