"""`slipstream generate`: complete prompts, as text, as JSON, with each round drawn, or beside plain decoding.

stdout carries the result and nothing else; notes, statistics, traces and bars go to stderr.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

from slipstream.cli import options
from slipstream.cli.options import say
from slipstream.cli.prompts import add_prompt_options, for_model, read_prompts
from slipstream.types import WorkError

if TYPE_CHECKING:
    from slipstream.llm import LLM, Completion
    from slipstream.types import SamplingParams


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    add_prompt_options(parser)
    options.add_model_options(parser)
    options.add_drafter_options(parser)
    options.add_sampling_options(parser)
    group = parser.add_argument_group("output")
    group.add_argument("--json", action="store_true", help="one JSON object on stdout, nothing else")
    group.add_argument("--trace", action="store_true", help="draw each round on stderr")
    group.add_argument("--compare", action="store_true", help="run plain as well; speed-up only if the outputs agree")


def run(args: argparse.Namespace) -> int:
    """Run the command and return its exit status."""
    prompts = read_prompts(args)
    params = options.sampling_params(options.sampling_options(args))
    options.check_verify(args)
    llm = open_llm(args)
    prompts = for_model(prompts, llm.tokenizer.has_chat_template)
    llm.check(prompts, params)
    say_notes(llm)
    if args.trace:
        from slipstream.cli.trace import Tracer

        llm.engine.trace = Tracer(llm.tokenizer, several=len(prompts) * params.n > 1)
    if args.compare:
        from slipstream.cli.compare_cmd import run_compare

        return run_compare(llm, prompts, params, args.json)
    if args.json or args.trace or len(prompts) * params.n > 1:
        results = llm.generate(prompts, params, progress=not args.trace and sys.stderr.isatty())
        samples = [sample for result in results for sample in result.completions]
    else:
        samples = [_stream(llm, prompts[0], params)]
    if args.json:
        print(json.dumps(json_of(llm, samples, params), ensure_ascii=False))
    else:
        _print_text(llm, samples, streamed=not args.trace)
    raise_errors(samples)
    return 0


def open_llm(args: argparse.Namespace) -> LLM:
    """Load what the options name."""
    from slipstream.llm import LLM

    return LLM(**options.llm_options(args))


def say_notes(llm: LLM) -> None:
    """Pass on what people should know about what was loaded."""
    for note in llm.notes:
        say(f"slipstream: {note}")


def json_of(llm: LLM, samples: list[Completion], params: SamplingParams) -> dict[str, Any]:
    """Return the JSON object of one sample, or of several."""
    objects = [sample_json(llm, sample, params) for sample in samples]
    return objects[0] if len(objects) == 1 else {"completions": objects}


def sample_json(llm: LLM, sample: Completion, params: SamplingParams) -> dict[str, Any]:
    """Return the JSON object of one sample; `logprobs` and `error` are there only if asked for or needed."""
    found: dict[str, Any] = {
        "model": llm.model,
        "drafter": llm.drafter,
        "verify": llm.verify_for(params),
        "text": sample.text,
        "token_ids": sample.token_ids,
        "finish_reason": sample.finish_reason,
        "usage": {"prompt_tokens": sample.prompt_tokens, "completion_tokens": len(sample.token_ids)},
        "stats": sample.stats,
        "provenance": sample.provenance,
    }
    if sample.logprobs is not None:
        found["logprobs"] = sample.logprobs
    if sample.error is not None:
        found["error"] = sample.error
    return found


def raise_errors(samples: list[Completion]) -> None:
    """Turn a failed sample into the command's failure."""
    for sample in samples:
        if sample.error is not None:
            raise WorkError(sample.error)


def stats_line(llm: LLM, stats: dict[str, Any], tokens: int) -> str:
    """Return one line of statistics; a mean acceptance length includes the target's own token."""
    line = f"{tokens} tokens, {stats['tokens_per_second']:.1f} tokens/s decoding, drafter {llm.drafter}"
    if stats["num_draft_tokens"]:
        rate = 100 * stats["draft_acceptance_rate"]
        line += (
            f": {stats['mean_acceptance_length']:.2f} tokens per target pass (own token included), "
            f"{stats['num_accepted_tokens']} of {stats['num_draft_tokens']} drafted accepted ({rate:.0f} %)"
        )
    return line


def _stream(llm: LLM, prompt: Any, params: SamplingParams) -> Completion:
    done: Completion | None = None
    try:
        for delta in llm.stream(prompt, params):
            sys.stdout.write(delta.text)
            sys.stdout.flush()
            done = delta.completion or done
    except KeyboardInterrupt:
        sys.stdout.write("\n")
        raise
    sys.stdout.write("\n")
    assert done is not None
    return done


def _print_text(llm: LLM, samples: list[Completion], *, streamed: bool) -> None:
    several = len(samples) > 1
    for number, sample in enumerate(samples, 1):
        if several:
            print(f"--- {number}, sample {sample.index + 1}, {sample.finish_reason}")
        if several or not streamed:
            print(sample.text)
        sys.stdout.flush()
        if sample.logprobs is not None:
            _say_logprobs(llm, sample)
        say(stats_line(llm, sample.stats, len(sample.token_ids)))


def _say_logprobs(llm: LLM, sample: Completion) -> None:
    def show(token: int) -> str:
        return repr(llm.tokenizer.decode([token], skip_special=False))

    for entry in sample.logprobs or ():
        others = {k: v for k, v in (entry["top_logprobs"] or {}).items() if k != entry["token"]}
        tail = "".join(f"  {show(token)} {value:.3f}" for token, value in others.items())
        say(f"  {show(entry['token'])} {entry['logprob']:.3f}{'  |' + tail if tail else ''}")
