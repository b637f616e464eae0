"""The prompts of a benchmark, by task: the shipped suites (`SUITES`), or a JSONL file of the user's.

In: a name or a path. Out: prompts whose kind is their task. A line of a file holds chat `messages`, a list of `turns`
(as in MT-bench and Spec-Bench; the first is measured), or one text as `prompt`, `question`, `text` or `instruction`;
`category` or `task` names its task and `question_id`, `task_id` or `id` names it. No model here.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from slipstream.config import choose, nearest
from slipstream.measure.workloads import KINDS, Prompt, load_prompts
from slipstream.types import RequestError, WorkError

SUITES = ("demo", "peers", *KINDS)
KNOWN = f"{', '.join(SUITES)}, or the path of a JSONL file"  # in every help and error
_TEXTS = ("prompt", "question", "text", "instruction")
_TASKS = ("category", "task", "kind")
_NAMES = ("question_id", "task_id", "id")


@dataclass(frozen=True)
class Suite:
    """A benchmark's prompts. `later_turns` counts the turns that were left out: only the first of each is measured."""

    name: str
    prompts: list[Prompt]
    later_turns: int = 0

    @property
    def tasks(self) -> list[str]:
        """The tasks, in order of appearance."""
        return list(dict.fromkeys(p.kind for p in self.prompts))

    def of_task(self, task: str | None) -> Suite:
        """Return only the prompts of a task; None: all."""
        if task is None:
            return self
        choose("task", task, self.tasks)
        return dataclasses.replace(self, prompts=[p for p in self.prompts if p.kind == task])

    def limited(self, count: int | None) -> Suite:
        """Return at most `count` prompts, taken from the tasks in turn so that all are there; the order stays."""
        if count is None or count >= len(self.prompts):
            return self
        if count < 1:
            raise RequestError(f"limit={count} must be at least 1")
        groups = [[p for p in self.prompts if p.kind == task] for task in self.tasks]
        deepest = max(map(len, groups))
        dealt = [group[k] for k in range(deepest) for group in groups if k < len(group)]
        kept = {p.id for p in dealt[:count]}
        return dataclasses.replace(self, prompts=[p for p in self.prompts if p.id in kept])


def load_suite(name: str) -> Suite:
    """Return a shipped suite by name, or read a JSONL file."""
    if name in SUITES:
        return Suite(name, load_prompts(name) if name in KINDS else list(_shipped(name)))
    path = Path(name).expanduser()
    if path.suffix in (".jsonl", ".json") or path.exists():
        return read_suite(path)
    raise RequestError(f"unknown suite {name!r}{nearest(name, SUITES)}; available: {KNOWN}")


def read_suite(path: Path) -> Suite:
    """Read a JSONL file of prompts; a line that holds none is an error that names it."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as e:
        raise RequestError(f"suite {path} cannot be read: {e}") from e
    found: list[Prompt] = []
    later, taken = 0, set()
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        item = _parsed(line, f"suite {path}, line {number}")
        prompt = _prompt(item, f"suite {path}, line {number}", path.stem, number)
        while prompt.id in taken:  # ids of joined files may repeat
            prompt = dataclasses.replace(prompt, id=f"{prompt.id}-{number}")
        taken.add(prompt.id)
        found.append(prompt)
        later += max(0, len(item["turns"]) - 1) if isinstance(item.get("turns"), list) else 0
    if not found:
        raise RequestError(f"suite {path} holds no prompts: give a JSONL file with one prompt per line")
    return Suite(path.name, found, later)


def _shipped(name: str) -> Iterator[Prompt]:
    """Yield a shipped suite: lines of its own, and lines that use a prompt of `workloads` or of `demo` by its id."""
    known = {p.id: p for p in (*load_prompts(), *(_shipped("demo") if name != "demo" else ()))}
    text = resources.files("slipstream.measure").joinpath("prompts", f"{name}.jsonl").read_text(encoding="utf-8")
    for line in text.splitlines():
        item = json.loads(line)
        if "use" in item:
            yield dataclasses.replace(known[item["use"]], kind=item["task"])
        else:
            yield Prompt(item["id"], item["task"], item["messages"])


def _parsed(line: str, where: str) -> dict[str, Any]:
    try:
        item = json.loads(line)
    except json.JSONDecodeError as e:
        raise RequestError(f"{where} is not valid JSON: {e.msg} at character {e.pos}") from None
    if not isinstance(item, dict):
        raise RequestError(f"{where} must be a JSON object, not {type(item).__name__}")
    return item


def _prompt(item: dict[str, Any], where: str, stem: str, number: int) -> Prompt:
    task = next((str(item[key]) for key in _TASKS if item.get(key)), stem)
    name = next((str(item[key]) for key in _NAMES if item.get(key) is not None), str(number))
    return Prompt(name, task, _messages(item, where))


def _messages(item: dict[str, Any], where: str) -> list[dict[str, str]]:
    if isinstance(item.get("messages"), list) and item["messages"]:
        found: list[dict[str, str]] = item["messages"]
        if all(isinstance(m, dict) and isinstance(m.get("content"), str) and "role" in m for m in found):
            return found
        raise RequestError(f"{where}: messages must be a list of objects with role and content")
    turns = item.get("turns")
    text = turns[0] if isinstance(turns, list) and turns else next((item[k] for k in _TEXTS if k in item), None)
    if not isinstance(text, str) or not text.strip():
        raise RequestError(f"{where} holds no prompt: it needs messages, turns or one of {', '.join(_TEXTS)}")
    return [{"role": "user", "content": text}]


def encode(llm: Any, prompt: Prompt) -> list[int]:
    """Return a prompt's ids: through the chat template if the model has one, else its texts as they are."""
    if llm.tokenizer.has_chat_template:
        ids: list[int] = llm.encode(prompt.messages)
        return ids
    return list(llm.encode("\n\n".join(m["content"] for m in prompt.messages)))


def check_room(llm: Any, prompts: dict[str, list[int]], max_tokens: int) -> None:
    """Raise unless every prompt and its output fit the context."""
    for name, ids in prompts.items():
        if len(ids) + max_tokens > llm.max_model_len:
            raise WorkError(
                f"prompt {name} has {len(ids)} tokens: with {max_tokens} more it does not fit a context of "
                f"{llm.max_model_len}; raise --max-model-len or lower --max-tokens"
            )
