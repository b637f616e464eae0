"""The command line: pick a command, run it, turn what went wrong into one line and an exit status.

Status 0: done. 1: a check failed. 2: the request was wrong. 3: the work could not be finished. 130: interrupted.
A command's module is imported only when it is asked for, so that `--help` answers at once.
"""

from __future__ import annotations

import importlib
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from slipstream.types import RequestError, WorkError

COMMANDS = {
    "generate": ("slipstream.cli.generate", "complete prompts, with and without speculation"),
    "chat": ("slipstream.cli.chat", "talk to a model; see who proposed each token"),
    "predict": ("slipstream.cli.predict_cmd", "how much faster would it be? from numbers, or from your own text"),
    "tune": ("slipstream.cli.tune_cmd", "which drafter and how many tokens pay on this machine, for your prompts"),
    "explain": ("slipstream.cli.explain_cmd", "one prompt, one page: every round of speculative decoding drawn"),
    "bench": ("slipstream.cli.bench_cmd", "measure speed-ups on this machine, beside plain decoding and other engines"),
    "audit": ("slipstream.cli.audit_cmd", "prove and test that the output is the model's own"),
    "convert": ("slipstream.cli.convert_cmd", "write a drafter in another public layout, proven to be the same"),
    "doctor": ("slipstream.cli.doctor_cmd", "is a drafter read as it was trained? other readings, measured"),
    "calibrate": ("slipstream.cli.calibrate_cmd", "fit a DSpark drafter's confidence to what its target accepts"),
    "models": ("slipstream.cli.models_cmd", "list, pull and locate models of the catalogue"),
    "info": ("slipstream.cli.info", "describe this machine, a model or a drafter"),
}
PLANNED = ("serve", "train")
DONE, FAILED, WRONG, UNFINISHED, INTERRUPTED = 0, 1, 2, 3, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    # threads that spin while they wait make a busy machine several times slower; read when torch is loaded
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    words = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in words
    words = [word for word in words if word != "--debug"]
    with _warnings_in_one_line():
        return _guarded(words, debug)


def _guarded(words: list[str], debug: bool) -> int:
    try:
        status = _dispatch(words)
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        _complain("interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        _silence_stdout()
        return DONE
    except RequestError as e:
        return _report(e, WRONG, debug)
    except WorkError as e:
        return _report(e, UNFINISHED, debug)
    except MemoryError as e:
        return _report(WorkError(f"out of memory: {e}; lower --max-model-len"), UNFINISHED, debug)
    except Exception as e:
        if debug:
            raise
        _complain(f"unexpected {type(e).__name__}: {_one_line(str(e))}; run again with --debug for the details")
        return UNFINISHED


def _dispatch(words: list[str]) -> int:
    if not words:
        raise RequestError(f"no command given; available: {', '.join(COMMANDS)}; see 'slipstream --help'")
    if words[0] == "help" and len(words) > 1 and not words[1].startswith("-"):
        words = [words[1], "--help", *words[2:]]
    if words[0] in ("-h", "--help", "help"):
        print(_overview())
        return DONE
    if words[0] == "--version":
        from slipstream import __version__

        print(f"slipstream {__version__}")
        return DONE
    name, rest = words[0], words[1:]
    if name in PLANNED:
        raise RequestError(f"command {name!r} is not available yet; available: {', '.join(COMMANDS)}")
    if name not in COMMANDS:
        from slipstream.config import unknown

        raise unknown("option" if name.startswith("-") else "command", name, [*COMMANDS, "help", "--help", "--version"])
    return _run(importlib.import_module(COMMANDS[name][0]), name, rest)


def _run(module: Any, name: str, rest: list[str]) -> int:
    from slipstream.cli.options import Parser

    parser = Parser(prog=f"slipstream {name}", description=COMMANDS[name][1])
    module.declare(parser)
    try:
        args = parser.parse_args(rest)
    except SystemExit as e:  # argparse leaves after --help
        return int(e.code or 0)
    status: int = module.run(args)
    return status


def _overview() -> str:
    lines = ["usage: slipstream COMMAND [options]", "", "Lossless speculative decoding of language models.", ""]
    lines += [f"  {name:<10} {summary}" for name, (_, summary) in COMMANDS.items()]
    lines += ["", "'slipstream COMMAND --help' or 'slipstream help COMMAND' lists a command's options;"]
    lines += ["'--debug' with any command shows tracebacks; 'slipstream --version' the version"]
    lines += ["exit status: 0 done, 1 a check failed, 2 wrong request, 3 could not be finished"]
    return "\n".join(lines)


def _report(error: Exception, status: int, debug: bool) -> int:
    if debug:
        import traceback

        traceback.print_exception(error)
    _complain(_one_line(str(error)))
    return status


@contextmanager
def _warnings_in_one_line() -> Iterator[None]:
    """Say each warning once, without the place in the code: whoever runs a command is not its programmer."""
    before = warnings.showwarning
    said: set[str] = set()

    def show(message: Warning | str, *place: Any, **more: Any) -> None:
        text = _one_line(str(message))
        if text not in said:
            said.add(text)
            _complain(f"warning: {text}")

    warnings.showwarning = show
    try:
        yield
    finally:
        warnings.showwarning = before


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _complain(text: str) -> None:
    try:
        print(f"slipstream: {text}", file=sys.stderr, flush=True)
    except OSError:
        return


def _silence_stdout() -> None:
    # the interpreter flushes stdout when it leaves, which would complain again
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
