"""What `auto` costs where nothing can be gained: prompts made to defeat it, beside plain decoding in the same run.

In: an `LLM` whose drafter is chosen by cost. Out: for each kind of prompt the speed of auto over plain, with an
interval. End-of-text is ignored, so that both sides always decode the same number of tokens.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from slipstream.measure.report import Ratio, Times, rate, speedup, table
from slipstream.measure.timing import Results, in_turn, llm_runner, warm_up
from slipstream.types import SamplingParams

if TYPE_CHECKING:
    from slipstream.llm import LLM

LEAST = 0.98  # of plain decoding's speed
PHRASE, TIMES = 5, 16

Case = tuple[list[list[int]], SamplingParams]


@dataclass(frozen=True)
class Found:
    """One kind of prompt: tokens per second of plain decoding, and the ratio to it."""

    kind: str
    prompts: int
    tokens: int
    plain: float
    ratio: Ratio

    @property
    def verdict(self) -> str:
        """Whether the limit is kept, as far as the interval tells."""
        if self.ratio.low >= LEAST:
            return "kept"
        return "missed" if self.ratio.high < LEAST else "within noise"


def cases(vocab: int, prompts: Seq[list[int]], max_tokens: int, count: int = 4) -> dict[str, Case]:
    """Return the prompts to be defeated by; `prompts` are ordinary ones, for warm and hot decoding."""
    greedy = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    warm, hot = (dataclasses.replace(greedy, temperature=t, seed=1) for t in (0.7, 1.5))
    return {
        "random tokens": ([noise(vocab, 96, seed) for seed in range(count)], greedy),
        "repeats that break": ([breaking(vocab, seed) for seed in range(count)], greedy),
        "temperature 0.7": (list(prompts[:count]), warm),
        "temperature 1.5": (list(prompts[:count]), hot),
        "random, temperature 1.5": ([noise(vocab, 96, count + seed) for seed in range(count)], hot),
    }


def noise(vocab: int, length: int, seed: int) -> list[int]:
    """Return ids without any pattern."""
    rand = random.Random(seed)
    return [rand.randrange(vocab) for _ in range(length)]


def breaking(vocab: int, seed: int) -> list[int]:
    """Return a phrase again and again, each time with another token after it: lookup always matches, always wrongly."""
    rand = random.Random(seed)
    phrase = [rand.randrange(vocab) for _ in range(PHRASE)]
    return [token for _ in range(TIMES) for token in (*phrase, rand.randrange(vocab))] + phrase


def regret(llm: LLM, kinds: dict[str, Case], repeats: int, tick: Callable[[], object]) -> list[Found]:
    """Decode all cases with plain and with the LLM's own drafter, in turn."""
    plain, found = llm.with_drafter("none"), []
    for kind, (prompts, params) in kinds.items():
        runners = {"plain": llm_runner(plain, params), "auto": llm_runner(llm, params)}
        warm_up(runners, prompts[0])
        found.append(_judged(kind, in_turn(runners, prompts, repeats, tick=tick)))
    return found


def _judged(kind: str, results: Results) -> Found:
    plain, auto = (
        [Times(len(runs[0].tokens), [run.decode for run in runs]) for runs in results[side]]
        for side in ("plain", "auto")
    )
    return Found(kind, len(plain), sum(t.tokens for t in plain), rate(plain), speedup(plain, auto))


def as_dicts(found: Seq[Found]) -> list[dict[str, Any]]:
    """Return the rows of the JSON output."""
    return [dataclasses.asdict(each) | {"verdict": each.verdict} for each in found]


def show(found: Seq[Found], model: str, drafter: str) -> str:
    """Return the rows as text."""
    rows = [
        [each.kind, str(each.prompts), str(each.tokens), f"{each.plain:.1f}", each.ratio.words(), each.verdict]
        for each in found
    ]
    title = f"No regret: {model}, {drafter} against plain, batch 1, decoding only, in turn; at least {LEAST} is wanted"
    return f"{title}\n{table(['prompts', 'of them', 'tokens', 'plain tok/s', 'auto / plain', 'limit'], rows)}"
