"""`slipstream tune`: which drafter and how many tokens pay on this machine, for this model and these prompts.

stdout carries the table, or with --json one object; notes and the bar go to stderr. The profile that is stored is what
`--draft-tokens auto` decides by.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from slipstream.cli import options
from slipstream.measure.suites import KNOWN
from slipstream.types import RequestError

if TYPE_CHECKING:
    from slipstream.llm import LLM

TOKENS, SECONDS = 64, 100.0


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    group = parser.add_argument_group("what is tuned for")
    group.add_argument("--suite", default="demo", metavar="NAME", help=f"prompts: {KNOWN} (%(default)s)")
    group.add_argument(
        "--limit", type=int, default=8, metavar="N", help="at most N prompts, of all tasks (%(default)s)"
    )
    group.add_argument("--drafter", default="auto", metavar="SPEC", help="what to choose from (%(default)s)")
    group.add_argument("--verify", default="auto", help="the verification rule (%(default)s)")
    group.add_argument("--temperature", type=float, default=0.0, metavar="X", help="0: greedy")
    group.add_argument("--seed", type=int, default=0, metavar="N", help="of the random draws (%(default)s)")
    group.add_argument("--max-tokens", type=int, default=TOKENS, metavar="N", help="most new tokens (%(default)s)")
    group.add_argument(
        "--seconds", type=float, default=SECONDS, metavar="X", help="about how long to take (%(default)s)"
    )
    options.add_model_options(parser)
    group = parser.add_argument_group("output")
    group.add_argument("--json", action="store_true", help="one JSON object on stdout, nothing else")


def run(args: argparse.Namespace) -> int:
    """Run the command and return its exit status."""
    if not 1.0 <= args.seconds <= 3600.0:
        raise RequestError(f"--seconds {args.seconds:g} must be 1 to 3600")
    params = options.sampling_params({name: getattr(args, name) for name in ("temperature", "seed", "max_tokens")})
    from slipstream.build import parse_drafter
    from slipstream.measure.suites import check_room, encode, load_suite
    from slipstream.specs import check_places

    if parse_drafter(args.drafter).name == "none":
        raise RequestError("drafter none guesses nothing: there is nothing to tune; give another --drafter")
    check_places(args.drafter)
    suite = load_suite(args.suite).limited(args.limit)
    llm = _open(args)
    ids = {prompt.id: encode(llm, prompt) for prompt in suite.prompts}
    check_room(llm, ids, args.max_tokens)
    from slipstream.measure.tune import tune

    with _bar() as tick:
        prompts = _mixed_up([(p.kind, ids[p.id]) for p in suite.prompts])
        found = tune(llm, prompts, params, seconds=args.seconds, tick=tick)
    told = _flags(found.best)
    if args.json:
        print(json.dumps({"model": llm.model, "drafter": llm.drafter} | found.as_dict() | {"flags": told}))
        return 0
    from slipstream.measure.tune_text import show

    print(show(found))
    for engine, text in told.items():
        print(f"the same in {engine}: {text}")
    return 0


def _open(args: argparse.Namespace) -> LLM:
    from slipstream.cli.generate import say_notes
    from slipstream.llm import LLM

    llm = LLM(drafter=args.drafter, verify=args.verify, max_rows=1, **options.target_options(args))
    say_notes(llm)
    return llm


def _mixed_up(prompts: list[tuple[str, list[int]]]) -> list[list[int]]:
    """Deal prompts from the tasks in turn, so that the first few are of all kinds."""
    kinds = list(dict.fromkeys(kind for kind, _ in prompts))
    groups = [[ids for kind, ids in prompts if kind == one] for one in kinds]
    deepest = max(len(group) for group in groups)
    return [group[k] for k in range(deepest) for group in groups if k < len(group)]


def _flags(best: Any) -> dict[str, str]:
    from slipstream.measure.tune_text import flags

    if best is None:
        return {}
    return flags(best.kind, best.draft_tokens, best.folder)


@contextmanager
def _bar() -> Iterator[Any]:
    from tqdm import tqdm

    with tqdm(desc="tuning", unit="run", file=sys.stderr, disable=not sys.stderr.isatty(), leave=False) as bar:
        yield lambda: bar.update(1)
