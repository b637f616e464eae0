"""Where prompts come from: arguments, files, stdin, chat messages. In: parsed options. Out: prompts for `LLM`."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from slipstream.types import RequestError


class UserText(str):
    """A prompt that a person typed, not yet wrapped in a chat template."""


def add_prompt_options(parser: argparse.ArgumentParser) -> None:
    """Declare the ways to give a prompt."""
    group = parser.add_argument_group("prompt")
    group.add_argument("prompt", nargs="?", help="the text to complete; - reads stdin")
    group.add_argument("--prompt-file", action="append", metavar="FILE", help="read a prompt from a file (repeatable)")
    group.add_argument("--messages", metavar="FILE", help="chat messages, a JSON list of {role, content}")
    group.add_argument("--raw", action="store_true", help="take prompts as they are, not as a user's message")


def read_prompts(args: argparse.Namespace) -> list[Any]:
    """Return the prompts in the order given: argument, files, messages."""
    texts: list[str] = []
    if args.prompt is not None:
        texts.append(_stdin() if args.prompt == "-" else args.prompt)
    texts += [_read(name) for name in args.prompt_file or []]
    if args.raw and not texts:
        raise RequestError("--raw needs a prompt to take as it is: give PROMPT, --prompt-file or - for stdin")
    if "" in texts:
        raise RequestError("the prompt is empty: at least one token is needed to start from")
    prompts: list[Any] = [text if args.raw else UserText(text) for text in texts]
    if args.messages is not None:
        prompts.append(_messages(args.messages))
    if not prompts:
        raise RequestError("no prompt given: give PROMPT, --prompt-file, --messages, or - for stdin")
    return prompts


def for_model(prompts: list[Any], templated: bool) -> list[Any]:
    """Wrap a person's texts in the model's chat template, if it has one: a model trained to answer expects it."""
    return [[{"role": "user", "content": str(p)}] if templated and isinstance(p, UserText) else p for p in prompts]


def _read(name: str) -> str:
    return _stdin() if name == "-" else read_file(name)


def read_file(name: str) -> str:
    """Return the text of a file."""
    try:
        return Path(name).expanduser().read_text(encoding="utf-8")
    except UnicodeDecodeError as e:
        raise RequestError(f"file {name!r} is not UTF-8 text: {e.reason} at byte {e.start}") from None
    except OSError as e:
        raise RequestError(f"file {name!r} cannot be read: {e.strerror}") from None


def _stdin() -> str:
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as e:
        raise RequestError(f"stdin is not UTF-8 text: {e.reason} at byte {e.start}") from None


def _messages(name: str) -> list[dict[str, Any]]:
    text = _read(name)
    try:
        found = json.loads(text)
    except json.JSONDecodeError as e:
        raise RequestError(f"messages file {name!r} is not valid JSON: {e.msg} at line {e.lineno}") from None
    if isinstance(found, dict) and isinstance(found.get("messages"), list):
        found = found["messages"]
    well_formed = isinstance(found, list) and found and all(isinstance(m, dict) and "role" in m for m in found)
    if not well_formed:
        raise RequestError(f'messages file {name!r} must be a list such as [{{"role": "user", "content": "..."}}]')
    messages: list[dict[str, Any]] = found
    return messages
