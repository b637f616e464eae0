"""`slipstream explain`: generate once and draw every round on one page, with a summary in the terminal.

stdout carries the summary (with --json one object, nothing else); notes and bars go to stderr.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

from slipstream.cli import options
from slipstream.cli.options import say
from slipstream.cli.prompts import add_prompt_options, for_model, read_prompts
from slipstream.types import RequestError

if TYPE_CHECKING:
    from slipstream.measure.explain import Story
    from slipstream.measure.explain_rules import Summary
    from slipstream.types import SamplingParams

TOKENS = 32


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    add_prompt_options(parser)
    options.add_model_options(parser)
    options.add_drafter_options(parser)
    options.add_sampling_options(parser, TOKENS)
    group = parser.add_argument_group("output")
    group.add_argument("--report", metavar="FILE", help="write the page, HTML, here")
    group.add_argument("--json", action="store_true", help="one JSON object on stdout, nothing else")


def run(args: argparse.Namespace) -> int:
    """Run the command and return its exit status."""
    prompts = read_prompts(args)
    params = options.sampling_params({"max_tokens": TOKENS} | options.sampling_options(args))
    options.check_verify(args)
    options.refuse_idle(args, ("logprobs",), "in explain; use generate")
    if len(prompts) != 1 or params.n != 1:
        raise RequestError(f"explain draws one generation, not {len(prompts)} prompts of {params.n} samples")
    if params.max_tokens is None or params.max_tokens > 512:
        raise RequestError(f"--max-tokens {params.max_tokens} is too long for one page; use 512 or less")
    if args.report:
        from slipstream.measure.report_file import check_writable

        check_writable(args.report)
    story = _generate(args, prompts[0], params)
    _show(args, story)
    return 0


def _generate(args: argparse.Namespace, prompt: Any, params: SamplingParams) -> Story:
    from tqdm import tqdm

    from slipstream.cli.generate import say_notes
    from slipstream.llm import LLM
    from slipstream.measure.explain import explain

    llm = LLM(**(options.llm_options(args) | {"max_rows": 1}))
    [prompt] = for_model([prompt], llm.tokenizer.has_chat_template)
    llm.check([prompt], params)
    say_notes(llm)
    with tqdm(desc="rounds", unit="round", file=sys.stderr, disable=not sys.stderr.isatty(), leave=False) as bar:
        return explain(llm, prompt, params, lambda: bar.update(1))


def _show(args: argparse.Namespace, story: Story) -> None:
    from slipstream.measure.explain_rules import summarise

    found = summarise(story)
    if args.report:
        from slipstream.measure.explain_page import story_page
        from slipstream.measure.report_file import write_whole

        write_whole(args.report, story_page(story, found))
    if args.json:
        from dataclasses import asdict

        print(json.dumps(story.as_dict() | {"summary": asdict(found)}, ensure_ascii=False))
    else:
        print("\n".join([story.text, "", *summary_lines(found)]))
    if args.report:
        say(f"report: {args.report}")


def summary_lines(found: Summary) -> list[str]:
    """Return the summary as lines for a terminal."""
    lines = [
        f"{found.tokens} tokens in {found.rounds} target passes: {found.tokens_per_round:.2f} per pass (own included)",
        f"{found.kept} of {found.drafted} drafted tokens stood; {found.no_draft:.0%} of the rounds had no draft",
    ]
    for depth, reached, kept in found.by_depth:
        lines.append(f"  drafted token {depth}: {kept:>3} of {reached:>3} {'█' * round(20 * kept / reached)}")
    if found.refused:
        worst = ", ".join(f"{token!r} x{times}" for token, times, _, _ in found.refused[:5])
        lines.append(f"refused most: {worst}")
    lines += [f"- {reason}" for reason in found.reasons]
    return lines
