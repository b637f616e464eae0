"""Chat messages to one prompt text, by the model's own Jinja template, rendered in a sandbox.

Filters, globals and white-space rules are those chat templates are written for (transformers' apply_chat_template).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from slipstream.types import RequestError, WorkError


class ChatTemplate:
    """One model's template; `variants` maps names to sources, one of them "default"."""

    def __init__(self, variants: Mapping[str, str], special_tokens: Mapping[str, str]) -> None:
        self._variants = dict(variants)
        self._special_tokens = dict(special_tokens)
        self._compiled: dict[str, Any] = {}

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Any = None,
        **kwargs: Any,
    ) -> str:
        """Return the prompt text; RequestError when messages are malformed or the template refuses them."""
        import jinja2

        checked = check_messages(messages)
        settings = {**self._special_tokens, "documents": None, **kwargs}
        template = self._template("tool_use" if tools and "tool_use" in self._variants else "default")
        try:
            return str(
                template.render(messages=checked, tools=tools, add_generation_prompt=add_generation_prompt, **settings)
            )
        except (jinja2.TemplateError, TypeError, ValueError, KeyError, AttributeError) as error:
            raise RequestError(f"messages: the model's chat template refuses them ({error})") from error

    def _template(self, name: str) -> Any:
        if name not in self._compiled:
            import jinja2

            try:
                self._compiled[name] = _environment().from_string(self._variants[name])
            except jinja2.TemplateError as error:
                raise WorkError(f"chat template {name!r} is not valid Jinja ({error})") from error
        return self._compiled[name]


def find_template(folder: Path, settings: Mapping[str, Any], special_tokens: Mapping[str, str]) -> ChatTemplate | None:
    """Return the template of a model folder, or None: from chat_template.jinja, else the tokenizer's settings."""
    file = folder / "chat_template.jinja"
    source: Any = file.read_text(encoding="utf-8") if file.is_file() else settings.get("chat_template")
    if not source:
        return None
    variants = {"default": source} if isinstance(source, str) else {v["name"]: v["template"] for v in source}
    if "default" not in variants:
        variants["default"] = next(iter(variants.values()))
    return ChatTemplate(variants, special_tokens)


def check_messages(messages: Any) -> list[dict[str, Any]]:
    """Return a copy of chat messages with text parts joined and empty fields dropped, or raise RequestError."""
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes) or not messages:
        raise RequestError("messages: a non-empty list of {'role': ..., 'content': ...} is needed")
    return [_checked(message, i) for i, message in enumerate(messages)]


def _checked(message: Any, place: int) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise RequestError(f"messages[{place}]: an object with 'role' and 'content' is needed, not {message!r:.60}")
    if not isinstance(message.get("role"), str) or not message["role"]:
        raise RequestError(
            f"messages[{place}]: 'role' must be a string such as 'user', not {message.get('role')!r:.60}"
        )
    content = message.get("content")
    if content is None and not message.get("tool_calls"):
        raise RequestError(f"messages[{place}]: 'content' is missing")
    if content is not None and not isinstance(content, str):
        content = _joined(content, place)
    # a template would write an explicit None out as text
    return {**{key: value for key, value in message.items() if value is not None}, "content": content or ""}


def _joined(parts: Any, place: int) -> str:
    if not isinstance(parts, Sequence):
        raise RequestError(f"messages[{place}]: 'content' must be a string, not {type(parts).__name__}")
    for part in parts:
        if not isinstance(part, Mapping) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            kind = part.get("type") if isinstance(part, Mapping) else part
            raise RequestError(f"messages[{place}]: content part {kind!r:.60} is not supported; only 'text' parts are")
    return "".join(part["text"] for part in parts)


def _environment() -> Any:
    from jinja2 import TemplateError, nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class GenerationBlock(Extension):
        """`{% generation %}...{% endgeneration %}` marks training spans; for a prompt its body is all that counts."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Any) -> list[nodes.Node]:
            next(parser.stream)
            return list(parser.parse_statements(("name:endgeneration",), drop_needle=True))

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    env = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationBlock, loopcontrols]
    )
    env.filters["tojson"] = _tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return env


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False
) -> str:
    # Jinja's own filter escapes HTML, which models have never seen
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
