"""`slipstream chat`: talk in the terminal. Tokens are coloured by who proposed them: the target's own, or a drafter's.

Ctrl-C stops an answer (a second one, or Ctrl-D, leaves). Without a terminal it reads one message per line.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from slipstream.cli import options
from slipstream.cli.generate import open_llm, sample_json, say_notes, stats_line
from slipstream.cli.options import say
from slipstream.cli.paint import Painter
from slipstream.types import RequestError

if TYPE_CHECKING:
    from slipstream.llm import LLM, Completion
    from slipstream.types import SamplingParams

HELP = "/help this list   /reset forget the conversation   /stats of the whole session   /quit leave (or Ctrl-D)"


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    options.add_model_options(parser)
    options.add_drafter_options(parser)
    options.add_sampling_options(parser)
    group = parser.add_argument_group("chat")
    group.add_argument("--system", metavar="TEXT", help="a system message to begin with")
    group.add_argument("--json", action="store_true", help="one JSON object per answer on stdout, nothing else")
    group.add_argument("--trace", action="store_true", help="draw each round on stderr")


def run(args: argparse.Namespace) -> int:
    """Run the command and return its exit status."""
    params = options.sampling_params(options.sampling_options(args))
    options.check_verify(args)
    if params.n != 1 or params.logprobs is not None:
        raise RequestError("--n and --logprobs have no effect in chat; use generate")
    llm = open_llm(args)
    say_notes(llm)
    if args.trace:
        from slipstream.cli.trace import Tracer

        llm.engine.trace = Tracer(llm.tokenizer)
    Chat(llm, params, args.system, as_json=args.json, streamed=not (args.json or args.trace)).loop()
    return 0


class Chat:
    """One conversation and its totals."""

    def __init__(
        self, llm: LLM, params: SamplingParams, system: str | None, *, as_json: bool = False, streamed: bool = True
    ) -> None:
        self._llm, self._params = llm, params
        self._system = [{"role": "system", "content": system}] if system else []
        self._messages: list[dict[str, Any]] = list(self._system)
        self._json, self._streamed = as_json, streamed
        self._paint = Painter(sys.stdout)
        self._answers: list[Completion] = []

    def loop(self) -> None:
        """Read and answer until the input ends, /quit, or two Ctrl-C in a row."""
        interactive = sys.stdin.isatty()
        if interactive:
            say(f"{self._llm.model}, drafter {self._llm.drafter}. {HELP}")
        warned = False
        while True:
            try:
                line = self._read(interactive)
                if line is None or not self._handle(line.strip()):
                    return
                warned = False
            except KeyboardInterrupt:
                say("" if warned else "\n(stopped; Ctrl-C again or Ctrl-D leaves)")
                if warned or not interactive:
                    raise
                warned = True

    def _read(self, interactive: bool) -> str | None:
        try:
            if not interactive:
                return next(sys.stdin, None)
            if self._json:  # the prompt sign would be on stdout
                print("> ", end="", file=sys.stderr, flush=True)
            return input("" if self._json else "> ")
        except EOFError:
            say("")
            return None

    def _handle(self, line: str) -> bool:
        if line.startswith("/"):
            return self._command(line.split()[0])
        if line:
            self._turn(line)
        return True

    def _command(self, name: str) -> bool:
        if name == "/reset":
            self._messages = list(self._system)
            say("conversation forgotten")
        elif name == "/stats":
            self._say_totals()
        elif name in ("/quit", "/exit"):
            return False
        else:
            say(HELP if name == "/help" else f"unknown command {name}: {HELP}")
        return True

    def _turn(self, text: str) -> None:
        messages = [*self._messages, {"role": "user", "content": text}]
        said: list[str] = []
        try:
            done = self._answer(messages, said)
        except RequestError as e:
            say(f"slipstream: {e} (/reset starts again)")
            return
        finally:
            if said:  # a stopped answer stays in the conversation as far as it got
                self._messages = [*messages, {"role": "assistant", "content": "".join(said)}]
        if done.error:
            say(f"slipstream: {done.error}")
        self._answers.append(done)
        say(stats_line(self._llm, done.stats, len(done.token_ids)))

    def _answer(self, messages: list[dict[str, Any]], said: list[str]) -> Completion:
        done: Completion | None = None
        try:
            for delta in self._llm.stream(messages, self._params):
                said.append(delta.text)
                if self._streamed:
                    self._write(delta.text, delta.tokens)
                done = delta.completion or done
        finally:
            if self._streamed:
                sys.stdout.write("\n")
                sys.stdout.flush()
        assert done is not None
        if self._json:
            import json

            print(json.dumps(sample_json(self._llm, done, self._params), ensure_ascii=False), flush=True)
        elif not self._streamed:
            print(done.text, flush=True)
        return done

    def _write(self, text: str, tokens: list[Any]) -> None:
        """Paint each token's own text where the pieces add up to the round's text; else the text as a whole."""
        if self._paint.on and text:
            pieces = [(self._llm.tokenizer.decode([t.id], skip_special=True), t.by) for t in tokens]
            if "".join(piece for piece, _ in pieces) != text:
                drafted = any(t.by != "target" for t in tokens)
                pieces = [(text, "draft" if drafted else "target")]
            text = "".join(piece if by == "target" else self._paint(piece, "green") for piece, by in pieces)
        sys.stdout.write(text)
        sys.stdout.flush()

    def _say_totals(self) -> None:
        stats = [a.stats for a in self._answers]
        tokens = sum(len(a.token_ids) for a in self._answers)
        seconds = sum(s["draft_seconds"] + s["target_seconds"] + s["other_seconds"] for s in stats)
        passes, drafted, accepted = (
            sum(s[key] for s in stats) for key in ("target_passes", "num_draft_tokens", "num_accepted_tokens")
        )
        say(
            f"{len(stats)} answers, {tokens} tokens, {tokens / seconds if seconds else 0.0:.1f} tokens/s decoding, "
            f"{tokens / passes if passes else 0.0:.2f} tokens per target pass (own token included), "
            f"{accepted} of {drafted} drafted accepted"
        )
