"""What a round costs on this machine: the target's pass, each drafter's draft, and what is done around them.

In: a target with free slots, drafters, a rule. Out: a `Profile`, seconds by rows, nodes, context and drafted tokens,
and, where `tune` has put them, the acceptance to start from. Costs say nothing about tokens, so using them keeps the
output's law (law 4). Files are `profile_file`'s.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import Any

import torch

from slipstream.control.cost import CONTEXT, POINTS, CostTable, measure
from slipstream.sampling import RequestRngs, laws
from slipstream.types import Draft, Drafter, Draw, RequestError, SamplingParams, Sequence, Target, VerifyRule

FAR_POINTS = (1, 8)
FAR_SECONDS = 1.0  # the most a longer context may take to fill
STEP = 2  # tokens a drafter hears between two timed drafts
CYCLES = 7

Kind = str  # of a row: "greedy", "sampled", or "coupled" where it is sampled with shared noise
KINDS: tuple[Kind, ...] = ("greedy", "sampled")


@dataclass
class Profile:
    """Seconds on one machine, for one target.

    `passes` holds a table by nodes in all for each number of rows; `reach` what each further token of context adds to a
    pass, by nodes of a row. `drafts[name][kind]` and `around[kind]` are by drafted tokens, plus one: a table starts
    at 1. `rates[name][kind]` are conditional acceptances by position, to start from, by node for the drafters in
    `trees`. `reading[name]`: seconds that a drafter needs for a token of a prompt, where it may put them off.
    """

    passes: dict[int, CostTable]
    reach: dict[int, float] = field(default_factory=dict)
    drafts: dict[str, dict[Kind, CostTable]] = field(default_factory=dict)
    around: dict[Kind, CostTable] = field(default_factory=dict)
    rates: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    reading: dict[str, float] = field(default_factory=dict)
    trees: set[str] = field(default_factory=set)

    def target(self, rows: int, nodes: int, context: int = CONTEXT) -> float:
        """Return the seconds of a pass over `nodes` nodes in all of `rows` rows; lines between measured row counts."""
        known = sorted(self.passes)
        above = next((n for n in known if n >= rows), known[-1])
        below = max((n for n in known if n <= rows), default=known[0])
        found = self.passes[below](nodes)
        if above > below:
            found += (self.passes[above](nodes) - found) * (rows - below) / (above - below)
        return max(found, 1e-9) + max(0, context - CONTEXT) * self._slope(max(1, nodes // max(1, rows))) * rows

    def draft(self, name: str, tokens: int, kind: Kind) -> float:
        """Return the seconds a drafter takes for so many tokens, hearing of the last round included."""
        table = self.drafts.get(name, {}).get("sampled" if kind == "coupled" else kind)
        return table(tokens + 1) if table is not None else 0.0

    def host(self, tokens: int, kind: Kind) -> float:
        """Return the seconds that laws and verification take."""
        table = self.around.get(kind)
        return table(tokens + 1) if table is not None else 0.0

    def _slope(self, nodes: int) -> float:
        if not self.reach:
            return 0.0
        low, high = min(self.reach), max(self.reach)
        share = 0.0 if high == low else min(1.0, max(0.0, (nodes - low) / (high - low)))
        return self.reach[low] + share * (self.reach[high] - self.reach[low])

    def as_dict(self) -> dict[str, Any]:
        """Return the profile for a file."""
        return {
            "passes": {str(rows): _points(table) for rows, table in self.passes.items()},
            "reach": {str(nodes): seconds for nodes, seconds in self.reach.items()},
            "drafts": {name: {k: _points(t) for k, t in tables.items()} for name, tables in self.drafts.items()},
            "around": {kind: _points(table) for kind, table in self.around.items()},
            "rates": self.rates,
            "reading": self.reading,
            "trees": sorted(self.trees),
        }


def from_dict(found: Mapping[str, Any]) -> Profile:
    """Read what `as_dict` wrote; anything else raises (KeyError, TypeError, ValueError, AttributeError)."""
    rates = {
        str(name): {str(kind): [_share(v) for v in values] for kind, values in kinds.items()}
        for name, kinds in found["rates"].items()
    }
    passes = {int(rows): _table(points) for rows, points in found["passes"].items()}
    if not passes or min(passes) < 1:
        raise ValueError("a profile needs the target's passes")
    return Profile(
        passes,
        {int(nodes): max(0.0, float(seconds)) for nodes, seconds in found["reach"].items()},
        {str(n): {str(k): _table(p) for k, p in tables.items()} for n, tables in found["drafts"].items()},
        {str(kind): _table(points) for kind, points in found["around"].items()},
        rates,
        {str(name): max(0.0, float(seconds)) for name, seconds in found.get("reading", {}).items()},
        {str(name) for name in found.get("trees", [])},
    )


def flat(seconds: float = 1.0) -> Profile:
    """Return the profile of a machine nothing is known of: every pass costs the same, drafts nothing."""
    return Profile({1: CostTable({1: seconds})})


def kind_of(greedy: bool, shared_noise: bool) -> Kind:
    """Return the kind of a row under a rule."""
    return "greedy" if greedy else "coupled" if shared_noise else "sampled"


def measure_target(target: Target, *, seconds: float = 1.0) -> Profile:
    """Time the target; slot 0 must be empty, and is left so."""
    with torch.inference_mode():
        start = time.perf_counter()
        passes = {1: measure(target, points=[n for n in POINTS if n <= 32], seconds=seconds)}
        spent = time.perf_counter() - start
        return Profile(passes, _reach(target, passes[1], min(FAR_SECONDS, spent)))


def measure_around(target: Target, rule: VerifyRule) -> dict[Kind, CostTable]:
    """Time what is done around the target's passes under a rule, by the kind of row."""
    widest = min(16, target.caps.max_nodes - 1)
    with torch.inference_mode():
        return {
            kind_of(greedy, rule.shared_noise): CostTable(
                {n + 1: _around(target, rule, n, greedy) for n in {0, min(4, widest), widest}}
            )
            for greedy in (True, False)
        }


def measure_rows(target: Target, rows: int, *, seconds: float = 0.75) -> CostTable:
    """Time passes of several rows at once; slots 0..rows - 1 must be empty, and are left so."""
    with torch.inference_mode():
        return measure(target, points=[n for n in POINTS if n <= 4], seconds=seconds, rows=rows)


def measure_drafter(
    target: Target, drafter: Drafter, most: int, *, kinds: Seq[Kind] = KINDS, seconds: float = 0.6
) -> dict[Kind, CostTable]:
    """Time a drafter on a row of its own, by drafted tokens; slot 0 must be empty, and is left so."""
    return {kind: _Scratch(target, drafter, kind).table(_sizes(most), seconds) for kind in kinds}


def measure_reading(target: Target, drafter: Drafter) -> float:
    """Time a drafter that hears a prompt, in seconds per token; slot 0 must be empty, and is left so."""
    with torch.inference_mode():
        scratch = _Scratch(target, drafter, "greedy")
        return min(scratch.reading() for _ in range(2))  # the first finds everything cold


def _sizes(most: int) -> list[int]:
    return sorted({0, *(n for n in (1, 2, 4, 8, 16) if n < most), most})


def _reach(target: Target, near: CostTable, seconds: float) -> dict[int, float]:
    """Seconds that a token of context adds to a pass, from a context that takes at most `seconds` to fill."""
    room = target.caps.max_len - max(FAR_POINTS) - 1
    per_token = near(32) / 32
    far = min(room, 1024, CONTEXT + int(seconds / per_token))
    points = [n for n in FAR_POINTS if n <= target.caps.max_nodes]
    if far < 3 * CONTEXT:
        return {}
    table = measure(target, points=points, seconds=seconds / 3, context=far)
    return {n: max(0.0, table(n) - near(n)) / (far - CONTEXT) for n in points}


def _around(target: Target, rule: VerifyRule, drafted: int, greedy: bool) -> float:
    """Seconds of laws and verification of a chain of fixed guesses, on logits of the target's size."""
    vocab = target.caps.vocab
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(1, drafted + 1, vocab, generator=generator)
    row = Sequence(-4, [0, 0], 1, _params(greedy), seed=1)
    tokens = torch.zeros(1, drafted + 1, dtype=torch.int64)
    parents = torch.arange(-1, drafted)[None]
    draft = Draft(tokens, parents, torch.tensor([drafted + 1]), torch.full_like(tokens, int(Draw.FIXED)))
    times = []
    for _ in range(10):
        start = time.perf_counter()
        rule(draft, laws([row], logits, draft), RequestRngs([row], shared_noise=rule.shared_noise))
        times.append(time.perf_counter() - start)
    return max(1e-7, statistics.median(times[3:]))


def _params(greedy: bool) -> SamplingParams:
    return SamplingParams(temperature=0.0 if greedy else 1.0, ignore_eos=True, max_tokens=None)


class _Scratch:
    """One row of a text that a drafter hears a few tokens of at a time, with the target's taps. As far as there are ids
    none comes twice: what a repetition saves is not to be counted on."""

    def __init__(self, target: Target, drafter: Drafter, kind: Kind) -> None:
        self.target, self.drafter = target, drafter
        self.room = min(target.caps.max_len - 1, 1024)
        self.ids = min(1021, target.caps.vocab)
        self.row = Sequence(-5, [0], 1, _params(kind == "greedy"), seed=1)
        wait = getattr(drafter, "wait", None)
        if wait is not None:  # a controller may have told it whom to ask
            wait(None)

    def table(self, sizes: list[int], seconds: float) -> CostTable:
        times: dict[int, list[float]] = {n: [] for n in sizes}
        try:
            with torch.inference_mode():
                self._begin()
                self._seconds(max(sizes))
                end = time.perf_counter() + seconds
                while len(times[sizes[-1]]) < CYCLES:
                    for n in sizes:
                        times[n].append(self._seconds(n))
                    if time.perf_counter() > end:
                        break
        finally:
            self._end()
        return CostTable({n + 1: max(1e-7, statistics.median(found)) for n, found in times.items()})

    def reading(self) -> float:
        try:
            return max(1e-7, self._begin())
        finally:
            self._end()

    def _begin(self) -> float:
        """Hear a text; return the drafter's seconds per token."""
        self.row.tokens[:] = [0]
        count = min(CONTEXT, self.room // 2)
        self.row.prompt_len = count + 1  # so it is read as prompts are
        return self._hear(count) / count

    def _end(self) -> None:
        self.drafter.forget(self.row)
        self.target.release(0)

    def _hear(self, count: int) -> float:
        """Commit `count` tokens; return the drafter's own time."""
        start = len(self.row.tokens)
        self.row.tokens.extend(i * 769 % self.ids for i in range(start, start + count))
        heard = self.row.tokens[start - 1 : -1]
        taps = self.target.prefill(0, heard) if self.drafter.needs.taps else {}
        begin = time.perf_counter()
        self.drafter.observe([self.row], [heard], [taps])
        return time.perf_counter() - begin

    def _seconds(self, size: int) -> float:
        if len(self.row.tokens) + STEP + size > self.room:
            self._end()
            self._begin()
        spent = self._hear(STEP)
        self.row.rounds += 1
        rngs = RequestRngs([self.row])
        begin = time.perf_counter()
        if size:
            self.drafter.propose([self.row], [size], rngs)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return spent + time.perf_counter() - begin


def _points(table: CostTable) -> dict[str, float]:
    return {str(n): s for n, s in zip(table.nodes, table.seconds, strict=True)}


def _table(points: Mapping[str, float]) -> CostTable:
    try:
        return CostTable({int(n): float(s) for n, s in points.items()})
    except RequestError as error:
        raise ValueError(str(error)) from error


def _share(value: Any) -> float:
    found = float(value)
    if not 0.0 <= found <= 1.0:
        raise ValueError(f"an acceptance of {found}")
    return found
