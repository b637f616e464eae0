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
from slipstream.build import Guess, Part
from slipstream.control.adaptive import AdaptiveBudget, AdaptiveOptions
from slipstream.control.arms import Arm
from slipstream.control.prices import Prices
from slipstream.control.profile import Profile
from slipstream.measure.report import Ratio, Times, rate, speedup
from slipstream.measure.timing import Results, in_turn, llm_runner, warm_up
from slipstream.types import SamplingParams, WorkError

if TYPE_CHECKING:
    from slipstream.engine.commit import RoundTrace
    from slipstream.llm import LLM

LENGTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
LEAST_TOKENS = 16
PLAIN, AUTO = "plain", "auto"

Tick = Callable[[], object]


@dataclass(frozen=True)
class Line:
    """A drafter at one length: predicted and measured speed against plain, and tokens per target pass (both sides)."""

    drafter: str
    draft_tokens: int
    predicted: float
    predicted_tokens: float
    measured: Ratio | None = None
    tokens_per_pass: float | None = None


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
    same_texts: bool = True

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
            "same_texts": self.same_texts,
            "seconds": self.seconds,
            "profile": self.profile.as_dict(),
        }


@dataclass
class Watched:
    """The rounds of one drafter at its longest: nodes drafted, and which of them stood."""

    rounds: list[tuple[int, list[int]]] = field(default_factory=list)

    def note(self, found: RoundTrace) -> None:
        """Hear of a round."""
        self.rounds.append((len(found.tokens) - 1, list(found.path)))

    def predicted(self, length: int, seconds: list[float]) -> tuple[float, float]:
        """Return tokens per second and per pass, had at most `length` nodes been drafted in each of these rounds."""
        tokens = sum(1 + sum(node <= length for node in path) for _, path in self.rounds)
        spent = sum(seconds[min(drafted, length)] for drafted, _ in self.rounds)
        return tokens / spent, tokens / len(self.rounds)


def tune(llm: LLM, prompts: list[list[int]], params: SamplingParams, *, seconds: float = 120.0, tick: Tick) -> Tuned:
    """Measure costs afresh, then decode prompts for about `seconds`; store what was found."""
    start = time.perf_counter()
    parts = llm.guess.parts
    profile = profiles.measure_again(llm.opened, parts, llm.engine.rule, llm.config.max_rows)
    tick()
    left = max(1.0, seconds - (time.perf_counter() - start))
    prompts, params = _fitted(profile, prompts, params, left, 3 + 4 * len(parts))
    plain = llm.with_drafter("none")
    found = {part.cost: _watch(llm, part, profile, prompts, params) for part in parts}
    tick()
    lines = [line for part in parts for line in _predicted(part, profile, found[part.cost], prompts, params)]
    auto = llm.with_drafter(dataclasses.replace(llm.guess, notes=[]))
    llms = {PLAIN: plain, AUTO: auto}
    chosen = [line for part in parts for line in _worth(part, lines)]
    for line in chosen:
        part = next(p for p in parts if p.drafter.name == line.drafter)
        llms[_name(line)] = _fixed(llm, part, line.draft_tokens)
    runners = {name: llm_runner(each, params) for name, each in llms.items()}
    short = dataclasses.replace(params, max_tokens=2, min_tokens=0)
    warm_up({name: llm_runner(each, short) for name, each in llms.items()}, prompts[0][-LEAST_TOKENS:])
    deadline = time.monotonic() + max(0.0, seconds - (time.perf_counter() - start)) / 2
    results = in_turn(runners, prompts, 5, tick=tick, deadline=deadline)
    profiles.save(llm.opened)
    return _tuned(profile, results, lines, start)


def _fitted(
    profile: Profile, prompts: list[list[int]], params: SamplingParams, seconds: float, runs: int
) -> tuple[list[list[int]], SamplingParams]:
    """Choose how many prompts and tokens fit the time, if every run took as long as plain decoding."""
    each = seconds / runs
    wanted = params.max_tokens or 64
    kept: list[list[int]] = []
    spent = 0.0
    for ids in prompts:
        prefill = len(ids) / 32 * profile.target(1, 32)
        least = prefill + LEAST_TOKENS * profile.target(1, 1, len(ids))
        if kept and spent + least > each:
            break
        kept.append(ids)
        spent += prefill
    room = max(0.0, each - spent) / len(kept) / profile.target(1, 1)
    tokens = int(max(LEAST_TOKENS, min(wanted, room)))
    return kept, dataclasses.replace(params, max_tokens=min(wanted, tokens))


def _watch(llm: LLM, part: Part, profile: Profile, prompts: list[list[int]], params: SamplingParams) -> Watched:
    """Let a drafter draft as much as it can; learn its acceptance."""
    own = _fixed(llm, part, part.most)
    options = AdaptiveOptions(fixed=part.most, shared_noise=own.engine.rule.shared_noise)
    controller = AdaptiveBudget([_arm(part)], profile, options)
    watched = Watched()
    own.engine.controller, own.engine.trace = controller, watched.note
    for ids in prompts:
        done = own.generate(ids, params)
        if done.error is not None:
            raise WorkError(done.error)
    for name, rates in controller.found().items():
        profile.rates.setdefault(name, {}).update(rates)
    return watched


def _arm(part: Part) -> Arm:
    drafter = part.drafter
    return Arm(drafter.name, part.most, part.cost, getattr(drafter, "look", None), drafter.needs.tree)


def _fixed(llm: LLM, part: Part, length: int) -> LLM:
    return llm.with_drafter(Guess(part.drafter, length, parts=[part], fixed=length))


def _predicted(
    part: Part, profile: Profile, watched: Watched, prompts: list[list[int]], params: SamplingParams
) -> list[Line]:
    context = int(sum(len(ids) for ids in prompts) / len(prompts)) + (params.max_tokens or 0) // 2
    kind = "greedy" if params.greedy else "sampled"
    seconds = Prices([_arm(part)], profile).lengths(0, 1, context, kind)
    lines = []
    for n in sorted({*(n for n in LENGTHS if n < part.most), part.most}):
        speed, tokens = watched.predicted(n, seconds)
        lines.append(Line(part.drafter.name, n, speed * seconds[0], tokens))
    return lines


def _worth(part: Part, lines: list[Line]) -> list[Line]:
    """The lengths of a drafter that are measured: the one predicted best, and the longest."""
    own = [line for line in lines if line.drafter == part.drafter.name]
    best = max(own, key=lambda line: line.predicted)
    return [best] if best is own[-1] else [best, own[-1]]


def _name(line: Line) -> str:
    return f"{line.drafter} {line.draft_tokens}"


def _tuned(profile: Profile, results: Results, lines: list[Line], start: float) -> Tuned:
    sides = {
        name: [Times(len(runs[0].tokens), [run.decode for run in runs]) for runs in each]
        for name, each in results.items()
    }
    plain = sides[PLAIN]
    texts = {name: [runs[0].tokens for runs in each] for name, each in results.items()}
    measured = []
    for line in lines:
        name = _name(line)
        if name in results:
            passes = sum(run.stats["target_passes"] for runs in results[name] for run in runs)
            tokens = sum(len(run.tokens) for runs in results[name] for run in runs)
            ratio = speedup(plain, sides[name])
            line = dataclasses.replace(line, measured=ratio, tokens_per_pass=tokens / passes)
        measured.append(line)
    return Tuned(
        profile,
        prompts=len(plain),
        tokens=sum(t.tokens for t in plain),
        plain=rate(plain),
        auto=speedup(plain, sides[AUTO]),
        auto_speed=rate(sides[AUTO]),
        lines=measured,
        seconds=time.perf_counter() - start,
        same_texts=all(found == texts[PLAIN] for found in texts.values()),
    )
