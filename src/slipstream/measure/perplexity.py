"""`python -m slipstream.measure.perplexity`: what each weight format of a model costs in perplexity.

The same shipped texts through every format, one format loaded at a time, scored as decoding scores; beside it how often
the likeliest token is that of the first format. `--write` keeps the numbers where the note of `--quantize auto` finds
them, and `--shipped --write` measures again all that are kept there.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from slipstream.config import DEFAULT_MODEL, QUANTIZE, choose, whole
from slipstream.measure.entry import guarded
from slipstream.measure.report import table
from slipstream.measure.suites import load_suite
from slipstream.measure.workloads import load_prompts

FORMATS = ("torch-float32", "torch-bfloat16", *QUANTIZE[1:])
TABLE = Path(str(resources.files("slipstream.models").joinpath("perplexity.json")))
PIECE, CHUNK = 384, 64  # tokens that share a context, and tokens scored at once


@dataclass(frozen=True)
class Scored:
    """One format over the texts: the mean loss in nats, and the likeliest token after each position."""

    loss: float
    best: Tensor  # [positions]

    @property
    def perplexity(self) -> float:
        """Return e to the mean loss."""
        return math.exp(self.loss)


def main(argv: list[str] | None = None) -> int:
    """Measure and print; return the exit status."""
    p = argparse.ArgumentParser(
        prog="python -m slipstream.measure.perplexity", description=(__doc__ or "").split("\n")[0]
    )
    p.add_argument("--model", default=DEFAULT_MODEL, help="folder, .gguf or catalogue name (%(default)s)")
    p.add_argument("--quantize", default="none,int8,w8a8,int4", help=f"of {', '.join(FORMATS)} (%(default)s)")
    p.add_argument("--positions", type=int, default=2000, metavar="N", help="most tokens that are judged (%(default)s)")
    p.add_argument("--shipped", action="store_true", help="instead: the models, formats and positions of the table")
    p.add_argument("--write", action="store_true", help="keep the result in the package's table")
    args = p.parse_args(argv)
    return guarded(lambda: _run(args))


def _run(args: argparse.Namespace) -> int:
    from slipstream import models

    whole("positions", args.positions, least=1)
    names = [choose("format", name.strip(), FORMATS) for name in args.quantize.split(",")]
    asked = {args.model: (names, args.positions)}
    if args.shipped:
        asked = shipped()
        for model in asked:
            models.pull(model)  # with its codes: int4 is theirs
    for model, (formats, positions) in asked.items():
        measure(model, formats, positions, args.write)
    return 0


def shipped() -> dict[str, tuple[list[str], int]]:
    """Return the formats and positions that the package's table has, by model."""
    table = json.loads(TABLE.read_text(encoding="utf-8"))
    return {model: ([name for name in kept if name != "positions"], kept["positions"]) for model, kept in table.items()}


def measure(model: str, names: list[str], positions: int, keep: bool) -> None:
    """Measure one model in these formats, print the table and, if wanted, keep the numbers."""
    pieces = text_pieces(model, positions)
    count = sum(len(piece) - 1 for piece in pieces)
    found = {}
    for name in names:
        decoder = open_format(model, name)
        with tqdm(total=count, desc=f"{model} {name}", unit=" positions", file=sys.stderr) as bar:
            found[name] = score(decoder, pieces, bar.update)
    print(f"{model}: {count} positions of shipped texts\n{show(found)}", flush=True)
    if keep:
        write(model, count, found)


def text_pieces(model: str, positions: int) -> list[list[int]]:
    """Return the shipped texts as ids, in pieces with a context of their own."""
    from slipstream import models
    from slipstream.text import load_tokenizer

    prompts = {p.id: p for p in (*load_prompts(), *load_suite("demo").prompts)}
    text = "\n\n".join(m["content"] for p in prompts.values() for m in p.messages)
    ids = load_tokenizer(models.locate(model, packed="int4")[0]).encode(text)
    pieces = [ids[k : k + PIECE] for k in range(0, len(ids), PIECE)]
    kept, left = [], positions
    for piece in pieces:
        if left > 0 and len(piece) > 1:
            kept.append(piece[: left + 1])
            left -= len(kept[-1]) - 1
    return kept


def open_format(model: str, name: str) -> Any:
    """Load the model in one format."""
    from slipstream import models
    from slipstream.decoders import Way, choose_way, open_decoder

    dtype = torch.float32 if name.endswith("float32") else torch.bfloat16
    way = Way(False) if name.startswith("torch") else choose_way(name, dtype, "cpu")
    _, weights = models.locate(model, packed=way.quantize if way.kernels else None)
    return open_decoder(weights, way, dtype, "cpu", max_len=PIECE, max_nodes=CHUNK)


def score(decoder: Any, pieces: list[list[int]], tell: Callable[[int], Any] = lambda count: None) -> Scored:
    """Judge every token of every piece but its first; `tell` hears how many were just judged.

    All rows are scored as drafts are, none read as a prompt: that may round otherwise.
    """
    total, best = 0.0, []
    for piece in pieces:
        for start in range(0, len(piece) - 1, CHUNK):
            chunk = piece[start : start + CHUNK]
            wanted = torch.tensor(piece[start + 1 : start + 1 + len(chunk)])
            logits, _ = decoder.nodes([0], torch.tensor([chunk]))  # [1, N, V]
            rows = logits[0, : len(wanted)].float()
            total += float(-rows.log_softmax(-1).gather(1, wanted[:, None]).double().sum())
            best.append(rows.argmax(-1))
            tell(len(wanted))
            decoder.keep([0], [list(range(1, len(chunk)))])
        decoder.release(0)
    chosen = torch.cat(best)
    return Scored(total / len(chosen), chosen)


def show(found: dict[str, Scored]) -> str:
    """Return the table."""
    first = next(iter(found.values()))
    rows = [
        [
            name,
            f"{scored.perplexity:.3f}",
            f"{100 * (scored.perplexity / first.perplexity - 1):+.2f} %",
            f"{100 * float((scored.best == first.best).double().mean()):.1f} %",
        ]
        for name, scored in found.items()
    ]
    return table(["format", "perplexity", f"beside {next(iter(found))}", "same likeliest token"], rows)


def write(model: str, count: int, found: dict[str, Scored]) -> None:
    """Put the numbers of a model into the package's table."""
    known = json.loads(TABLE.read_text(encoding="utf-8"))
    numbers = {name: round(scored.perplexity, 3) for name, scored in found.items()}
    known[model] = {"positions": count, **known.get(model, {}), **numbers} | {"positions": count}
    TABLE.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
