"""`python -m slipstream.measure.bench`: overhead, speed on real text, and plain decoding against transformers.

Every speed is printed beside plain decoding of the same engine in the same run, in turn, with what it was measured on.
Exit status 0; 1 if outputs differ beyond near-ties; 2 and 3 as everywhere. Tables go to stdout, the bar to stderr.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slipstream.config import DEFAULT_MODEL, DTYPES, whole
from slipstream.measure import bench_drafters, bench_hf, bench_overhead, bench_regret, bench_speed
from slipstream.measure.entry import guarded
from slipstream.measure.record import record, record_line
from slipstream.measure.workloads import KINDS, load_prompts
from slipstream.types import SamplingParams, WorkError

if TYPE_CHECKING:
    from slipstream.llm import LLM

SECTIONS = ("overhead", "speed", "hf", "drafters")
ALONE = ("regret",)  # sections that are run only when asked for
ROOM = 1024  # context kept per row: the prompts are short


@dataclass
class Outcome:
    """What the sections found, for both forms of output."""

    data: dict[str, Any]
    texts: list[str]
    agrees: bool = True


def main(argv: list[str] | None = None) -> int:
    """Run the benchmark; return the exit status."""
    args = parser().parse_args(argv)
    return guarded(lambda: _run(args))


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    p = argparse.ArgumentParser(prog="python -m slipstream.measure.bench", description=(__doc__ or "").split("\n")[0])
    p.add_argument("--model", default=DEFAULT_MODEL, help="the target (default: %(default)s)")
    p.add_argument("--drafter", default="lookup", help="what is compared with plain decoding (default: %(default)s)")
    p.add_argument("--draft-tokens", default="auto", help="most tokens drafted per round (default: the drafter's own)")
    p.add_argument("--dtype", choices=DTYPES, help="default: auto; the overhead is measured in bfloat16 and float32")
    p.add_argument("--quantize", default="auto", help="weights of the target (default: %(default)s)")
    p.add_argument("--prompts", choices=("all", *KINDS), default="all")
    p.add_argument("--max-tokens", type=int, default=128)
    p.add_argument("--repeats", type=int, default=3)
    p.add_argument("--only", choices=(*SECTIONS, *ALONE), help="one section instead of all")
    p.add_argument("--quick", action="store_true", help="2 prompts of each kind, 48 tokens, 1 repeat: a smoke test")
    p.add_argument("--json", action="store_true", help="one JSON object on stdout, and nothing else")
    p.add_argument("--output", type=Path, metavar="FILE", help="write the JSON object to FILE as well")
    return p


def _run(args: argparse.Namespace) -> int:
    whole("repeats", args.repeats, least=1)
    whole("max_tokens", args.max_tokens, least=1, most=ROOM // 2)
    outcome = Outcome({}, [])
    for section in (args.only,) if args.only else SECTIONS:
        _SECTIONS[section](args, outcome)
    if args.output:
        _write(args.output, outcome.data)
    if args.json:
        print(json.dumps(outcome.data))
    else:
        print("\n\n".join([*outcome.texts, record_line(outcome.data["record"])]))
    return 0 if outcome.agrees else 1


def _overhead(args: argparse.Namespace, outcome: Outcome) -> None:
    rows = []
    for dtype in (args.dtype,) if args.dtype else ("bfloat16", "float32"):
        llm = _open(args, dtype)
        llms = {"none": llm.with_drafter("none"), llm.drafter: llm}
        prompts = _encoded(llm, args, count=1 if args.quick else 2)
        tokens, repeats = (24, 1) if args.quick else (min(64, args.max_tokens), args.repeats)
        with Bar("overhead " + dtype, 2 * len(prompts) * repeats * len(llms)) as tick:
            for temperature in (0.0, bench_overhead.WARM):
                params = SamplingParams(temperature=temperature, max_tokens=tokens, ignore_eos=True, seed=1)
                rows += bench_overhead.overhead(llms, prompts, params, repeats, tick)
        _note(outcome, args, llm)
    outcome.data["overhead"] = rows
    outcome.texts.append(bench_overhead.show(rows))


def _speed(args: argparse.Namespace, outcome: Outcome) -> None:
    llm = _open(args, args.dtype or "auto")
    tokens, repeats = (min(48, args.max_tokens), 1) if args.quick else (args.max_tokens, args.repeats)
    outcome.data["speed"] = {}
    for kind in KINDS if args.prompts == "all" else (args.prompts,):
        prompts = _encoded(llm, args, kind, 2 if args.quick else None)
        dtype = str(llm.opened.dtype).removeprefix("torch.")
        title = (
            f"Speed: {llm.model}, {dtype}, {llm.drafter} with at most {llm.draft_tokens} drafted tokens, batch 1, "
            f"greedy; {len(prompts)} {kind} prompts, at most {tokens} tokens, {repeats} repeats in turn"
        )
        params = SamplingParams(max_tokens=tokens)
        with Bar(f"speed {kind}", 2 * len(prompts) * repeats) as tick:
            result = bench_speed.speed(llm, prompts, params, repeats, title=title, tick=tick)
        outcome.agrees &= result.holds
        outcome.data["speed"][kind] = result.as_dict()
        outcome.texts.append(bench_speed.show(result, llm.drafter))
    _note(outcome, args, llm)


def _hf(args: argparse.Namespace, outcome: Outcome) -> None:
    llm = _open(args, args.dtype or "auto", drafter="none")
    prompts = _encoded(llm, args, count=1 if args.quick else 2)
    tokens, repeats = (16, 1) if args.quick else (min(48, args.max_tokens), args.repeats)
    with Bar("transformers", 2 * len(prompts) * repeats) as tick:
        found = bench_hf.against_transformers(llm, prompts, tokens, repeats, tick)
    outcome.data["transformers"] = found
    outcome.texts.append(bench_hf.show(found))
    _note(outcome, args, llm)


def _drafters(args: argparse.Namespace, outcome: Outcome) -> None:
    llm = _open(args, args.dtype or "auto", drafter="none")
    prompts = _encoded(llm, args, count=1 if args.quick else 2)
    tokens, repeats = (8, 1) if args.quick else (min(32, args.max_tokens), args.repeats)
    with Bar("drafters", 0) as tick:
        rows = bench_drafters.drafters(llm, prompts, tokens, repeats, tick)
    outcome.data["drafters"] = rows
    outcome.texts.append(bench_drafters.show(rows, llm.model, str(llm.opened.dtype).removeprefix("torch.")))
    _note(outcome, args, llm)


def _regret(args: argparse.Namespace, outcome: Outcome) -> None:
    llm = _open(args, args.dtype or "auto", drafter="auto")
    tokens, repeats, count = (24, 1, 1) if args.quick else (args.max_tokens, args.repeats, 4)
    prompts = list(_encoded(llm, args, count=2).values())
    kinds = bench_regret.cases(llm.engine.target.caps.vocab, prompts, tokens, count)
    with Bar("regret", 2 * repeats * sum(len(each) for each, _ in kinds.values())) as tick:
        found = bench_regret.regret(llm, kinds, repeats, tick)
    outcome.data["regret"] = bench_regret.as_dicts(found)
    outcome.texts.append(bench_regret.show(found, llm.model, llm.drafter))
    _note(outcome, args, llm)


_SECTIONS = {"overhead": _overhead, "speed": _speed, "hf": _hf, "drafters": _drafters, "regret": _regret}


def _open(args: argparse.Namespace, dtype: str, drafter: str | None = None) -> LLM:
    from slipstream.llm import LLM

    count = int(args.draft_tokens) if str(args.draft_tokens).isdigit() else args.draft_tokens
    spec = drafter or args.drafter
    return LLM(
        args.model,
        spec,
        draft_tokens="auto" if spec == "none" else count,
        dtype=dtype,
        quantize=args.quantize,
        max_model_len=ROOM,
        max_rows=1,
    )


def _encoded(
    llm: LLM, args: argparse.Namespace, kind: str | None = None, count: int | None = None
) -> dict[str, list[int]]:
    return {p.id: llm.encode(p.messages) for p in load_prompts(kind or args.prompts, count)}


def _note(outcome: Outcome, args: argparse.Namespace, llm: LLM) -> None:
    if "record" not in outcome.data:
        folder = getattr(llm, "drafter_folder", None)
        messages = [p.messages for p in load_prompts(args.prompts)]
        outcome.data["record"] = record(
            model=llm.opened.folder, drafter=folder, prompts=messages, device=llm.opened.device
        )


def _write(path: Path, data: dict[str, Any]) -> None:
    """Write under a temporary name, then rename: a stopped run leaves no half file."""
    draft = path.with_name(path.name + ".part")
    try:
        draft.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
        draft.replace(path)
    except OSError as e:
        raise WorkError(f"cannot write {path}: {e.strerror}; give a file in an existing folder") from e


class Bar:
    """A progress bar on stderr, gone when done."""

    def __init__(self, what: str, total: int) -> None:
        from tqdm import tqdm

        self._bar = tqdm(total=total, desc=what, unit="run", file=sys.stderr, leave=False)

    def __enter__(self) -> Any:
        return self._bar.update

    def __exit__(self, *error: object) -> None:
        self._bar.close()


if __name__ == "__main__":
    sys.exit(main())
