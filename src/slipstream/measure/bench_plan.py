"""What a benchmark measures: settings, the drafters to compare, and the order of the measurements. No model here.

In: the choices of a person. Out: cells (temperature and batch size), each with the same runners, and units: one batch
of prompts decoded once by every runner in turn. A unit is what is measured, written and resumed as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from slipstream.config import MAX_DRAFT_TOKENS, draft_tokens_of, whole
from slipstream.measure.suites import Suite
from slipstream.specs import parse_drafter
from slipstream.types import RequestError, SamplingParams

PLAIN = "plain"


@dataclass(frozen=True)
class Choice:
    """A drafter's spec and its draft length (None: the drafter's own)."""

    spec: str
    draft_tokens: int | None = None

    @property
    def name(self) -> str:
        """What to print: the kind of drafter, the last part of its path, and its length."""
        kind, _, path = self.spec.partition(":")
        short = f"{kind}:{path.rstrip('/').rpartition('/')[2]}" if path else kind.rstrip("/").rpartition("/")[2]
        return short if self.draft_tokens is None else f"{short} {self.draft_tokens}"


@dataclass(frozen=True)
class Cell:
    """One combination of temperature and batch size."""

    temperature: float
    batch: int

    @property
    def words(self) -> str:
        """Say it: greedy or the temperature, and the batch size."""
        how = "greedy" if self.temperature == 0.0 else f"temperature {self.temperature:g}"
        return f"{how}, batch {self.batch}"


@dataclass(frozen=True)
class Unit:
    """One batch of prompts of one task, in one cell, for the repeat-th time."""

    cell: Cell
    task: str
    prompts: tuple[str, ...]
    repeat: int

    @property
    def place(self) -> dict[str, Any]:
        """Return what identifies the unit in a file of results."""
        return asdict(self) | {"prompts": list(self.prompts)}


@dataclass(frozen=True)
class Plan:
    """The whole benchmark. `sampling` holds the parameters that every request shares, temperature and seed apart."""

    suite: Suite
    choices: list[Choice]
    peers: list[str] = field(default_factory=list)
    temperatures: Sequence[float] = (0.0,)
    batches: Sequence[int] = (1,)
    max_tokens: int = 128
    repeats: int = 3
    seed: int = 0
    sampling: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        whole("max_tokens", self.max_tokens, least=1)
        whole("repeats", self.repeats, least=1)
        whole("seed", self.seed, least=0, most=2**63 - 1)
        for batch in self.batches:
            whole("batch", batch, least=1)
        for temperature in self.temperatures:
            self.params(temperature, 0)
        if not self.choices:
            raise RequestError("no drafter to measure; give --drafter, for example lookup")

    @property
    def names(self) -> list[str]:
        """Return the choices' names; where two would be the same, the whole spec tells them apart."""
        short = [c.name for c in self.choices]
        return [
            c.name if short.count(c.name) == 1 else " ".join(str(part) for part in (c.spec, c.draft_tokens) if part)
            for c in self.choices
        ]

    @property
    def cells(self) -> list[Cell]:
        """Return all cells, temperatures outermost."""
        return [Cell(t, b) for t in self.temperatures for b in self.batches]

    @property
    def draft_model(self) -> str:
        """Return the first draft model among the choices, or an empty text: some peers draft with it."""
        found = [parse_drafter(choice.spec) for choice in self.choices]
        parts = [part for one in found for part in one.parts or (one,)]
        return next((part.path for part in parts if part.name == "draft_model"), "")

    def params(self, temperature: float, number: int) -> SamplingParams:
        """Return the parameters of the suite's prompt of that number: every runner gets the same seed for it."""
        seed = (self.seed + number) % 2**63
        return SamplingParams(temperature=temperature, max_tokens=self.max_tokens, seed=seed, **self.sampling)

    def units(self) -> Iterator[Unit]:
        """Yield every unit in the order of measurement: all prompts once, then all again."""
        for repeat in range(self.repeats):
            for cell in self.cells:
                for task, names in self.groups(cell.batch):
                    yield Unit(cell, task, names, repeat)

    def groups(self, batch: int) -> list[tuple[str, tuple[str, ...]]]:
        """Return the batches of prompts: of one task each, and the last of a task may be smaller."""
        found = []
        for task in self.suite.tasks:
            names = [p.id for p in self.suite.prompts if p.kind == task]
            found += [(task, tuple(names[k : k + batch])) for k in range(0, len(names), batch)]
        return found

    def settings(self) -> dict[str, Any]:
        """Return what two measurements must share, as far as the plan decides it; repeats may grow."""
        return {
            "suite": self.suite.name,
            "prompts": [p.id for p in self.suite.prompts],
            "drafters": [[c.spec, c.draft_tokens] for c in self.choices],
            "peers": list(self.peers),
            "temperatures": list(self.temperatures),
            "batches": list(self.batches),
            "max_tokens": self.max_tokens,
            "seed": self.seed,
            "sampling": dict(self.sampling),
        }


def choices_of(specs: str, lengths: str) -> list[Choice]:
    """Read drafters and draft lengths, both separated by commas: every drafter is measured at every length."""
    names = list(dict.fromkeys(name.strip() for name in specs.split(",") if name.strip()))
    counts = list(dict.fromkeys(_length(text.strip()) for text in lengths.split(",") if text.strip()))
    for name in names:
        if name == "none" or 0 in counts:
            raise RequestError("plain decoding is measured in every run; leave out drafter none and draft length 0")
    return [Choice(name, count) for name in names for count in counts]


def numbers_of(text: str, what: str, kind: type) -> list[Any]:
    """Read numbers separated by commas."""
    try:
        found = list(dict.fromkeys(kind(part) for part in text.split(",") if part.strip()))
    except ValueError:
        found = []
    if not found:
        example = "1,4" if kind is int else "0,0.8"
        raise RequestError(f"{what} {text!r} must be numbers separated by commas, such as {example}")
    return found


def _length(text: str) -> int | None:
    if text != "auto" and not text.isdigit():
        raise RequestError(f"draft_tokens {text!r} must be whole numbers from 1 to {MAX_DRAFT_TOKENS}, or 'auto'")
    return draft_tokens_of(text if text == "auto" else int(text))
