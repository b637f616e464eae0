"""Measure a plan: load the target once, run every unit by all runners in turn, judge the outputs.

In: a `Plan` and how the target runs. Out: a `Results` full of units and verdicts, on disk if asked for; what a file
already holds of the same settings is not measured again. Nothing is averaged here.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from slipstream import models
from slipstream.config import DEFAULT_MODEL
from slipstream.llm import LLM
from slipstream.measure import suites
from slipstream.measure.agreement import Agreement, Notary
from slipstream.measure.bench_plan import PLAIN, Cell, Choice, Plan, Unit
from slipstream.measure.bench_runs import Run, Runner, llm_runner, peer_runner, problems
from slipstream.measure.peers import PEERS, Task, check_peers, open_peer
from slipstream.measure.record import record
from slipstream.measure.results import Results, key_of
from slipstream.types import SamplingParams

WARM_UP_TOKENS = 4
_SAME = (
    "revision",
    "versions",
    "cpu",
    "cpus",
    "gpu",
    "model_hash",
    "prompts_hash",
)  # of the record: what must not change


@dataclass
class Bench:
    """A loaded plan. `options` are the keyword arguments of `LLM` except drafter, draft length and rows."""

    plan: Plan
    options: dict[str, Any]
    path: Path | None = None
    llms: dict[str, LLM] = field(init=False)
    results: Results = field(init=False)

    def __post_init__(self) -> None:
        names = self.plan.names
        check_peers(self.plan.peers, self.options.get("model", DEFAULT_MODEL), draft_folder(self.plan))
        self.llms = _open(self.plan, self.options)
        base = self.llms[names[0]]
        self._ids = {p.id: suites.encode(base, p) for p in self.plan.suite.prompts}
        suites.check_room(base, self._ids, self.plan.max_tokens)
        self._numbers = {p.id: k for k, p in enumerate(self.plan.suite.prompts)}
        self._runners: dict[tuple[float, str], Runner] = {}
        self.record = self._record(base)
        self.results = Results(self.path, self._settings(base), {"record": self.record})

    @property
    def base(self) -> LLM:
        """One of the LLMs: they share the target."""
        return self.llms[self.plan.names[0]]

    @property
    def notes(self) -> list[str]:
        """Lines that people should see."""
        found = [note for llm in self.llms.values() for note in llm.notes]
        for cell in self.plan.cells:
            left = [name for name in self.plan.peers if cell.batch > 1 and not PEERS[name].batches]
            found += [f"{name} decodes one prompt at a time: not run at batch {cell.batch}" for name in left]
        if self.plan.suite.later_turns:
            found.append(
                f"only the first turn of each prompt is measured ({self.plan.suite.later_turns} later ones left out)"
            )
        return list(dict.fromkeys(found))

    def names(self, cell: Cell) -> list[str]:
        """Return the runners of a cell, plain decoding first."""
        peers = [name for name in self.plan.peers if cell.batch == 1 or PEERS[name].batches]
        return [PLAIN, *self.plan.names, *peers]

    def pending(self) -> list[Unit]:
        """Return the units that are not in the results yet."""
        done = {_hashable(line["unit"]) for line in self.results.lines if "unit" in line}
        return [unit for unit in self.plan.units() if _hashable(unit.place) not in done]

    def measure(self, tick: Callable[[], object] = lambda: None) -> None:
        """Run what is pending. Each unit is written when all its runs are done; `tick` is called after each run."""
        units = self.pending()
        if units:
            self._warm_up(units[0].cell)
        for unit in units:
            names = self.names(unit.cell)
            order = names if unit.repeat % 2 == 0 else names[::-1]  # a machine that slows down does so for all
            runs = {}
            for name in order:
                runs[name] = self._run(unit, name, self._params(unit)).as_dict()
                tick()
            self.results.append({"unit": unit.place, "runs": {name: runs[name] for name in names}})

    def judge(self, tick: Callable[[], object] = lambda: None) -> None:
        """Compare greedy outputs with the plain ones of the same unit; verdicts are written as they are found."""
        known = {_hashable(line["verdict"]) for line in self.results.lines if "verdict" in line}
        notary = Notary(self.base)
        for place, prompt, plain, other in self._pairs():
            if _hashable(place) not in known:
                known.add(_hashable(place))
                found = notary.compare(prompt, plain, other)
                self.results.append({"verdict": place, **_said(found)})
                tick()

    def problems(self) -> list[str]:
        """Return every total that does not add up, with its place."""
        found = []
        for unit, runs in self.units():
            for name, run in runs.items():
                wrong = problems(run, plain=name == PLAIN)
                found += [
                    f"{name}, {', '.join(unit['prompts'])}, repeat {unit['repeat']}: not true that {w}" for w in wrong
                ]
        return found

    def units(self) -> Iterator[tuple[dict[str, Any], dict[str, Run]]]:
        """Yield what was measured: the place of each unit, and its runs by runner."""
        for line in self.results.lines:
            if "unit" in line and line["unit"]["repeat"] < self.plan.repeats:
                yield line["unit"], {name: Run(**run) for name, run in line["runs"].items()}

    def prompt(self, name: str) -> list[int]:
        """Return the ids of a prompt."""
        return self._ids[name]

    def _pairs(self) -> Iterator[tuple[dict[str, Any], list[int], list[int], list[int]]]:
        """Yield differing greedy outputs: (place, prompt, plain, other); the place names both texts by their hash."""
        for unit, runs in self.units():
            if unit["cell"]["temperature"]:
                continue
            for name, run in runs.items():
                if name == PLAIN or (name in PEERS and not self._alike(name)):
                    continue
                for prompt, plain, other in zip(unit["prompts"], runs[PLAIN].tokens, run.tokens, strict=True):
                    yield place_of(unit, name, prompt, plain, other), self._ids[prompt], plain, other

    def _alike(self, peer: str) -> bool:
        """Say whether a peer computes with the target's own weights."""
        return PEERS[peer].same_arithmetic and self.base.opened.quantize == "none"

    def _run(self, unit: Unit, name: str, params: list[SamplingParams]) -> Run:
        runner = self._runner(unit.cell, name)
        return runner([self._ids[p] for p in unit.prompts], params)

    def _params(self, unit: Unit, most: int | None = None) -> list[SamplingParams]:
        found = [self.plan.params(unit.cell.temperature, self._numbers[p]) for p in unit.prompts]
        return [dataclasses.replace(p, max_tokens=most) for p in found] if most else found

    def _warm_up(self, cell: Cell) -> None:
        """Run everything once, unmeasured: first calls allocate caches and build thread pools."""
        for batch in self.plan.batches:
            for temperature in self.plan.temperatures:
                here = Cell(temperature, batch)
                task, names = self.plan.groups(batch)[0]
                unit = Unit(here, task, names, 0)
                for name in self.names(here):
                    self._run(unit, name, self._params(unit, min(WARM_UP_TOKENS, self.plan.max_tokens)))

    def _runner(self, cell: Cell, name: str) -> Runner:
        key = (cell.temperature if name in PEERS else -1.0, name)
        if key not in self._runners:
            if name in PEERS:
                self._runners[key] = peer_runner(open_peer(name, self._task(cell)), self.base.opened.device)
            else:
                self._runners[key] = llm_runner(self._plain if name == PLAIN else self.llms[name])
        return self._runners[key]

    @cached_property
    def _plain(self) -> LLM:
        return self.base.with_drafter("none")

    def _task(self, cell: Cell) -> Task:
        opened, sampling = self.base.opened, self.plan.sampling
        return Task(
            folder=opened.folder,
            name=opened.name,
            dtype=opened.dtype,
            device=opened.device,
            max_len=self.base.max_model_len,
            temperature=cell.temperature,
            eos_ids=() if sampling.get("ignore_eos") else tuple(self.base.tokenizer.eos_ids),
            draft_folder=draft_folder(self.plan),
            **{name: sampling[name] for name in ("top_p", "top_k", "min_p") if name in sampling},
        )

    def _record(self, base: LLM) -> dict[str, Any]:
        import torch

        folders = [llm.drafter_folder for llm in self.llms.values() if llm.drafter_folder]
        messages = [p.messages for p in self.plan.suite.prompts]
        found = record(
            model=base.opened.folder,
            drafter=folders[0] if folders else None,
            prompts=messages,
            device=base.opened.device,
        )
        return found | {"threads": torch.get_num_threads()}

    def _settings(self, base: LLM) -> dict[str, Any]:
        opened = base.opened
        same = {name: self.record[name] for name in (*_SAME, "threads", "drafter_hash")}
        how = {"model": opened.name, "dtype": str(opened.dtype), "device": opened.device, "kind": opened.kind}
        how["quantize"] = opened.quantize
        return self.plan.settings() | how | {"verify": base.config.verify, "max_len": base.max_model_len} | same


def draft_folder(plan: Plan) -> Path | None:
    """Return the folder of the draft model that peers are given, if one is among the drafters."""
    return models.resolve(plan.draft_model) if plan.draft_model else None


def place_of(unit: dict[str, Any], name: str, prompt: str, plain: list[int], other: list[int]) -> dict[str, Any]:
    """Name the comparison of two outputs: equal outputs of later repeats have the verdict of the first."""
    return {
        "cell": unit["cell"],
        "runner": name,
        "prompt": prompt,
        "texts": key_of({"plain": plain, "other": other}),
    }


def _said(found: Agreement) -> dict[str, Any]:
    certificate = found.certificate
    said: dict[str, Any] = {"agreement": found.word, "holds": found.holds, "position": found.position}
    if certificate is not None:
        said |= {"gap": certificate.largest_gap, "tau": certificate.tau, "refused": len(certificate.refused)}
    return said


def _hashable(place: dict[str, Any]) -> str:
    return json.dumps(place, sort_keys=True)


def _open(plan: Plan, options: dict[str, Any]) -> dict[str, LLM]:
    """Load the target and all drafters; one drafter object serves all its draft lengths."""
    rows = max(plan.batches)
    widest = max(plan.choices, key=lambda c: c.draft_tokens or 0)
    base = LLM(drafter=widest.spec, draft_tokens=_length(widest), max_rows=rows, **options)
    found, opened = {}, {widest.spec: base}
    for name, choice in zip(plan.names, plan.choices, strict=True):
        first = opened.get(choice.spec)
        if choice == widest:
            found[name] = base
        elif first is None or choice.draft_tokens is None or hasattr(first.engine.drafter, "route"):
            found[name] = opened[choice.spec] = base.with_drafter(choice.spec, draft_tokens=_length(choice))
        else:
            found[name] = base.with_drafter(first.engine.drafter, draft_tokens=choice.draft_tokens)
            found[name].drafter_folder = first.drafter_folder
    return found


def _length(choice: Choice) -> int | str:
    return "auto" if choice.draft_tokens is None else choice.draft_tokens
