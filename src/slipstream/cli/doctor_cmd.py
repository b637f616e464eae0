"""`slipstream doctor DRAFTER --model TARGET`: read the drafter the way it was trained, or say what to change.

Exit status 1 when another reading of the file beats its own by a clear margin. stdout carries the report (with --json
one object, nothing else); notes and the bar go to stderr.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from slipstream.cli import options
from slipstream.cli.options import progress_bar, say
from slipstream.measure.suites import KNOWN
from slipstream.types import RequestError

PROMPTS, TOKENS = 8, 32


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("drafter", metavar="DRAFTER", help="a drafter's folder or hub id")
    options.add_model_options(parser)
    group = parser.add_argument_group("self-test")
    group.add_argument("--suite", default="free", metavar="NAME", help=f"prompts: {KNOWN} (%(default)s)")
    group.add_argument("--prompts", type=int, default=PROMPTS, metavar="N", help="prompts answered (%(default)s)")
    group.add_argument("--max-tokens", type=int, default=TOKENS, metavar="N", help="of each answer (%(default)s)")
    parser.add_argument_group("output").add_argument("--json", action="store_true", help="one JSON object on stdout")


def run(args: argparse.Namespace) -> int:
    """Run the command and return its exit status."""
    for name, value in (("prompts", args.prompts), ("max-tokens", args.max_tokens)):
        if value < 1:
            raise RequestError(f"--{name} {value} must be at least 1")
    from slipstream import learned, models
    from slipstream.checkpoints.drafters import read_drafter
    from slipstream.llm import LLM
    from slipstream.measure.doctor.examine import examine, read_raw
    from slipstream.measure.doctor.report import as_dict, lines_of
    from slipstream.measure.suites import load_suite

    path = _path(args.drafter, learned.ALGORITHMS)
    prompts = load_suite(args.suite).prompts[: args.prompts]
    folder = models.resolve(path, what="drafter")
    llm = LLM(drafter="none", **options.target_options(args))
    # a tap at the last layer is refused elsewhere, since trainers mean two things by it; here both are measured
    found = read_drafter(folder, learned.facts_of(llm.opened), final_layer=True)
    for note in (*llm.notes, *(f"drafter: {note}" for note in found.notes)):
        say(note)
    with progress_bar() as progress:
        diagnosis = examine(llm, found, prompts, read_raw(folder), tokens=args.max_tokens, progress=progress)
    if args.json:
        print(json.dumps(as_dict(diagnosis, args.drafter, args.model), ensure_ascii=False))
    else:
        print("\n".join(lines_of(diagnosis, args.drafter)))
    return 0 if diagnosis.winner is None else 1


def _path(spec: str, algorithms: Any) -> str:
    """Take a drafter's spec as `--drafter` does, or a bare path."""
    name, _, path = spec.partition(":")
    return path if name in algorithms and path else spec
