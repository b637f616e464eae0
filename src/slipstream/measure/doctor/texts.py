"""Texts that the target writes itself, and what it felt at every token of them.

In: an opened `LLM` and prompts. Out: `Text`s with every tap that any reading needs, from one pass of the target over
each; no reading makes the target run again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from slipstream.types import RequestError, SamplingParams

if TYPE_CHECKING:
    from torch import Tensor

    from slipstream.llm import LLM

Tick = Callable[[], object]


@dataclass(frozen=True)
class Text:
    """A prompt of `prompt` tokens and the target's greedy answer; `taps` hold one row for each token but the last."""

    ids: list[int]
    prompt: int
    taps: Mapping[int, Tensor]

    @property
    def written(self) -> int:
        """Tokens the target wrote."""
        return len(self.ids) - self.prompt


def write(llm: LLM, prompts: Seq[Any], tokens: int, taps: Seq[int], *, chat: bool) -> list[Text]:
    """Let the target answer each prompt with at most `tokens` tokens; `chat` puts it through the chat template.

    A prompt too long for the context loses its beginning. Raises `RequestError` if nothing was written.
    """
    room = llm.max_model_len - tokens
    if room < 1:
        raise RequestError(f"tokens={tokens} leaves no room for a prompt in a context of {llm.max_model_len}")
    given = [llm.tokenizer.chat(p.messages) if chat else _plain(llm, p) for p in prompts]
    ids = [list(row)[-room:] for row in given if row]
    params = SamplingParams(max_tokens=tokens)
    done = llm.with_drafter("none").generate(ids, params)
    texts = [_felt(llm, row, list(c.token_ids), taps) for row, c in zip(ids, done, strict=True)]
    return [text for text in texts if text.written > 1]


def _plain(llm: LLM, prompt: Any) -> list[int]:
    return list(llm.tokenizer.encode("\n\n".join(m["content"] for m in prompt.messages)))


def _felt(llm: LLM, prompt: list[int], answer: list[int], taps: Seq[int]) -> Text:
    """Run the target once over a whole text on an idle slot."""
    ids, target = prompt + answer, llm.engine.target
    with llm.opened.lock, torch.inference_mode():
        before = target.taps  # type: ignore[attr-defined]
        try:
            target.taps = tuple(taps)  # type: ignore[attr-defined]
            felt = target.prefill(0, ids[:-1])
        finally:
            target.release(0)
            target.taps = before  # type: ignore[attr-defined]
    return Text(ids, len(prompt), felt)
