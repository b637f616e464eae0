"""The CPU kernels against this machine's memory: `python -m slipstream.measure.bench_kernels` (make bench-kernels).

In: the shapes of a model, random codes. Out: for every kind of packed weight the GB/s of one row as a share of the
measured read bandwidth, and what n rows cost in passes of one row. Bandwidth and passes are timed in turn, so that a
busy machine slows both; medians of the repeats. No model is loaded; attention and norms are not part of it.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

from slipstream import kernels
from slipstream.measure.entry import guarded
from slipstream.measure.report import table
from slipstream.types import WorkError

ROWS = (1, 2, 4, 8, 16, 32)
BANDWIDTH_BYTES = 1 << 29


@dataclass(frozen=True)
class Shapes:
    """The maps [out, in] of one layer, how many layers to run, and the output map."""

    layer: tuple[tuple[int, int], ...]
    layers: int
    head: tuple[int, int]


MODELS = {
    "135M": Shapes(((960, 576), (576, 576), (3072, 576), (576, 1536)), 30, (49152, 576)),
    "1.5B": Shapes(((2048, 1536), (1536, 1536), (17920, 1536), (1536, 8960)), 28, (151936, 1536)),
}
# a name, the kind, the GGUF codes it is filled with, and the least share of the bandwidth with one row (1.5B shapes)
KINDS: tuple[tuple[str, str, str | None, float], ...] = (
    ("bf16", "bf16", None, 0.0),
    ("q4 (Q4_K)", "q4", "Q4_K", 0.7),
    ("q4 (Q4_1)", "q4", "Q4_1", 0.7),
    ("q4a8 (Q4_K)", "q4a8", "Q4_K", 0.7),
    ("q4a8 (Q4_1)", "q4a8", "Q4_1", 0.7),
    ("q8", "q8", "Q8_0", 0.7),
    ("w8a8", "w8a8", "Q8_0", 0.7),
)
BLOCK_BYTES = {"Q4_K": 144, "Q4_1": 20, "Q8_0": 34}
MOST_FOR_16 = 1.5  # T(16) / T(1), with tiles


def fill(shape: tuple[int, int], kind: str, gguf_type: str | None) -> Any:
    """Return a matrix of this shape with random weights, whose scales are ordinary numbers."""
    import numpy as np
    import torch

    from slipstream.kernels.linear import pack, pack_gguf

    out, cols = shape
    if gguf_type == "Q4_K" and cols % 256:  # as the files do for such widths
        gguf_type = "Q4_1"
    if gguf_type is None:
        return pack(torch.rand(out, cols).sub_(0.5).bfloat16(), None, kind)
    per = 256 if gguf_type == "Q4_K" else 32
    # bytes below 60 make half floats below 1, so no product is a denormal or overflows
    data = np.random.default_rng(0).integers(16, 60, (out, cols // per * BLOCK_BYTES[gguf_type]), dtype=np.uint8)
    return pack_gguf(data, gguf_type, cols, kind)


def measure(shapes: Shapes, kind: str, gguf_type: str | None, repeats: int) -> dict[str, Any]:
    """Return milliseconds per pass for each number of rows, bytes, GB/s, and the medians of the ratios."""
    lib = kernels.native()
    matrices = [fill(shape, kind, gguf_type) for _ in range(shapes.layers) for shape in shapes.layer]
    matrices.append(fill(shapes.head, kind, gguf_type))
    size = sum(m.nbytes for m in matrices)
    lib.pass_seconds(matrices, 1)
    runs, reads = [], []
    for _ in range(repeats):
        reads.append(lib.read_bandwidth(BANDWIDTH_BYTES, 1))
        runs.append([lib.pass_seconds(matrices, n) for n in ROWS])
    return {
        "bytes": size,
        "ms": [1000 * median(run[i] for run in runs) for i in range(len(ROWS))],
        "gbs": median(size / run[0] for run in runs) / 1e9,
        "read": median(reads) / 1e9,
        "share": median(size / run[0] / read for run, read in zip(runs, reads, strict=True)),
        "ratios": [median(run[i] / run[0] for run in runs) for i in range(len(ROWS))],
    }


def measure_all(
    models: list[str], kinds: list[str], repeats: int, tick: Callable[[str], object] = lambda _: None
) -> list[dict[str, Any]]:
    """Return a row for every model and kind."""
    found = []
    for model in models:
        for name, kind, gguf_type, least in KINDS:
            if kind not in kinds:
                continue
            tick(f"{model} {name}")
            row = measure(MODELS[model], kind, gguf_type, repeats)
            found.append({"model": model, "kind": name, "least": least if model == "1.5B" else 0.0, **row})
    return found


def shortfalls(rows: list[dict[str, Any]], level: str) -> list[str]:
    """Return what misses its limit, in words; a level without tiles or AVX-512 has none."""
    missed = []
    for row in rows:
        name, sixteen = f"{row['model']} {row['kind']}", row["ratios"][ROWS.index(16)]
        if level in ("amx", "avx512") and row["share"] < row["least"]:
            missed.append(f"{name}: {row['share']:.0%} of the read bandwidth with one row, at least {row['least']:.0%}")
        if level == "amx" and row["model"] == "1.5B" and sixteen > MOST_FOR_16:
            missed.append(f"{name}: 16 rows cost {sixteen:.2f} of one, at most {MOST_FOR_16}")
    return missed


def show(rows: list[dict[str, Any]]) -> str:
    """Return the rows as text."""
    head = ["model, kind", "MB", *(f"{n} ms" for n in ROWS), "GB/s", "of read", "T16/T1", "T32/T1"]
    lines = [
        [
            f"{r['model']} {r['kind']}",
            f"{r['bytes'] / 1e6:.0f}",
            *(f"{ms:.1f}" for ms in r["ms"]),
            f"{r['gbs']:.1f}",
            f"{r['share']:.0%}",
            f"{r['ratios'][ROWS.index(16)]:.2f}",
            f"{r['ratios'][ROWS.index(32)]:.2f}",
        ]
        for r in rows
    ]
    return table(head, lines)


def run(argv: list[str] | None = None) -> int:
    """Measure and print; 1 when a limit is missed and --check is given."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, action="append", help="shapes; all by default")
    parser.add_argument("--kind", choices=sorted({k[1] for k in KINDS}), action="append", help="all by default")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--check", action="store_true", help="exit 1 when a limit is missed")
    args = parser.parse_args(argv)
    if not kernels.available():
        raise WorkError(f"the CPU kernels cannot be measured: {kernels.reason()}")
    if args.threads:
        kernels.set_threads(args.threads)
    kinds = args.kind or sorted({k[1] for k in KINDS})
    print(f"level {kernels.level()} of {', '.join(kernels.levels())}; {kernels.threads()} threads", flush=True)
    rows = measure_all(args.model or list(MODELS), kinds, args.repeats)
    read = median(r["read"] for r in rows)
    print(f"reads {read:.1f} GB/s (median)\n\n{show(rows)}")
    missed = shortfalls(rows, kernels.level())
    for line in missed:
        print(f"misses: {line}")
    return 1 if missed and args.check else 0


if __name__ == "__main__":
    raise SystemExit(guarded(run))
