"""`slipstream convert`: write a drafter in another public layout, proven to be the same drafter, or not at all."""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slipstream.cli.options import say

if TYPE_CHECKING:
    from slipstream.checkpoints.target_folder import TargetFolder


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("source", metavar="SRC", help="a drafter's folder, in any public layout")
    parser.add_argument("out", metavar="OUT", help="the folder to write")
    parser.add_argument("--to", required=True, metavar="LAYOUT", help="the layout to write")
    parser.add_argument("--model", metavar="TARGET", help="the drafter's target: gives or takes the tables they share")
    parser.add_argument("--mask-token", type=int, metavar="ID", help="the mask token's id, where SRC does not say it")
    parser.add_argument("--force", action="store_true", help="replace OUT if it is a drafter's folder")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")


def run(args: argparse.Namespace) -> int:
    """Run the command and return its exit status."""
    from slipstream.checkpoints.layout_limits import LAYOUT_NAMES
    from slipstream.config import choose

    choose("layout", args.to, LAYOUT_NAMES)
    from slipstream.machine import memory_guard
    from slipstream.measure.convert import convert

    given: dict[str, Any] = {} if args.mask_token is None else {"mask_token": args.mask_token}
    target = None if args.model is None else target_folder(args.model)
    with memory_guard(f"converting {args.source}"):
        done = convert(
            drafter_folder(args.source),
            args.to,
            Path(args.out).expanduser(),
            target=target,
            force=args.force,
            given=given,
        )
    for note in done.notes:
        say(f"note: {note}")
    if args.json:
        print(json.dumps(dataclasses.asdict(done), ensure_ascii=False))
        return 0
    print(f"{done.out}: {done.algorithm} drafter, {done.source} -> {done.layout}, {done.tensors} tensors")
    print("read back: record and tensors are the same, and so are the logits on fixed inputs")
    for name in done.copied:
        print(f"{name}: copied from {args.model}")
    for name in done.left_out:
        print(f"{name}: left out, it is that of {args.model}")
    return 0


def drafter_folder(name: str) -> Path:
    """Return a drafter's folder: a local one as it is, else what the name or hub id stands for."""
    from slipstream import models

    local = Path(name).expanduser()
    return local if local.is_dir() and name not in models.CATALOGUE else models.resolve(name, what="drafter")


def target_folder(name: str) -> TargetFolder:
    """Return a target's folder, not loaded."""
    from slipstream import models
    from slipstream.checkpoints.target_folder import TargetFolder

    return TargetFolder(models.resolve(name), name)
