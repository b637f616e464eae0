"""`slipstream audit`: judge whether the output of a model, drafter, rule and sampling is the model's own.

The first line of stdout is the verdict; exit status 1 if any check failed, or if a planted error went unseen.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

from slipstream.cli import options
from slipstream.measure.report_file import check_writable, write_whole
from slipstream.types import RequestError

if TYPE_CHECKING:
    from slipstream.measure.audit import Audit
    from slipstream.types import SamplingParams

TOKENS, QUICK_TOKENS, LEAST_TOKENS = 6000, 1000, 100
_IDLE = ("n", "logprobs", "stop")


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    options.add_model_options(parser)
    options.add_drafter_options(parser)
    options.add_sampling_options(parser)
    group = parser.add_argument_group("audit")
    group.add_argument(
        "--tokens", type=int, metavar="N", help=f"sampled tokens to watch ({TOKENS}, quick {QUICK_TOKENS})"
    )
    group.add_argument(
        "--quick", action="store_true", help="a minute or two: fewer tokens, and proofs of the rule in use only"
    )
    group.add_argument("--json", action="store_true", help="the certificate as one JSON object on stdout, nothing else")
    group.add_argument("--output", metavar="FILE", help="write the certificate as JSON")
    group.add_argument("--report", metavar="FILE", help="write the certificate as one HTML page")


def run(args: argparse.Namespace) -> int:
    """Run the command and return its exit status."""
    from slipstream.cli.generate import open_llm, say_notes

    given = options.sampling_options(args)
    for name in _IDLE:
        if name in given:
            raise RequestError(f"--{name} has no effect in an audit; leave it out")
    params = options.sampling_params(given)
    tokens = args.tokens if args.tokens is not None else (QUICK_TOKENS if args.quick else TOKENS)
    if tokens < LEAST_TOKENS:
        raise RequestError(f"--tokens {tokens} is too few to test anything; give at least {LEAST_TOKENS}")
    for name in (args.output, args.report):
        if name:
            check_writable(name)
    llm = open_llm(args)
    say_notes(llm)
    audit = _audit(llm, params, tokens, args.quick)
    _write(audit, args)
    return 0 if audit.passed else 1


def _audit(llm: Any, params: SamplingParams, tokens: int, quick: bool) -> Audit:
    from tqdm import tqdm

    from slipstream.measure.audit import AuditOptions, run_audit

    with tqdm(total=tokens + tokens // 4, unit="token", file=sys.stderr, disable=not sys.stderr.isatty()) as bar:

        def say(what: str, count: int) -> None:
            bar.set_description(what[:44], refresh=False)
            bar.update(min(count, bar.total - bar.n))

        return run_audit(llm, AuditOptions(params, tokens, quick), say)


def _write(audit: Audit, args: argparse.Namespace) -> None:
    from slipstream.measure.audit.certificate import text

    certificate = json.dumps(audit.as_dict(), ensure_ascii=False)
    if args.output:
        write_whole(args.output, certificate + "\n")
    if args.report:
        from slipstream.measure.audit.html import html

        write_whole(args.report, html(audit))
    print(certificate if args.json else "\n".join(text(audit)))
