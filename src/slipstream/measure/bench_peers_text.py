"""From the times of `bench_peers` to Markdown: a table per model, and what was asked beside what was got.

In: lines of results. Out: text. Rates are tokens over the sum of the prompts' median seconds, ratios those of rates,
with a 95 % interval that redraws prompts and repeats. No I/O.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from slipstream.measure.report import Ratio, Times, rate, speedup
from slipstream.measure.suites import Suite

NAMES = {
    "plain": "slipstream plain",
    "auto": "**slipstream `auto`**",
    "llama-cpp": "llama.cpp plain",
    "llama-cpp-lookup": "llama.cpp, its prompt lookup",
    "hf": "transformers `generate`",
    "hf-lookup": "transformers, its prompt lookup",
    "hf-assisted": "transformers, assisted",
}
ASKED = (  # what, ours, theirs (the fastest of them), prompts, at least
    ("plain / transformers plain", "plain", ("hf",), "", 3.0),
    ("plain / llama.cpp plain", "plain", ("llama-cpp",), "", 1.0),
    ("`auto` / plain, all prompts", "auto", ("plain",), "", 1.5),
    ("`auto` / plain, grounded prompts", "auto", ("plain",), "grounded", 2.4),
    ("`auto` / llama.cpp's lookup", "auto", ("llama-cpp-lookup",), "", 1.5),
    ("`auto` / transformers' best of assisted and lookup", "auto", ("hf-lookup", "hf-assisted"), "", 3.0),
)


@dataclass(frozen=True)
class Measured:
    """All lines of one model."""

    model: str
    suite: Suite
    max_tokens: int
    lines: list[dict[str, Any]]

    @cached_property
    def runs(self) -> dict[str, dict[str, list[dict[str, Any]]]]:
        """Runner -> prompt -> repeats, runners in the order of the table."""
        found: dict[str, dict[str, list[dict[str, Any]]]] = {name: {} for name in NAMES}
        for line in self.lines:
            for name, run in line.get("runs", {}).items():
                found[name].setdefault(line["prompt"], []).append(run)
        return {name: runs for name, runs in found.items() if runs}

    @property
    def shared(self) -> list[str]:
        """The prompts that every runner has decoded."""
        return [p.id for p in self.suite.prompts if all(p.id in runs for runs in self.runs.values())]

    def about(self, engine: str) -> dict[str, Any]:
        """Return what an engine said of itself, the last time."""
        said = [line["about"] for line in self.lines if line.get("engine") == engine]
        return said[-1] if said else {}

    def times(self, name: str, part: str, task: str = "") -> list[Times]:
        """Return tokens and seconds of each prompt: whole calls ("wall"), or decoding only ("decode")."""
        wanted = [p.id for p in self.suite.prompts if p.id in self.shared and task in ("", p.kind)]
        return [self._times(self.runs[name][prompt], part) for prompt in wanted]

    def ratio(self, ours: str, theirs: str, part: str, task: str = "") -> Ratio:
        """Return the ratio of two rates."""
        return speedup(self.times(theirs, part, task), self.times(ours, part, task))

    def equal(self, a: str, b: str) -> int:
        """Count prompts whose texts are equal in every repeat."""
        texts = [[run["tokens"] for name in (a, b) for run in self.runs[name][p]] for p in self.shared]
        return sum(all(text == found[0] for text in found) for found in texts)

    @staticmethod
    def _times(runs: list[dict[str, Any]], part: str) -> Times:
        count = runs[0]["decoded"] if part == "decode" else len(runs[0]["tokens"])
        return Times(count, [run[part] for run in runs])


def page(found: list[Measured]) -> str:
    """Return the tables of all models."""
    return "\n\n".join(part for one in found for part in (_head(one), _table(one), _foot(one), _asked(one)))


@dataclass(frozen=True)
class Drawn:
    """What a page of tables shows of one model: how many prompts, and the labels of its engines."""

    prompts: int
    engines: set[str]


def drawn(text: str) -> dict[str, Drawn]:
    """Read from a page of tables which models it has, with how many prompts and which engines."""
    found: dict[str, Drawn] = {}
    last = None
    for line in text.splitlines():
        head = re.match(r"\*\*(.+?)\*\*: (\d+) prompts", line)
        if head:
            found[head[1]] = last = Drawn(int(head[2]), set())
        elif last is not None and line.startswith("| "):
            label = line[2:].partition(" | ")[0]
            plain = NAMES["hf"] if label.startswith(f"{NAMES['hf']}, ") else label  # its number format stands there too
            last.engines.update({plain} & set(NAMES.values()))
    return found


def losses(old: dict[str, Drawn], new: dict[str, Drawn]) -> list[str]:
    """Return, in words, what the new tables lack that the old ones have."""
    lost = []
    for model, was in old.items():
        now = new.get(model)
        if now is None:
            lost.append(f"{model} would go")
            continue
        gone = [name for name in NAMES.values() if name in was.engines - now.engines]
        lost += [f"{model} would lose {', '.join(gone)}"] if gone else []
        lost += [f"{model} would have {now.prompts} prompts, not {was.prompts}"] if now.prompts < was.prompts else []
    return lost


def _head(one: Measured) -> str:
    shared = set(one.shared)
    kinds = [f"{sum(p.kind == task and p.id in shared for p in one.suite.prompts)} {task}" for task in one.suite.tasks]
    repeats = {name: len(next(iter(runs.values()))) for name, runs in one.runs.items()}
    said = f"{repeats['plain']}" + (f", of transformers {repeats['hf']}" if "hf" in repeats else "")
    return (
        f"**{one.model}**: {len(shared)} prompts ({', '.join(kinds)}), at most {one.max_tokens} tokens, greedy, "
        f"batch 1, in turn prompt by prompt, each engine in a process of its own; repeats {said}. Tokens per second, "
        "groups in whole calls; ratios to slipstream plain (95 %)."
    )


def _table(one: Measured) -> str:
    tasks = one.suite.tasks
    rows = [["engine", *tasks, "all, whole calls", "ratio", "all, decoding only", "ratio"]]
    for name in one.runs:
        cells = [f"{rate(one.times(name, 'wall', task)):.1f}" for task in tasks]
        for part in ("wall", "decode"):
            ratio = "1.00x" if name == "plain" else _words(one.ratio(name, "plain", part))
            cells += [f"{rate(one.times(name, part)):.1f}", ratio]
        label = f"{NAMES[name]}, {one.about('hf').get('dtype', 'bfloat16')}" if name == "hf" else NAMES[name]
        rows.append([label, *cells])
    return _markdown(rows)


def _foot(one: Measured) -> str:
    versions = [one.about(engine)["version"] for engine in ("llama-cpp", "hf") if one.about(engine)]
    lines = [f"The texts of `auto` equal the plain ones on {one.equal('auto', 'plain')} of {len(one.shared)} prompts."]
    lines += [f"{note[0].upper()}{note[1:]}." for note in one.about("slipstream").get("notes", [])]
    lines.append(f"Against {', '.join(versions)}." if versions else "No other engine was installed.")
    machine = one.about("none")
    if machine:
        lines.append("{cpus} cores of {cpu}, {date}, revision {revision}.".format(**machine))
    return " ".join(lines)


def _asked(one: Measured) -> str:
    rows = [["asked", "at least", "got, whole calls (95 %)", "got, decoding only (95 %)", ""]]
    for what, ours, theirs, task, least in ASKED:
        there = [name for name in theirs if name in one.runs]
        if not there or not one.times(ours, "wall", task):
            rows.append([what, f"{least:.1f}x", "not measured", "not measured", ""])
            continue
        got = [_least(one, ours, there, part, task) for part in ("wall", "decode")]
        reached = (got[0].value >= least, got[1].value >= least)
        rows.append([what, f"{least:.1f}x", *map(_words, got), _REACHED[reached]])
    return _markdown(rows)


_REACHED = {
    (True, True): "reached",
    (True, False): "in whole calls",
    (False, True): "decoding only",
    (False, False): "not reached",
}


def _least(one: Measured, ours: str, theirs: list[str], part: str, task: str) -> Ratio:
    """Return the ratio to the fastest of the others."""
    return min((one.ratio(ours, name, part, task) for name in theirs), key=lambda ratio: ratio.value)


def _markdown(rows: list[list[str]]) -> str:
    rows = [rows[0], ["---"] * len(rows[0]), *rows[1:]]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _words(ratio: Ratio) -> str:
    return f"{ratio.value:.2f}x ({ratio.low:.2f}–{ratio.high:.2f})"
