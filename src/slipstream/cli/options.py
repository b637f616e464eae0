"""The options the commands share: how they are declared, and how parsed values become keyword arguments.

In: an argparse parser. Out: the parser with options; `llm_options` and `sampling_options` read the parsed namespace.
Choices come from `build`, so that `--help` and what the program accepts cannot differ. Torch is not imported here.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn

from slipstream.config import DEFAULT_MODEL, DTYPES, draft_tokens_of, from_speculative_config, nearest
from slipstream.params import LIMITS
from slipstream.specs import check_places
from slipstream.types import RequestError, SamplingParams


class Parser(argparse.ArgumentParser):
    """An argument parser whose every complaint is one `RequestError` naming what would work."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs, allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter)

    def error(self, message: str) -> NoReturn:
        """Raise instead of printing usage and leaving."""
        raise RequestError(f"{message.removeprefix('argument ')}; see '{self.prog} --help'")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Refuse what is left over here, where the valid options of the command are known; note in `given` what was
        given, a default said aloud included: what has no effect can then be refused."""
        found, rest = super().parse_known_args(args, namespace)
        words = [word.split("=")[0] for word in itertools.takewhile(lambda word: word != "--", args or ())]
        known = self._option_string_actions
        found.given = tuple(dict.fromkeys(known[word].dest for word in words if word in known))
        if rest:
            name = rest[0].split("=")[0]
            kind = "option" if name.startswith("-") else "argument"
            raise RequestError(f"unknown {kind} {name!r}{nearest(name, list(known))}; see '{self.prog} --help'")
        return found, rest


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Declare the target and how it runs."""
    from slipstream.build import TARGETS

    group = parser.add_argument_group("model")
    group.add_argument("--model", default=DEFAULT_MODEL, help="folder, .gguf, hub id or catalogue name (%(default)s)")
    group.add_argument("--dtype", default="auto", choices=DTYPES, help="number format of the target (%(default)s)")
    group.add_argument(
        "--quantize",
        default="auto",
        help="weight format: auto, none, int4, int8, or w8a8 on a CPU (each is a model of its own)",
    )
    group.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:N (%(default)s)")
    group.add_argument("--max-model-len", type=int, metavar="N", help="context kept per row, in tokens (the model's)")
    group.add_argument("--target", default="auto", choices=("auto", *TARGETS), help=_help_table(TARGETS))


def add_drafter_options(parser: argparse.ArgumentParser) -> None:
    """Declare who drafts and which rule verifies."""
    from slipstream.build import DRAFTERS, RULES

    group = parser.add_argument_group("speculation")
    group.add_argument("--drafter", metavar="SPEC", help=f"auto or {_help_table(DRAFTERS)}; a bare PATH is recognised")
    group.add_argument(
        "--draft-tokens", metavar="N|auto", type=_count, help="most tokens drafted per round; 0: off (auto)"
    )
    group.add_argument("--verify", default="auto", choices=tuple(RULES), help=_help_table(RULES))
    group.add_argument("--speculative-config", metavar="JSON", help="vLLM's dictionary, instead of the two above")


def add_sampling_options(parser: argparse.ArgumentParser, max_tokens: int | None = SamplingParams.max_tokens) -> None:
    """Declare the sampling parameters; an option left out keeps the default of `SamplingParams`, or of the command."""
    group = parser.add_argument_group("sampling (default: temperature 0)")
    for name, kind, text in _SAMPLING:
        said = f"{text} ({max_tokens})" if name == "max-tokens" else text
        group.add_argument(f"--{name}", type=kind, metavar="N" if kind is int else "X", help=said)
    group.add_argument("--logit-bias", metavar="ID:X,...", help='added to logits, also as JSON {"ID": X}')
    group.add_argument("--stop", action="append", metavar="TEXT", help="end before this text (repeatable)")
    group.add_argument("--ignore-eos", action="store_true", default=None, help="go on after the end-of-text token")


_SAMPLING = (
    ("temperature", float, "0: greedy"),
    ("top-p", float, "keep the smallest set of tokens with this probability"),
    ("top-k", int, "keep this many tokens"),
    ("min-p", float, "drop tokens below this share of the most likely one"),
    ("repetition-penalty", float, "above 1: fewer repetitions of prompt and output"),
    ("presence-penalty", float, "subtracted once for tokens already in the output"),
    ("frequency-penalty", float, "subtracted for each time a token is in the output"),
    ("min-tokens", int, "no ending before this many tokens"),
    ("max-tokens", int, "end after this many tokens"),
    ("n", int, "samples per prompt"),
    ("seed", int, "same seed, same text"),
    ("logprobs", int, "report this many alternatives per token (0: its own only)"),
)


def target_options(args: argparse.Namespace) -> dict[str, Any]:
    """Return the keyword arguments of `LLM` that say which target is run, and how."""
    names = ("model", "dtype", "quantize", "device", "max_model_len", "target")
    return {name: getattr(args, name) for name in names}


def llm_options(args: argparse.Namespace) -> dict[str, Any]:
    """Return the keyword arguments of `LLM` for parsed options."""
    options = target_options(args) | {"verify": args.verify}
    if args.speculative_config is not None:
        for flag in ("drafter", "draft_tokens"):
            if getattr(args, flag) is not None:
                raise RequestError(f"--speculative-config and --{flag.replace('_', '-')} say the same thing; give one")
        values = read_json(args.speculative_config, "--speculative-config")
        check_places(from_speculative_config(values).spec)
        return options | {"speculative_config": values}
    count = "auto" if args.draft_tokens is None else args.draft_tokens
    spec = drafter_spec(args)
    check_places(spec)
    return options | {"drafter": spec, "draft_tokens": count}


def drafter_spec(args: argparse.Namespace) -> str:
    """Return the drafter that was asked for; an empty one is refused where it is read, it does not mean auto."""
    return "auto" if args.drafter is None else str(args.drafter)


def check_verify(args: argparse.Namespace) -> None:
    """Refuse a rule that would have nothing to verify; coupled has an effect all the same: it is other noise."""
    off = args.draft_tokens == 0 or (args.drafter or "").strip() == "none"
    if off and args.verify not in ("auto", "coupled"):
        raise RequestError(f"--verify {args.verify} has no effect without drafts; leave it out, or give a --drafter")


def refuse_idle(args: argparse.Namespace, names: Iterable[str], why: str) -> None:
    """Refuse the first of the options that was given although it has no effect."""
    for name in args.given:
        if name in names:
            raise RequestError(f"--{name.replace('_', '-')} has no effect {why}")


def sampling_params(given: Mapping[str, Any]) -> SamplingParams:
    """Return `SamplingParams`; a value outside its limits is named as the option it came from."""
    for name, value in given.items():
        fits, works = LIMITS[name]
        if not fits(value):
            said = " ".join(map(repr, value)) if name == "stop" else value
            raise RequestError(f"--{name.replace('_', '-')} {said} cannot be used: give {works}")
    return SamplingParams(**given)


def sampling_options(args: argparse.Namespace) -> dict[str, Any]:
    """Return the fields of `SamplingParams` that were given."""
    names = [name.replace("-", "_") for name, _, _ in _SAMPLING] + ["stop", "ignore_eos"]
    given = {name: getattr(args, name, None) for name in names}
    if args.logit_bias is not None:
        given["logit_bias"] = _logit_bias(args.logit_bias)
    return {name: value for name, value in given.items() if value is not None}


def read_json(text: str, what: str) -> Any:
    """Parse JSON given on the command line; the error says where it breaks."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as e:
        raise RequestError(f"{what} is not valid JSON: {e.msg} at character {e.pos}: {text!r}") from None


def _logit_bias(text: str) -> dict[int, float]:
    try:
        if text.lstrip().startswith("{"):
            return {int(k): float(v) for k, v in read_json(text, "--logit-bias").items()}
        return {int(k): float(v) for k, _, v in (part.partition(":") for part in text.split(","))}
    except (ValueError, TypeError) as e:
        if isinstance(e, RequestError):
            raise
        raise RequestError(f'--logit-bias {text!r} must look like 42:-100,7:2.5 or {{"42": -100}}') from None


def _count(text: str) -> int | str | None:
    try:
        return text if text == "auto" else draft_tokens_of(int(text))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number, 0 to 256, or 'auto'") from None


def _help_table(table: Any) -> str:
    return "; ".join(f"{name}: {entry.summary}" for name, entry in table.items())


def say(text: str) -> None:
    """Print a line for people: to stderr, so that stdout stays parseable."""
    print(text, file=sys.stderr, flush=True)


@contextmanager
def progress_bar() -> Iterator[Callable[[str, int, int], None]]:
    """Show a bar on a terminal's stderr; yields what is called with (what, done, total)."""
    from tqdm import tqdm

    with tqdm(file=sys.stderr, disable=not sys.stderr.isatty(), leave=False) as bar:

        def show(what: str, done: int, total: int) -> None:
            bar.total, bar.n = total, done
            bar.set_description_str(what)

        yield show
