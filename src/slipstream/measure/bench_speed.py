"""Speculative against plain decoding on real prompts: same target, same process, in turn, prompt by prompt.

In: an `LLM` with a drafter and prompts. Out: a `SpeedResult`: tokens per second, acceptance length, where the time
went, whether outputs agree. No speed-up is stated where outputs differ by more than rounding explains.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from slipstream.measure.agreement import Agreement, Notary, statement
from slipstream.measure.report import Ratio, Times, rate, speedup, table
from slipstream.measure.timing import Timing, in_turn, llm_runner, warm_up
from slipstream.types import SamplingParams

if TYPE_CHECKING:
    from slipstream.llm import LLM


@dataclass(frozen=True)
class PromptResult:
    """Both sides' repeats of one prompt, and whether the outputs agree."""

    id: str
    plain: list[Timing]
    drafted: list[Timing]
    agreement: Agreement

    @property
    def acceptance_length(self) -> float:
        """Tokens per target pass, the target's own token included."""
        return float(self.drafted[0].stats["mean_acceptance_length"])

    def times(self, side: str, part: str = "decode") -> Times:
        """Return one side's tokens and seconds; part "wall" includes prefill."""
        runs: list[Timing] = getattr(self, side)
        return Times(len(runs[0].tokens), [getattr(run, part) for run in runs])


@dataclass(frozen=True)
class SpeedResult:
    """What one set of prompts showed."""

    title: str
    prompts: list[PromptResult]

    @property
    def holds(self) -> bool:
        """True if every output agrees with plain decoding."""
        return all(p.agreement.holds for p in self.prompts)

    def rate(self, side: str) -> float:
        """Return a side's tokens per second of decoding over all prompts."""
        return rate([p.times(side) for p in self.prompts])

    def ratio(self, part: str = "decode") -> Ratio:
        """Return the speed-up over all prompts; part "wall" includes prefill. Only meaningful if `holds`."""
        return speedup([p.times("plain", part) for p in self.prompts], [p.times("drafted", part) for p in self.prompts])

    @property
    def acceptance_length(self) -> float:
        """Tokens per target pass over all prompts, the target's own token included."""
        tokens = sum(len(p.drafted[0].tokens) for p in self.prompts)
        return tokens / sum(p.drafted[0].stats["target_passes"] for p in self.prompts)

    def as_dict(self) -> dict[str, Any]:
        """Return the result for JSON; the ratios are null unless the outputs agree."""
        return {
            "title": self.title,
            "statement": statement([p.agreement for p in self.prompts]),
            "plain_tokens_per_second": self.rate("plain"),
            "drafted_tokens_per_second": self.rate("drafted"),
            "speed_up": asdict(self.ratio()) if self.holds else None,
            "speed_up_with_prefill": asdict(self.ratio("wall")) if self.holds else None,
            "mean_acceptance_length": self.acceptance_length,
            "seconds": {side: self.seconds(side) for side in ("plain", "drafted")},
            "prompts": [_prompt_dict(p) for p in self.prompts],
        }

    def seconds(self, side: str) -> dict[str, float]:
        """Return where a side's time went, summed over prompts (medians of repeats)."""
        parts = ("prefill_seconds", "draft_seconds", "target_seconds", "other_seconds")
        return {part: sum(median(t.stats[part] for t in getattr(p, side)) for p in self.prompts) for part in parts}


def speed(
    llm: LLM,
    prompts: Mapping[str, list[int]],
    params: SamplingParams,
    repeats: int,
    *,
    title: str = "",
    tick: Callable[[], object] = lambda: None,
    deadline: float | None = None,
) -> SpeedResult:
    """Decode every prompt plainly and with `llm`'s drafter, in turn, and compare outputs. `params` must be greedy."""
    plain = llm.with_drafter("none")
    runners = {"plain": llm_runner(plain, params), "drafted": llm_runner(llm, params)}
    ids = list(prompts.values())
    warm_up(runners, ids[0])
    results = in_turn(runners, ids, repeats, tick=tick, deadline=deadline)
    notary = Notary(llm)
    found = []
    for name, prompt, a, b in zip(prompts, ids, results["plain"], results["drafted"], strict=True):
        found.append(PromptResult(name, a, b, notary.compare(prompt, a[0].tokens, b[0].tokens)))
    return SpeedResult(title, found)


def show(result: SpeedResult, drafter: str) -> str:
    """Return the result as text."""
    head = ["prompt", "tokens", "plain tok/s", f"{drafter} tok/s", "ratio", "tok/pass", "outputs"]
    rows = [_row(p) for p in result.prompts]
    lines = [result.title, table(head, rows), statement([p.agreement for p in result.prompts])]
    if not result.holds:
        return "\n".join([*lines, "no speed-up is stated: the outputs are not the same"])
    lines += [
        f"plain {result.rate('plain'):.2f} tok/s, {drafter} {result.rate('drafted'):.2f} tok/s: "
        f"{result.ratio().words()}; with prefill {result.ratio('wall').words()}",
        f"mean acceptance length {result.acceptance_length:.2f} tokens per target pass, the target's own included",
        "seconds: " + "; ".join(_spent(side, result.seconds(side)) for side in ("plain", "drafted")),
    ]
    return "\n".join(lines)


def _spent(side: str, seconds: Mapping[str, float]) -> str:
    return f"{side} " + ", ".join(f"{part.removesuffix('_seconds')} {value:.2f}" for part, value in seconds.items())


def _row(p: PromptResult) -> list[str]:
    plain, drafted = rate([p.times("plain")]), rate([p.times("drafted")])
    ratio = f"{drafted / plain:.2f}x" if p.agreement.holds else "-"
    tokens = str(len(p.drafted[0].tokens))
    return [p.id, tokens, f"{plain:.2f}", f"{drafted:.2f}", ratio, f"{p.acceptance_length:.2f}", p.agreement.word]


def _prompt_dict(p: PromptResult) -> dict[str, Any]:
    return {
        "id": p.id,
        "tokens": len(p.drafted[0].tokens),
        "plain_decode_seconds": [t.decode for t in p.plain],
        "drafted_decode_seconds": [t.decode for t in p.drafted],
        "mean_acceptance_length": p.acceptance_length,
        **p.agreement.as_dict(),
    }
