"""`slipstream bench`: how much faster is it on this machine, with these drafters, on these prompts.

Plain decoding runs in turn with everything else. stdout carries the tables, or one JSON object; the bar and notes go to
stderr. Status 1: outputs differ beyond rounding or the totals do not add up. With --output every measurement is kept,
and the same command goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slipstream.cli import options
from slipstream.cli.options import say
from slipstream.measure.report_file import check_writable, write_whole

if TYPE_CHECKING:
    from slipstream.measure.bench_grid import Bench
    from slipstream.measure.bench_plan import Plan

_SHARED = ("top_p", "top_k", "min_p", "ignore_eos")


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    from slipstream.measure.peers import PEERS
    from slipstream.measure.suites import KNOWN

    group = parser.add_argument_group("what is measured")
    group.add_argument("--suite", default="demo", metavar="NAME", help=f"prompts: {KNOWN} (%(default)s)")
    group.add_argument("--limit", type=int, metavar="N", help="at most N prompts, taken from the tasks in turn")
    group.add_argument("--drafter", default="auto", metavar="SPEC,...", help="drafters to compare (%(default)s)")
    group.add_argument("--draft-tokens", default="auto", metavar="N,...", help="draft lengths to compare, or auto")
    group.add_argument("--temperature", default="0", metavar="X,...", help="temperatures (%(default)s: greedy)")
    group.add_argument("--batch", default="1", metavar="N,...", help="prompts decoded at once (%(default)s)")
    group.add_argument("--max-tokens", type=int, default=128, metavar="N", help="most new tokens (%(default)s)")
    group.add_argument("--repeats", type=int, default=3, metavar="N", help="times that all is measured (%(default)s)")
    named = "; ".join(f"{name}: {peer.summary}" for name, peer in PEERS.items())
    group.add_argument("--against", default="", metavar="PEER,...", help=f"other engines, if installed: {named}")
    options.add_model_options(parser)
    _add_sampling(parser)
    group = parser.add_argument_group("output")
    group.add_argument("--report", type=Path, metavar="FILE.html", help="write one page with pictures")
    group.add_argument("--output", type=Path, metavar="FILE.jsonl", help="keep every measurement; go on from there")
    group.add_argument("--json", action="store_true", help="one JSON object on stdout, nothing else")


def _add_sampling(parser: argparse.ArgumentParser) -> None:
    from slipstream.build import RULES

    group = parser.add_argument_group("sampling")
    group.add_argument("--verify", default="auto", choices=tuple(RULES), help="the verification rule (%(default)s)")
    group.add_argument("--seed", type=int, default=0, metavar="N", help="of the first prompt; the next has N + 1")
    group.add_argument("--top-p", type=float, metavar="X", help="keep the smallest set of tokens with this probability")
    group.add_argument("--top-k", type=int, metavar="N", help="keep the N most probable tokens")
    group.add_argument("--min-p", type=float, metavar="X", help="keep tokens with this share of the best probability")
    group.add_argument("--ignore-eos", action="store_true", default=None, help="go on after the end-of-text token")


def run(args: argparse.Namespace) -> int:
    """Run the command and return its exit status."""
    plan = plan_of(args)
    for path in (args.report, args.output):
        if path is not None:
            check_writable(path)
    from slipstream.measure import bench_page, bench_text
    from slipstream.measure.bench_grid import Bench
    from slipstream.measure.bench_summary import summarise

    bench = Bench(plan, _llm_options(args), args.output)
    for note in bench.notes:
        say(f"slipstream: {note}")
    _measure(bench)
    found = summarise(bench)
    if args.report:
        write_whole(args.report, bench_page.build(found))
    print(json.dumps(found.as_dict(), ensure_ascii=False) if args.json else bench_text.show(found))
    return 0 if found.holds else 1


def plan_of(args: argparse.Namespace) -> Plan:
    """Read the options that say what is measured; nothing is loaded yet."""
    from slipstream import build
    from slipstream.measure.bench_plan import Plan, choices_of, numbers_of
    from slipstream.measure.peers import parse_peers
    from slipstream.measure.suites import load_suite
    from slipstream.specs import check_places

    drafters = [build.parse_drafter(spec).name if spec.strip() == "auto" else spec for spec in args.drafter.split(",")]
    choices = choices_of(",".join(drafters), args.draft_tokens)
    for choice in choices:
        check_places(choice.spec)  # a wrong name is an error before anything is loaded
    return Plan(
        suite=load_suite(args.suite).limited(args.limit),
        choices=choices,
        peers=parse_peers(args.against),
        temperatures=numbers_of(args.temperature, "temperature", float),
        batches=numbers_of(args.batch, "batch", int),
        max_tokens=args.max_tokens,
        repeats=args.repeats,
        seed=args.seed,
        sampling={name: getattr(args, name) for name in _SHARED if getattr(args, name) is not None},
    )


def _llm_options(args: argparse.Namespace) -> dict[str, Any]:
    return options.target_options(args) | {"verify": args.verify}


def _measure(bench: Bench) -> None:
    """Measure what is missing, under a bar; when stopped, say what was kept."""
    from tqdm import tqdm

    from slipstream.measure.bench_predict import predict_all

    units = bench.pending()
    if bench.results.found:
        whole = len(list(bench.plan.units()))
        say(f"slipstream: {whole - len(units)} of {whole} measurements are in {bench.path} already")
    total = sum(len(bench.names(unit.cell)) for unit in units)
    try:
        with tqdm(total=total, unit="run", desc="measuring", file=sys.stderr, leave=False, disable=None) as bar:
            bench.measure(bar.update)
        with tqdm(unit="output", desc="comparing outputs", file=sys.stderr, leave=False, disable=None) as bar:
            bench.judge(bar.update)
        with tqdm(unit="drafter", desc="predicting", file=sys.stderr, leave=False, disable=None) as bar:
            predict_all(bench, bar.update)
    except KeyboardInterrupt:
        if bench.path is not None:
            say(f"slipstream: what was measured is in {bench.path}; the same command goes on from there")
        raise
