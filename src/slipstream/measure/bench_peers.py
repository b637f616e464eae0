"""`python -m slipstream.measure.bench_peers`: slipstream, transformers and llama.cpp on the same prompts and weights.

Thirty shipped prompts (grounded, code, chat), greedy, batch 1. Each engine lives in a process of its own; one prompt at
a time is decoded by all of them in turn, while the others sleep. Every prompt is written when it is done, and the same
command goes on from there. Tables go to stdout, with --docs also between the markers of the docs.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import os
import sys
from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from slipstream.config import whole
from slipstream.measure.bench_peers_text import NAMES, Drawn, Measured, drawn, losses, page
from slipstream.measure.entry import guarded
from slipstream.measure.peers.worker import OURS, Setup, Worker
from slipstream.measure.results import Results
from slipstream.measure.suites import Suite, load_suite
from slipstream.types import RequestError, WorkError

MODELS = ("smollm2-135m-instruct", "qwen2.5-coder-1.5b-instruct")
DRAFTS = {"qwen2.5-coder-1.5b-instruct": "qwen2.5-coder-0.5b-instruct"}  # what transformers drafts with
ENGINES = {"slipstream": OURS, "llama-cpp": ("llama-cpp", "llama-cpp-lookup"), "hf": ("hf", "hf-lookup", "hf-assisted")}
PACKAGES = {"hf": "transformers", "llama-cpp": "llama_cpp"}
ROOM, WARM_UP_TOKENS = 1024, 4
BEGIN, END = "<!-- peers:begin -->", "<!-- peers:end -->"
PAGES = ("README.md", "docs/performance.md")


@dataclass(frozen=True)
class Step:
    """One prompt, for the repeat-th time, by these runners in this order."""

    prompt: str
    repeat: int
    runners: tuple[str, ...]


def main(argv: list[str] | None = None) -> int:
    """Run the comparison; return the exit status."""
    args = parser().parse_args(argv)
    return guarded(lambda: _run(args))


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    p = argparse.ArgumentParser(
        prog="python -m slipstream.measure.bench_peers", description=(__doc__ or "").split("\n")[0]
    )
    p.add_argument("--models", default=",".join(MODELS), metavar="NAME,...", help="catalogue models (%(default)s)")
    p.add_argument("--suite", default="peers", metavar="peers|PATH", help="shipped prompts, or a JSONL file (peers)")
    p.add_argument("--engines", default=",".join(ENGINES), metavar="NAME,...", help="who takes part (%(default)s)")
    p.add_argument("--limit", type=int, metavar="N", help="at most N prompts, taken from the tasks in turn")
    p.add_argument("--max-tokens", type=int, default=48, metavar="N", help="most new tokens (%(default)s)")
    p.add_argument("--repeats", type=int, default=2, metavar="N", help="of slipstream and llama.cpp (%(default)s)")
    p.add_argument("--hf-repeats", type=int, default=1, metavar="N", help="of transformers (%(default)s)")
    p.add_argument("--output", type=Path, default=Path("peers.jsonl"), metavar="FILE", help="every time (%(default)s)")
    p.add_argument("--docs", type=Path, metavar="FOLDER", help="redraw the tables in this checkout's docs")
    p.add_argument("--draw", action="store_true", help="measure nothing: draw what is in the file")
    return p


def _run(args: argparse.Namespace) -> int:
    for name in ("max_tokens", "repeats", "hf_repeats"):
        whole(name, getattr(args, name), least=1)
    engines = args.engines.split(",")
    if "slipstream" not in engines or set(engines) - set(ENGINES):
        raise RequestError(f"--engines {args.engines}: name slipstream, and any of {', '.join(ENGINES)}")
    suite = load_suite(args.suite).limited(args.limit)
    docs = not args.docs or _may_redraw(args, suite)
    found = []
    for model in args.models.split(","):
        results = Results(args.output, settings(args, suite, model), _about())
        if not args.draw:
            measure(args, suite, model, results)
        if results.lines:
            found.append(Measured(model, suite, args.max_tokens, results.lines))
    if not found:
        raise WorkError(f"{args.output} holds no measurement with these settings; leave out --draw")
    text = page(found)
    print(text)
    if args.docs and docs:
        _refuse(args, _lost([drawn(_section(args.docs / name)[1]) for name in PAGES], drawn(text)))
        for name in PAGES:
            redraw(args.docs / name, text)
    return 0


def _may_redraw(args: argparse.Namespace, suite: Suite) -> bool:
    """Refuse, before anything is measured, tables that would be replaced by less; False: an engine is not installed."""
    old = [drawn(_section(args.docs / name)[1]) for name in PAGES]
    if args.draw:  # what is in the file decides
        return True
    engines = args.engines.split(",")
    _refuse(args, _lost(old, _planned(args, suite, engines)))
    lost = _lost(old, _planned(args, suite, [engine for engine in engines if _installed(engine)]))
    if lost:
        missing = ", ".join(engine for engine in engines if not _installed(engine))
        print(f"{missing} is not installed: the docs keep their tables ({'; '.join(lost)})", file=sys.stderr)
    return not lost


def _planned(args: argparse.Namespace, suite: Suite, engines: Seq[str]) -> dict[str, Drawn]:
    """Return what the tables will show."""
    runners = {model: _runners(model, engines) for model in args.models.split(",")}
    names = {model: {NAMES[r] for each in of.values() for r in each} for model, of in runners.items()}
    return {model: Drawn(len(suite.prompts), found) for model, found in names.items()}


def _lost(old: list[dict[str, Drawn]], new: dict[str, Drawn]) -> list[str]:
    return list(dict.fromkeys(line for page_then in old for line in losses(page_then, new)))


def _refuse(args: argparse.Namespace, lost: list[str]) -> None:
    if lost:
        what = "; ".join(lost)
        raise RequestError(
            f"--docs {args.docs} would replace the tables by less ({what}); leave it out, or measure all"
        )


def settings(args: argparse.Namespace, suite: Suite, model: str) -> dict[str, Any]:
    """Return what two measurements must share; repeats may grow."""
    from slipstream.measure.record import cpu_name

    ids = [p.id for p in suite.prompts]
    found = {"model": model, "suite": suite.name, "prompts": ids, "max_tokens": args.max_tokens, "cpu": cpu_name()}
    return found if args.engines == ",".join(ENGINES) else {**found, "engines": args.engines}


def runners_of(model: str, chosen: Seq[str]) -> dict[str, tuple[str, ...]]:
    """Return engine -> runners: those of the chosen that are installed, and that this model has a draft for."""
    for engine in ENGINES:
        if engine in chosen and not _installed(engine):
            print(f"{engine} is not installed: left out", file=sys.stderr)
    return _runners(model, [engine for engine in chosen if _installed(engine)])


def _installed(engine: str) -> bool:
    return engine not in PACKAGES or importlib.util.find_spec(PACKAGES[engine]) is not None


def _runners(model: str, chosen: Seq[str]) -> dict[str, tuple[str, ...]]:
    return {
        engine: tuple(r for r in runners if r != "hf-assisted" or model in DRAFTS)
        for engine, runners in ENGINES.items()
        if engine in chosen
    }


def steps(suite: Suite, engines: dict[str, tuple[str, ...]], repeats: int, hf_repeats: int) -> Iterator[Step]:
    """Yield every step in the order of measurement; the order of the runners turns round on every second repeat."""
    for repeat in range(max(repeats, hf_repeats)):
        chosen = [
            runner
            for engine, runners in engines.items()
            if repeat < (hf_repeats if engine == "hf" else repeats)
            for runner in runners
        ]
        for prompt in suite.prompts:
            yield Step(prompt.id, repeat, tuple(chosen[::-1] if repeat % 2 else chosen))


def measure(args: argparse.Namespace, suite: Suite, model: str, results: Results) -> None:
    """Run what is not in the results yet."""
    from tqdm import tqdm

    engines = runners_of(model, args.engines.split(","))
    done = {(line["prompt"], line["repeat"]) for line in results.lines if "prompt" in line}
    left = [s for s in steps(suite, engines, args.repeats, args.hf_repeats) if (s.prompt, s.repeat) not in done]
    if not left:
        return
    ids, setup = prepare(model, suite, args.max_tokens)
    workers = {}
    results.append({"engine": "none", "about": _about()})
    try:
        for engine, runners in engines.items():
            setup_here = Setup(runners=list(runners), **setup)
            policy = "passive" if engine == "slipstream" else None  # the others are at their best as they come
            worker = Worker(setup_here, {"OMP_NUM_THREADS": None, "OMP_WAIT_POLICY": policy})
            workers.update(dict.fromkeys(runners, worker))
            results.append({"engine": engine, "about": worker.about})
            for runner in runners:
                worker.run(runner, ids[left[0].prompt], WARM_UP_TOKENS)
        for step in tqdm(left, desc=model, unit="prompt", file=sys.stderr, disable=None):
            runs = {name: asdict(workers[name].run(name, ids[step.prompt], args.max_tokens)) for name in step.runners}
            results.append({"prompt": step.prompt, "repeat": step.repeat, "runs": runs})
    finally:
        for worker in {id(w): w for w in workers.values()}.values():
            worker.close()


def prepare(model: str, suite: Suite, max_tokens: int) -> tuple[dict[str, list[int]], dict[str, Any]]:
    """Return the ids of every prompt, and what all children are told."""
    from slipstream import models
    from slipstream.text import load_tokenizer

    folder = models.resolve(model)
    tokenizer = load_tokenizer(folder)
    ids = {p.id: list(tokenizer.chat(p.messages)) for p in suite.prompts}
    longest = max(map(len, ids.values()))
    if longest + max_tokens > ROOM:
        raise WorkError(f"a prompt has {longest} tokens: with {max_tokens} more it does not fit a context of {ROOM}")
    draft = str(models.resolve(DRAFTS[model])) if model in DRAFTS else ""
    setup = {"model": model, "folder": str(folder), "max_len": ROOM, "eos": list(tokenizer.eos_ids), "draft": draft}
    return ids, setup


def redraw(file: Path, text: str) -> None:
    """Put the text between the markers of a file."""
    before, _, after = _section(file)
    file.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}", encoding="utf-8")


def _section(file: Path) -> tuple[str, str, str]:
    """Return what is before, between and after the markers of a file."""
    try:
        whole_text = file.read_text(encoding="utf-8")
    except OSError as e:
        raise WorkError(f"{file} cannot be read: {e.strerror}; --docs takes the folder of a checkout") from e
    if BEGIN not in whole_text or END not in whole_text:
        raise WorkError(f"{file} lacks the markers {BEGIN} and {END}")
    before, _, rest = whole_text.partition(BEGIN)
    between, _, after = rest.partition(END)
    return before, between, after


def _about() -> dict[str, Any]:
    from slipstream.measure.record import cpu_name, revision, versions

    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    found = {"argv": sys.argv[1:], "revision": revision(), "versions": versions(), "date": today}
    return found | {"cpu": cpu_name(), "cpus": os.cpu_count()}


if __name__ == "__main__":
    sys.exit(main())
