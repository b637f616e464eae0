"""`slipstream predict`: how much faster would it be? From numbers at once, or from a model and a text of your own.

stdout carries the prediction (with --json one object, nothing else); notes and bars go to stderr.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from slipstream.cli import options
from slipstream.cli.options import say
from slipstream.cli.prompts import read_file
from slipstream.measure.suites import KNOWN
from slipstream.types import RequestError

if TYPE_CHECKING:
    from slipstream.llm import LLM
    from slipstream.measure.predict import Prediction
    from slipstream.measure.workloads import Prompt
    from slipstream.types import SamplingParams

TOKENS = 128
_NUMBERS = ("alpha", "acceptance", "tokens_per_round")
_CHOICES = "--alpha, --acceptance, --tokens-per-round, --text, --suite"
_TEXTS = ("text", "suite")
_COSTS = ("cost_ratio", "scoring", "parallel")
_WITHOUT_MODEL = (*_NUMBERS, *_COSTS, "draft_tokens", "json", "report")
_OF_SUITES = ("task", "count", "max_tokens", "stop", "ignore_eos", "seed")


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    group = parser.add_argument_group("from numbers (no model needed)")
    group.add_argument("--alpha", type=float, metavar="A", help="chance that a drafted token is accepted")
    group.add_argument("--acceptance", type=_floats, metavar="A,B,..", help="the same, for each position of the draft")
    group.add_argument("--tokens-per-round", type=float, metavar="X", help="measured, the target's own token included")
    group.add_argument("--cost-ratio", type=float, metavar="C", help="drafter's time per token over the target's")
    group.add_argument("--parallel", action="store_true", help="the drafter makes all tokens in one pass of cost C")
    group.add_argument("--scoring", type=_floats, metavar="V,W,..", help="target's time for 1, 2, .. drafted tokens")
    group = parser.add_argument_group("from a model")
    group.add_argument("--text", nargs="+", metavar="FILE", help="texts such as the model will write")
    group.add_argument("--suite", metavar="NAME", help=f"prompts the model answers first: {KNOWN}")
    group.add_argument("--task", metavar="TASK", help="only the suite's prompts of this task")
    group.add_argument("--count", type=int, metavar="N", help="use the first N prompts only")
    group.add_argument("--check", action="store_true", help="measure as well, and print it next to the prediction")
    options.add_model_options(parser)
    options.add_drafter_options(parser)
    options.add_sampling_options(parser, TOKENS)
    group = parser.add_argument_group("output")
    group.add_argument("--json", action="store_true", help="one JSON object on stdout, nothing else")
    group.add_argument("--report", metavar="FILE", help="write an HTML page")


def run(args: argparse.Namespace) -> int:
    """Run the command and return its exit status."""
    given = [name for name in (*_NUMBERS, *_TEXTS) if getattr(args, name) is not None]
    if len(given) != 1:
        what = " and ".join(f"--{name.replace('_', '-')}" for name in given) or "nothing"
        raise RequestError(f"predict needs one of {_CHOICES}; got {what}")
    if args.report:
        from slipstream.measure.report_file import check_writable

        check_writable(args.report)
    return _from_numbers(args) if given[0] in _NUMBERS else _from_model(args)


def _from_numbers(args: argparse.Namespace) -> int:
    from slipstream.measure.predict import predict, shorthand

    options.refuse_idle(args, set(args.given) - set(_WITHOUT_MODEL), "without --text or --suite")
    length = args.draft_tokens if isinstance(args.draft_tokens, int) else None
    ratio = _need(args.cost_ratio, "--cost-ratio: the drafter's time per token over the target's, such as 0.1")
    if args.tokens_per_round is not None:
        if length is None:
            raise RequestError("--tokens-per-round needs --draft-tokens N: the length it was measured with")
        if args.report or args.parallel or args.scoring:
            raise RequestError("--tokens-per-round goes with --cost-ratio and --draft-tokens only")
        speed = shorthand(args.tokens_per_round, ratio, length)
        print(json.dumps({"speedup": speed}) if args.json else f"predicted speed-up: {speed:.2f}x")
        return 0
    acceptance = args.alpha if args.alpha is not None else args.acceptance
    found = predict(acceptance, ratio, length, parallel=args.parallel, scoring=args.scoring or ())
    given = [("acceptance", str(acceptance)), ("cost ratio", f"{ratio:g} per {'round' if args.parallel else 'token'}")]
    given += [("scoring", str(args.scoring))] if args.scoring else []
    _show(args, found, given, {})
    return 0


def _from_model(args: argparse.Namespace) -> int:
    from slipstream.measure.predict_model import forecast, segments

    options.refuse_idle(args, _COSTS, "with --text or --suite: costs are measured")
    options.refuse_idle(args, ("n", "logprobs"), "on a prediction; leave it out")
    if args.check and args.text:
        raise RequestError("--check needs --suite, not --text: a text that the model did not write cannot be measured")
    if args.text:
        options.refuse_idle(args, _OF_SUITES, "with --text: the text is taken as it is; it goes with --suite")
    params = options.sampling_params({"max_tokens": TOKENS} | options.sampling_options(args))
    contents = {name: read_file(name) for name in args.text or ()}
    prompts = [] if args.text else _prompts(args)
    llm = _open(args)
    if args.text:
        texts = [part for name, content in contents.items() for part in segments(llm, name, content)]
    else:
        texts = _answered(llm, prompts, params)
    with _bar("measuring", len(texts)) as tick:
        found = forecast(llm, texts, params, draft_tokens=llm.guess.fixed, tick=tick)
    extra: dict[str, Any] = {"record": _record(llm, [p.messages for p in prompts] or list(contents.values()))}
    if args.check:
        extra["check"] = _check(args, llm, texts, params, found.prediction)
    _show(args, found.prediction, _given(args, llm, found.prediction), extra)
    return 0


def _open(args: argparse.Namespace) -> LLM:
    from slipstream.cli.generate import say_notes
    from slipstream.llm import LLM

    llm = LLM(**(options.llm_options(args) | {"max_rows": 1}))
    say_notes(llm)
    return llm


def _prompts(args: argparse.Namespace) -> list[Prompt]:
    from slipstream.measure.suites import load_suite

    if args.count is not None and args.count < 1:
        raise RequestError(f"--count {args.count} must be at least 1")
    return load_suite(args.suite).of_task(args.task).prompts[: args.count]


def _answered(llm: LLM, prompts: list[Prompt], params: SamplingParams) -> list[Any]:
    from slipstream.measure.predict_model import answered
    from slipstream.measure.suites import check_room, encode

    ids = {p.id: encode(llm, p) for p in prompts}
    check_room(llm, ids, params.max_tokens or TOKENS)
    with _bar("answering", len(prompts)) as tick:
        return answered(llm, list(ids.values()), params, tick)


def _record(llm: LLM, prompts: list[Any]) -> dict[str, Any]:
    from slipstream.measure.record import record

    return record(model=llm.opened.folder, drafter=llm.drafter_folder, prompts=prompts, device=llm.opened.device)


def _check(args: argparse.Namespace, llm: LLM, texts: list[Any], params: SamplingParams, found: Prediction) -> Any:
    from slipstream.measure.predict_model import check

    length = found.draft_tokens
    if length == 0:
        raise RequestError("the prediction is to draft nothing: there is nothing to measure; give --draft-tokens N")
    fixed = dataclasses.replace(llm.guess, draft_tokens=length, fixed=length, notes=[])
    same = llm if llm.draft_tokens == length else llm.with_drafter(fixed)
    with _bar("checking", 4 * len(texts)) as tick:
        ratio = check(same, texts, params, tick=tick)
    inside = found.low is not None and found.high is not None and found.low <= ratio.value <= found.high
    return {"measured": ratio.value, "low": ratio.low, "high": ratio.high, "inside": inside}


def _given(args: argparse.Namespace, llm: LLM, found: Prediction) -> list[tuple[str, str]]:
    detail = found.detail
    return [
        ("model", llm.model),
        ("drafter", args.drafter or detail["drafter"]),
        ("verification", detail["verify"]),
        ("texts", f"{detail['texts']} of {detail['tokens']} tokens, {_origin(detail['own_text'])}"),
        ("plain round", f"{1000 * detail['plain_round_seconds']:.2f} ms"),
    ]


def _origin(own: bool) -> str:
    return "written by the model" if own else "given"


def _show(args: argparse.Namespace, found: Prediction, given: list[tuple[str, str]], extra: dict[str, Any]) -> None:
    from slipstream.measure.predict_report import explained, headline, plot, report

    if args.report:
        lead = "How much faster would speculative decoding be? Predicted, not measured in the loop."
        from slipstream.measure.report_file import write_whole

        write_whole(args.report, report(found, "slipstream predict", lead, given))
        say(f"report: {args.report}")
    if args.json:
        print(json.dumps(found.as_dict() | extra, ensure_ascii=False))
        return
    print("\n".join([headline(found), *explained(found), "", plot(found)]))
    if len(given) > 3:
        print("\n" + "\n".join(f"{name}: {value}" for name, value in given))
    if "check" in extra:
        c = extra["check"]
        word = "inside" if c["inside"] else "OUTSIDE"
        span = f"95 %: {c['low']:.2f} to {c['high']:.2f}"
        print(f"measured: {c['measured']:.2f}x ({span}), {word} the predicted interval")
    if "record" in extra:
        from slipstream.measure.record import record_line

        print(record_line(extra["record"]))


def _need(value: float | None, what: str) -> float:
    if value is None:
        raise RequestError(f"give {what}")
    return value


def _floats(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} must be numbers separated by commas, such as 0.8,0.7,0.6") from None


@contextmanager
def _bar(what: str, total: int) -> Iterator[Any]:
    from tqdm import tqdm

    with tqdm(total=total, desc=what, file=sys.stderr, disable=not sys.stderr.isatty(), leave=False) as bar:
        yield lambda: bar.update(1)
