"""Where prompts come from: arguments, files, stdin, chat messages. In: parsed options. Out: prompts for `LLM`."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from slipstream.types import RequestError


def add_prompt_options(parser: argparse.ArgumentParser) -> None:
    """Declare the ways to give a prompt."""
    group = parser.add_argument_group("prompt")
    group.add_argument("prompt", nargs="?", help="the text to complete; - reads stdin")
    group.add_argument("--prompt-file", action="append", metavar="FILE", help="read a prompt from a file (repeatable)")
    group.add_argument("--messages", metavar="FILE", help="chat messages, a JSON list of {role, content}")
    group.add_argument("--chat", action="store_true", help="give each prompt as a user's message (chat template)")


def read_prompts(args: argparse.Namespace) -> list[Any]:
    """Return the prompts in the order given: argument, files, messages."""
    texts: list[str] = []
    if args.prompt is not None:
        texts.append(_stdin() if args.prompt == "-" else args.prompt)
    texts += [_read(name) for name in args.prompt_file or []]
    if args.chat and not texts:
        raise RequestError("--chat needs a prompt to wrap: give PROMPT, --prompt-file or - for stdin")
    prompts: list[Any] = [[{"role": "user", "content": text}] if args.chat else text for text in texts]
    if args.messages is not None:
        prompts.append(_messages(args.messages))
    if not prompts:
        raise RequestError("no prompt given: give PROMPT, --prompt-file, --messages, or - for stdin")
    return prompts


def _read(name: str) -> str:
    if name == "-":
        return _stdin()
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
