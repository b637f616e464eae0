"""`slipstream calibrate DRAFTER --model TARGET --out FILE`: fit a DSpark drafter's confidence to what TARGET accepts.

The target answers prompts with whole blocks drafted, temperatures are fitted and saved, and a table says how wrong the
confidence was before and is after. stdout carries the table (with --json one object, nothing else).
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

from slipstream.cli import options
from slipstream.cli.options import progress_bar, say
from slipstream.measure.suites import KNOWN
from slipstream.types import RequestError

if TYPE_CHECKING:
    from slipstream.measure.calibrate import Fitted

PROMPTS, TOKENS = 30, 128


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("drafter", metavar="DRAFTER", help="a DSpark drafter's folder or hub id")
    parser.add_argument("--out", required=True, metavar="FILE", help="where to write the temperatures")
    options.add_model_options(parser)
    group = parser.add_argument_group("text")
    group.add_argument("--suite", default="demo", metavar="NAME", help=f"prompts: {KNOWN} (%(default)s)")
    group.add_argument("--prompts", type=int, default=PROMPTS, metavar="N", help="prompts answered (%(default)s)")
    group.add_argument("--max-tokens", type=int, default=TOKENS, metavar="N", help="of each answer (%(default)s)")
    group.add_argument("--temperature", type=float, default=0.0, metavar="X", help="0: greedy (%(default)s)")
    group.add_argument("--seed", type=int, default=0, metavar="N", help="of sampled answers (%(default)s)")
    parser.add_argument_group("output").add_argument("--json", action="store_true", help="one JSON object on stdout")


def run(args: argparse.Namespace) -> int:
    """Run the command and return its exit status."""
    out = _writable(args.out)
    if args.prompts < 2:
        raise RequestError(f"--prompts {args.prompts} must be at least 2: one half judges what the other fitted")
    from slipstream import learned, models
    from slipstream.checkpoints.drafters import read_drafter
    from slipstream.llm import LLM
    from slipstream.measure.calibrate import ROWS, calibrate, check
    from slipstream.measure.suites import load_suite

    params = options.sampling_params({name: getattr(args, name) for name in ("temperature", "seed", "max_tokens")})
    prompts = load_suite(args.suite).limited(args.prompts).prompts
    folder = models.resolve(args.drafter.removeprefix("dspark:"), what="drafter")
    llm = LLM(drafter="none", max_rows=ROWS, **options.target_options(args))
    found = read_drafter(folder, learned.facts_of(llm.opened))
    check(found)
    for note in (*llm.notes, *(f"drafter: {note}" for note in found.notes)):
        say(note)
    ids = [llm.encode(prompt.messages) for prompt in prompts]
    with progress_bar() as progress:
        fitted = calibrate(llm, found, ids, params, tick=lambda n, of: progress("answering prompts", n, of))
    try:
        fitted.calibration.save(out)
    except OSError as e:
        raise RequestError(f"--out {args.out} cannot be written: {e.strerror or e}") from None
    use = f"dspark:{args.drafter.removeprefix('dspark:')}?temperatures={args.out}"
    if args.json:
        print(json.dumps({"file": args.out, "use": use, **fitted.as_dict()}, ensure_ascii=False))
    else:
        print("\n".join(lines_of(fitted, args.out, use, args.temperature)))
    return 0


def lines_of(fitted: Fitted, out: str, use: str, temperature: float) -> list[str]:
    """Return the report, line by line."""
    from slipstream.measure.report import table

    rows = [
        (
            f"{d}",
            f"{x.rounds}",
            f"{x.stood:.1%}",
            f"{x.said:.1%}",
            f"{x.temperature:.2f}",
            f"{x.before:.3f}",
            f"{x.after:.3f}",
        )
        for d, x in enumerate(fitted.depths, 1)
    ]
    head = ("depth", "rounds", "stood", "said", "temperature", "error before", "after")
    lines = [
        f"{fitted.rounds} rounds, {fitted.tokens} tokens at temperature {temperature:g}",
        "",
        table(head, rows),
        "",
    ]
    lines.append(
        "error: expected calibration error of a prefix of that depth, on text the temperatures were not fitted to"
    )
    if fitted.kept:
        which = ", ".join(map(str, fitted.kept))
        lines.append(f"depth {which}: fewer than {fitted.enough} rounds, left at 1; use more prompts or --max-tokens")
    return [*lines, f"written: {out}", f'use it: --drafter "{use}"']


def _writable(name: str) -> Path:
    """Refuse a place that cannot be written to before any work is done."""
    path = Path(name)
    if path.is_dir() or not path.parent.is_dir():
        what = "is a folder" if path.is_dir() else f"is in {str(path.parent)!r}, which is no folder"
        raise RequestError(f"--out {name} {what}; give the name of a file in a folder that exists")
    if not os.access(path.parent, os.W_OK):
        raise RequestError(f"--out {name}: folder {str(path.parent)!r} cannot be written to")
    return path
