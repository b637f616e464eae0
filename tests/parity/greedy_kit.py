"""Judge greedy outputs without trusting the code under test: reference logits come from transformers in float32.

`Judge.worst_gap` is the near-tie certificate: one teacher-forced forward over prompt and output, and at every emitted
position how far below the highest logit the emitted token lies. `Scripted` drafts from a known output, right or wrong
on purpose, so that every accept length happens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from slipstream.drafters.chains import chain_draft
from slipstream.types import Draft, Needs, Rngs, Sequence

TAU = 1e-4  # float32, F.3


@dataclass
class Verdicts:
    """How many outputs equal the reference, how many differ within a near-tie, and the largest gap of those."""

    same: int = 0
    certified: int = 0
    largest: float = 0.0
    wrong: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.same} identical, {self.certified} certified near-ties (largest gap {self.largest:.2e})"


class Judge:
    """Reference logits of one model, in float32."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoModelForCausalLM

        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    @torch.inference_mode()
    def gaps(self, prompt: list[int], output: list[int]) -> Tensor:
        """Return how far each emitted token lies below the highest logit of its position, [T]."""
        ids = torch.tensor([prompt + output])
        z = self.model(ids, logits_to_keep=len(output) + 1).logits[0, :-1].float()  # [T, V]
        return z.max(-1).values - z.gather(1, torch.tensor(output)[:, None])[:, 0]

    def worst_gap(self, prompt: list[int], output: list[int]) -> float:
        """Return the largest of `gaps`: 0 when every token is the argmax."""
        return float(self.gaps(prompt, output).max())

    def compare(self, prompts: list[list[int]], known: list[list[int]], found: list[list[int]], tau: float) -> Verdicts:
        """Compare outputs with the reference's; every one that differs needs a certificate of its own."""
        verdicts = Verdicts()
        for i, (prompt, a, b) in enumerate(zip(prompts, known, found, strict=True)):
            if a == b:
                verdicts.same += 1
                continue
            gap = self.worst_gap(prompt, b)
            verdicts.largest = max(verdicts.largest, gap)
            if gap <= tau and len(a) == len(b):
                verdicts.certified += 1
            else:
                at = next((k for k, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
                verdicts.wrong.append(f"prompt {i}, position {at}: gap {gap:.4f} > {tau}")
        return verdicts


class Scripted:
    """Draft from a known output: `right(round)` tokens of it, then wrong ones."""

    name = "scripted"
    needs = Needs()

    def __init__(self, outputs: Mapping[tuple[int, ...], list[int]], right: Callable[[int], int]) -> None:
        self.outputs, self.right = outputs, right

    def propose(self, rows: list[Sequence], budget: list[int], rngs: Rngs) -> Draft:
        """Draft at most the budget; past the end of the known output there is nothing to draft."""
        return chain_draft(rows, [self._guess(row, n) for row, n in zip(rows, budget, strict=True)])

    def _guess(self, row: Sequence, budget: int) -> list[int]:
        known = self.outputs[tuple(row.tokens[: row.prompt_len])][row.generated :]
        right = self.right(row.rounds)
        return [t if i < right else t ^ 1 for i, t in enumerate(known[:budget])]

    def observe(self, rows: list[Sequence], tokens: list[list[int]], taps: list[Mapping[int, Any]]) -> None:
        """Learn nothing."""

    def forget(self, row: Sequence) -> None:
        """Keep nothing."""


class Lengths:
    """Give each row its own draft length, by its number."""

    def __init__(self, lengths: tuple[int, ...]) -> None:
        self.lengths = lengths

    def begin(self) -> None: ...

    def budget(self, rows: list[Sequence]) -> list[int]:
        """Return the row's length."""
        return [self.lengths[row.id % len(self.lengths)] for row in rows]

    def record(self, *round_: Any) -> None:
        """Learn nothing."""


@dataclass
class Bench:
    """One loaded target, decoded through engines built as the public interface builds them."""

    opened: Any  # build.Opened
    params: Any  # SamplingParams

    def run(
        self, drafter: Any, lengths: tuple[int, ...], prompts: list[list[int]], rows: int, rule: Any = None
    ) -> list[Sequence]:
        """Decode all prompts, `rows` at a time, prompt i with drafts of `lengths[i % len(lengths)]` tokens.

        `drafter` is a spec or an object; `rule` replaces the usual one.
        """
        from slipstream import build
        from slipstream.config import DrafterConfig, EngineConfig

        if isinstance(drafter, str):
            guess = build.open_drafter(DrafterConfig(spec=drafter, draft_tokens=max(lengths)), self.opened, rows=rows)
        else:
            guess = build.Guess(drafter, max(lengths))
        engine = build.make_engine(self.opened, guess, EngineConfig(max_rows=rows))
        engine.rule = rule or engine.rule
        engine.controller = Lengths(lengths)
        found = [Sequence(i, list(p), len(p), self.params) for i, p in enumerate(prompts)]
        for row in found:
            engine.add(row)
        while not engine.idle:
            engine.step()
        return found


def output_of(row: Sequence) -> list[int]:
    """Return the emitted ids."""
    return row.tokens[row.prompt_len :]
