"""Find out what pays on this machine: time the parts, watch drafters on prompts, predict all lengths, measure some.

In: an `LLM` whose drafter is chosen by cost, and prompts as ids. Out: a `Tuned`: a line for each drafter and length,
with predicted and, for the best and the longest, measured speed beside plain decoding of the same run, in turn. Costs
and acceptance are stored in the profile that `auto` decides by.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from slipstream import profiles
from slipstream.build import Guess, Part, arm_of
from slipstream.control.adaptive import AdaptiveBudget, AdaptiveOptions
from slipstream.control.prices import Prices
from slipstream.control.profile import Profile
from slipstream.measure.record import record
from slipstream.measure.report import Ratio, Times, rate, speedup
from slipstream.measure.timing import Results, in_turn, llm_runner, warm_up
from slipstream.types import SamplingParams

if TYPE_CHECKING:
    from slipstream.engine.commit import RoundTrace
    from slipstream.llm import LLM

LENGTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
LEAST_TOKENS = 32
PLAIN, AUTO = "plain", "auto"

Tick = Callable[[], object]


@dataclass(frozen=True)
class Line:
    """A drafter at one length: predicted and measured speed against plain, and tokens per target pass (both sides).

    `kind` is the drafter's algorithm and `folder` where its weights are; `drafter` tells two of one kind apart.
    """

    drafter: str
    draft_tokens: int
    predicted: float
    predicted_tokens: float
    measured: Ratio | None = None
    tokens_per_pass: float | None = None
    kind: str = ""
    folder: str = ""


@dataclass
class Tuned:
    """What was found. `auto` is the speed of choosing by cost, against plain; speeds in tokens per second."""

    profile: Profile
    prompts: int
    tokens: int
    plain: float
    auto: Ratio
    auto_speed: float
    lines: list[Line] = field(default_factory=list)
    seconds: float = 0.0
    record: dict[str, Any] = field(default_factory=dict)  # versions, machine, hashes
    differing: list[str] = field(default_factory=list)  # ways whose text is not plain's, and where it first is not

    @property
    def best(self) -> Line | None:
        """The measured line that is fastest, if it is faster than plain."""
        found = [line for line in self.lines if line.measured is not None and line.measured.value > 1.0]
        return max(found, key=lambda line: line.measured.value if line.measured else 0.0, default=None)

    def as_dict(self) -> dict[str, Any]:
        """Return the object of the JSON output."""
        return {
            "prompts": self.prompts,
            "tokens": self.tokens,
            "plain_tokens_per_second": self.plain,
            "auto": {"tokens_per_second": self.auto_speed, "speed_up": dataclasses.asdict(self.auto)},
            "lines": [dataclasses.asdict(line) for line in self.lines],
            "best": dataclasses.asdict(self.best) if self.best else None,
            "same_texts": not self.differing,
            "differing": self.differing,
            "seconds": self.seconds,
            "record": self.record,
            "profile": self.profile.as_dict(),
        }


class Watched:
    """A drafter at its longest, and its rounds once it is watched: nodes drafted, and which of them stood."""

    def __init__(self, llm: LLM, part: Part, profile: Profile) -> None:
        self.llm = _fixed(llm, part, part.most)
        options = AdaptiveOptions(fixed=part.most, shared_noise=self.llm.engine.rule.shared_noise)
        self._controller = AdaptiveBudget([arm_of(part)], profile, options)
        self.rounds: list[tuple[int, list[int]]] = []

    def watch(self) -> None:
        """Begin."""
        self.llm.engine.controller, self.llm.engine.trace = self._controller, self.note

    def learn(self, profile: Profile) -> None:
        """Put the acceptance that was seen into the profile."""
        for name, rates in self._controller.found().items():
            profile.rates.setdefault(name, {}).update(rates)

    def note(self, found: RoundTrace) -> None:
        """Hear of a round."""
        self.rounds.append((len(found.tokens) - 1, list(found.path)))

    def predicted(self, length: int, seconds: list[float]) -> tuple[float, float]:
        """Return tokens per second and per pass, had at most `length` nodes been drafted in each of these rounds."""
        tokens = sum(1 + sum(node <= length for node in path) for _, path in self.rounds)
        spent = sum(seconds[min(drafted, length)] for drafted, _ in self.rounds)
        return tokens / spent, tokens / len(self.rounds)


def tune(llm: LLM, prompts: list[list[int]], params: SamplingParams, *, seconds: float = 100.0, tick: Tick) -> Tuned:
    """Measure costs afresh, then decode prompts for about `seconds`; store what was found."""
    start = time.perf_counter()
    parts = llm.guess.parts
    profile = profiles.measure_again(llm.opened, parts, llm.engine.rule, llm.config.max_rows)
    tick()
    left = max(1.0, seconds - (time.perf_counter() - start))
    prompts, params = _fitted(profile, prompts, params, left, 3 + 2 * len(parts))
    names = names_of(parts)
    longest = {part.cost: Watched(llm, part, profile) for part in parts}
    llms = {PLAIN: llm.with_drafter("none"), **{names[cost]: each.llm for cost, each in longest.items()}}
    _warm(llms, prompts, params)
    for each in longest.values():
        each.watch()
    first = in_turn({name: llm_runner(each, params) for name, each in llms.items()}, prompts, 1, tick=tick)
    for each in longest.values():
        each.learn(profile)
    lines = [line for part in parts for line in _predicted(part, profile, longest[part.cost], prompts, params)]
    lines = [dataclasses.replace(line, drafter=names[line.drafter]) for line in lines]
    first = {name if name == PLAIN else _name(_longest(name, lines)): runs for name, runs in first.items()}
    llms = {PLAIN: llms[PLAIN], AUTO: llm.with_drafter(dataclasses.replace(llm.guess, notes=[]))}
    for part in parts:
        best = max(_of(names[part.cost], lines), key=lambda line: line.predicted)
        llms[_name(best)] = _fixed(llm, part, best.draft_tokens)
    _warm(llms, prompts, params)
    deadline = time.monotonic() + max(0.0, seconds - (time.perf_counter() - start)) / 2
    runners = {name: llm_runner(each, params) for name, each in llms.items()}
    results = in_turn(runners, prompts, 5, tick=tick, deadline=deadline)
    profiles.save(llm.opened)
    alike = params.greedy or llm.engine.rule.shared_noise  # else a drafted text is another draw of the same law
    found = _tuned(profile, [first, results], lines, start, alike)
    opened = llm.opened
    about = record(model=opened.folder, drafter=llm.drafter_folder, prompts=prompts, device=opened.device)
    return dataclasses.replace(found, record=about)


def _warm(llms: dict[str, LLM], prompts: list[list[int]], params: SamplingParams) -> None:
    short = dataclasses.replace(params, max_tokens=2, min_tokens=0)
    warm_up({name: llm_runner(each, short) for name, each in llms.items()}, prompts[0][-16:])


def _fitted(
    profile: Profile, prompts: list[list[int]], params: SamplingParams, seconds: float, runs: int
) -> tuple[list[list[int]], SamplingParams]:
    """Choose the prompts and tokens that fit the time, if every run took as long as plain decoding; the first always.

    A prompt too long for what is left is passed over: short ones of other kinds after it say more than none.
    """
    each, token = seconds / runs, profile.target(1, 1)
    wanted = params.max_tokens or 64
    kept: list[list[int]] = []
    spent = 0.0
    for ids in prompts:
        prefill = len(ids) / 32 * profile.target(1, 32)
        if not kept or spent + prefill + (len(kept) + 1) * LEAST_TOKENS * token <= each:
            kept.append(ids)
            spent += prefill
    room = max(0.0, each - spent) / len(kept) / token
    tokens = min(wanted, max(LEAST_TOKENS, int(room)))
    return kept, dataclasses.replace(params, max_tokens=tokens, min_tokens=min(params.min_tokens, tokens))


def _fixed(llm: LLM, part: Part, length: int) -> LLM:
    return llm.with_drafter(Guess(part.drafter, length, parts=[part], fixed=length))


def _predicted(
    part: Part, profile: Profile, watched: Watched, prompts: list[list[int]], params: SamplingParams
) -> list[Line]:
    context = int(sum(len(ids) for ids in prompts) / len(prompts)) + (params.max_tokens or 0) // 2
    kind = "greedy" if params.greedy else "sampled"
    seconds = Prices([arm_of(part)], profile).lengths(0, 1, context, kind)
    lines = []
    for n in sorted({*(n for n in LENGTHS if n < part.most), part.most}):
        speed, tokens = watched.predicted(n, seconds)
        folder = str(part.folder or "")
        lines.append(Line(part.cost, n, speed * seconds[0], tokens, kind=part.drafter.name, folder=folder))
    return lines


def names_of(parts: list[Part]) -> dict[str, str]:
    """Return a name for each drafter by that of its costs: its kind, and where its weights are if two are of one."""
    kinds = [part.drafter.name for part in parts]
    names = {}
    for kind, part in zip(kinds, parts, strict=True):
        names[part.cost] = f"{kind}:{part.folder.name}" if kinds.count(kind) > 1 and part.folder else kind
    if len(set(names.values())) == len(parts):
        return names
    return {part.cost: f"{k}#{i}" for i, (k, part) in enumerate(zip(kinds, parts, strict=True), 1)}


def _of(name: str, lines: list[Line]) -> list[Line]:
    return [line for line in lines if line.drafter == name]


def _longest(name: str, lines: list[Line]) -> Line:
    return _of(name, lines)[-1]


def _name(line: Line) -> str:
    return f"{line.drafter} {line.draft_tokens}"


def _tuned(profile: Profile, phases: list[Results], lines: list[Line], start: float, alike: bool) -> Tuned:
    """Put the lines together; each phase has its own plain runs, and what is in both is taken from the later."""
    found: dict[str, tuple[Ratio, float]] = {}
    differing: list[str] = []
    for results in phases:
        sides = {
            name: [Times(len(r[0].tokens), [run.decode for run in r]) for r in each] for name, each in results.items()
        }
        plain, texts = sides[PLAIN], {name: [runs[0].tokens for runs in each] for name, each in results.items()}
        for name, each in results.items():
            passes = sum(run.stats["target_passes"] for runs in each for run in runs)
            tokens = sum(len(run.tokens) for runs in each for run in runs)
            found[name] = speedup(plain, sides[name]), tokens / passes
            differing += _difference(name, texts[name], texts[PLAIN]) if alike else []
    measured = []
    for line in lines:
        ratio, per_pass = found.get(_name(line), (None, None))
        measured.append(dataclasses.replace(line, measured=ratio, tokens_per_pass=per_pass))
    return Tuned(
        profile,
        prompts=len(plain),
        tokens=sum(t.tokens for t in plain),
        plain=rate(plain),
        auto=found[AUTO][0],
        auto_speed=rate(sides[AUTO]),
        lines=measured,
        seconds=time.perf_counter() - start,
        differing=list(dict.fromkeys(differing)),
    )


def _difference(name: str, found: list[list[int]], plain: list[list[int]]) -> list[str]:
    """Say at which prompt and token a way's texts first differ from plain decoding's, if they do."""
    for prompt, (ours, theirs) in enumerate(zip(found, plain, strict=True), 1):
        if ours != theirs:
            same = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), len(ours))
            return [f"{name} (prompt {prompt}, token {same + 1})"]
    return []
