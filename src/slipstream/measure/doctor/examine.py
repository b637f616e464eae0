"""The self-test: let the target write, try every reading of the drafter's file on that text, and compare.

In: an opened `LLM`, a drafter's folder or checkpoint, prompts. Out: a `Diagnosis`: readings best first, and whether
one beats the file's own by a clear margin. Each reading sees the same texts and the same features, so the comparison
is paired.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slipstream import learned
from slipstream.measure.doctor import readings as tried
from slipstream.measure.doctor.readings import Facts, Reading
from slipstream.measure.doctor.spelling import change_lines
from slipstream.measure.doctor.statistics import Array, Comparison, Share, compare, first_share, mean_length
from slipstream.measure.doctor.texts import Text, write
from slipstream.measure.doctor.trial import accepted, draftable
from slipstream.types import RequestError

if TYPE_CHECKING:
    from slipstream.llm import LLM
    from slipstream.nets.draft_config import DraftCheckpoint, Tables

TOKENS = 32  # written for each prompt
NEAR = 0.95  # of what could be accepted: no second change is looked for
POOR = 0.05  # a first token accepted less often than this says that something else is wrong
Progress = Callable[[str, int, int], object]  # (what, done, of how many)


@dataclass(frozen=True)
class Finding:
    """One reading, measured. `against` compares it with the file's own on the same places (None: on other texts)."""

    reading: Reading
    lengths: Array = field(repr=False)
    against: Comparison | None
    clear: bool
    lines: tuple[str, ...] = ()

    @property
    def first(self) -> Share:
        """Share of places whose first drafted token the target wrote."""
        return first_share(self.lengths)

    @property
    def mean(self) -> float:
        """Mean number of drafted tokens accepted."""
        return mean_length(self.lengths)


@dataclass(frozen=True)
class Diagnosis:
    """What was found. `findings` are best first; `winner` beats the file's own reading clearly, or is None."""

    found: DraftCheckpoint
    depth: int
    texts: int
    places: int
    findings: list[Finding]
    winner: Finding | None
    chat: bool

    @property
    def own(self) -> Finding:
        """The reading the file asks for."""
        return next(f for f in self.findings if f.reading.own)

    @property
    def poor(self) -> bool:
        """True if even the best reading is hardly ever right."""
        return max(f.first.value for f in self.findings) < POOR


@dataclass
class Bench:
    """Texts, tables and the file's own result, on which readings are measured."""

    texts: list[Text]
    tables: Tables
    facts: Facts
    depth: int
    raw: Mapping[str, Any]
    own: DraftCheckpoint
    base: Array | None = None

    def measure(self, reading: Reading, tried: int, base: Array | None = None) -> Finding | None:
        """Return what a reading does, or None if the drafter cannot be built or fed that way."""
        if not set(reading.checkpoint.config.features.taps) <= set(self.texts[0].taps):
            return None
        try:
            lengths = accepted(reading.checkpoint, self.tables, self.texts, self.depth)
        except RequestError:
            if reading.own:
                raise
            return None
        base = self.base if base is None else base
        base = lengths if base is None else base
        against = compare(base, lengths)
        clear = not reading.own and against.clear(mean_length(base), tried)
        return Finding(reading, lengths, against, clear, tuple(self.lines(reading)))

    def lines(self, reading: Reading) -> list[str]:
        """Return what to change in the file."""
        return change_lines(self.own.config, reading, self.raw, self.facts)


def examine(
    llm: LLM,
    found: DraftCheckpoint,
    prompts: Seq[Any],
    raw: Mapping[str, Any] | None = None,
    *,
    tokens: int = TOKENS,
    progress: Progress = lambda what, done, total: None,
) -> Diagnosis:
    """Try every reading of a checkpoint on text that the target writes for these prompts.

    `raw` is the file's config.json, to name its own keys and values.
    """
    facts = facts_for(llm)
    own, others = tried.own_reading(found), tried.readings(found, facts)
    everything = [own, *others]
    depth = min(draftable(r.checkpoint.config) for r in everything)
    taps = sorted({tap for r in everything for tap in r.checkpoint.config.features.taps})
    has_chat = llm.tokenizer.has_chat_template
    progress("the target writes", 0, len(everything))
    texts = write(llm, prompts, tokens, taps, chat=has_chat)
    if not any(text.written >= depth for text in texts):
        raise RequestError(f"the model ended every answer before {depth} tokens: use other prompts, or more of them")
    bench = Bench(texts, learned.tables_of(llm.opened), facts, depth, raw or {}, found)
    findings = _all(bench, everything, progress)
    winner = _best([f for f in findings if f.clear])
    if winner is not None and winner.mean < NEAR * depth:
        second = _second(bench, winner, others, progress)
        findings += [second] if second else []
        winner = second or winner
    if has_chat:
        findings += _without_template(llm, found, prompts, bench, tokens)
    findings.sort(key=lambda f: (-f.mean, not f.reading.own))
    places = next(int((f.lengths >= 0).sum()) for f in findings if f.reading.own)
    return Diagnosis(found, depth, len(texts), places, findings, winner, has_chat)


def facts_for(llm: LLM) -> Facts:
    """Return what readings depend on."""
    known = learned.facts_of(llm.opened)
    return Facts(known.layers, known.real_vocab, known.vocab, known.rope_theta)


def read_raw(folder: Path) -> dict[str, Any]:
    """Return a drafter's config.json, empty where it has none."""
    path = folder / "config.json"
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return found


def _all(bench: Bench, everything: list[Reading], progress: Progress) -> list[Finding]:
    findings: list[Finding] = []
    for k, reading in enumerate(everything):
        progress(reading.name, k + 1, len(everything))
        done = bench.measure(reading, len(everything) - 1)
        if done is not None:
            findings.append(done)
            bench.base = findings[0].lengths
    return findings


def _best(findings: list[Finding]) -> Finding | None:
    return max(findings, key=lambda f: f.mean, default=None)


def _second(bench: Bench, first: Finding, others: list[Reading], progress: Progress) -> Finding | None:
    """Return a reading with one change more, if it clearly beats the best single change."""
    more = tried.combined(first.reading, others, bench.facts)
    clear = []
    for k, reading in enumerate(more):
        progress(reading.name, k + 1, len(more))
        done = bench.measure(reading, len(more), first.lengths)
        if done is not None and done.clear:
            clear.append(done)
    best = _best(clear)
    return None if best is None else bench.measure(best.reading, len(more) + len(others))


def _without_template(llm: LLM, found: DraftCheckpoint, prompts: Seq[Any], bench: Bench, tokens: int) -> list[Finding]:
    """Measure the file's own reading on answers to the bare prompts: other texts, so no comparison and no verdict."""
    texts = write(llm, prompts, tokens, found.config.features.taps, chat=False)
    if not any(text.written >= bench.depth for text in texts):
        return []
    lengths = accepted(found, bench.tables, texts, bench.depth)
    return [Finding(Reading("prompts without the chat template", "template", found), lengths, None, False)]
