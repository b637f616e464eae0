"""Predict for a model, a drafter and texts: acceptance measured offline, costs timed here, put together.

In: an `LLM` with its drafter, and texts; prompts become texts by letting the target answer them plainly. Out: a
`Forecast`. The drafter never runs in the decode loop, except in `check`, which measures what was predicted.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from slipstream.measure.predict import Prediction
from slipstream.measure.predict_costs import profile
from slipstream.measure.predict_offline import Text, walker
from slipstream.measure.predict_walk import Profile, Walk, predict_walks
from slipstream.types import RequestError, SamplingParams

if TYPE_CHECKING:
    from slipstream.llm import LLM

LEAST_LONGEST = 12  # lengths looked at when the user named none
CONTEXT = 32  # tokens of a text that only serve as its beginning
SEGMENT = 128  # tokens of a text that count as one unit of the bootstrap

Tick = Callable[[], object]


@dataclass(frozen=True)
class Forecast:
    """What was predicted, for how much text, and from which timings."""

    prediction: Prediction
    profile: Profile
    texts: list[Text]
    walks: list[Walk]

    @property
    def tokens(self) -> int:
        """Tokens that the prediction is about."""
        return sum(len(text.output) for text in self.texts)


def answered(llm: LLM, prompts: Seq[Any], params: SamplingParams, tick: Tick = lambda: None) -> list[Text]:
    """Let the target answer prompts plainly and return prompts and answers as texts of its own."""
    plain = llm.with_drafter("none")
    texts = []
    for number, prompt in enumerate(prompts, 1):
        ids = plain.encode(prompt)
        done = plain.generate(ids, dataclasses.replace(params, n=1))
        if len(done.token_ids) > 1:
            texts.append(Text(f"prompt {number}", ids, done.token_ids, own=True))
        tick()
    if not texts:
        raise RequestError("the model ended every answer at once: there is nothing to predict from; use other prompts")
    return texts


def segments(llm: LLM, name: str, content: str) -> list[Text]:
    """Cut a text of any origin into units: each has all that precedes it (as far as it fits) as its prompt."""
    ids = llm.tokenizer.encode(content)
    if len(ids) < CONTEXT + 2:
        raise RequestError(f"text {name!r} has {len(ids)} tokens; at least {CONTEXT + 2} are needed")
    room = llm.max_model_len - 1
    size = max(2, min(SEGMENT, room - CONTEXT))
    texts = []
    for start in range(CONTEXT, len(ids) - 1, size):
        output = ids[start : start + size]
        if len(output) > 1:
            prompt = ids[max(0, start - (room - len(output))) : start]
            texts.append(Text(f"{name}, token {start}", prompt, output, own=False))
    return texts


def forecast(
    llm: LLM,
    texts: list[Text],
    params: SamplingParams,
    *,
    draft_tokens: int | None = None,
    timed: Profile | None = None,
    tick: Tick = lambda: None,
) -> Forecast:
    """Walk the texts with `llm`'s drafter, time rounds unless `timed` says what they cost, and predict.

    `draft_tokens` None: the best length is predicted, and all up to the drafter's own (at least 12) are in the curve.
    """
    widest = llm.engine.target.caps.max_nodes - 1
    longest = min(widest, max(LEAST_LONGEST, llm.draft_tokens)) if draft_tokens is None else draft_tokens
    if not 1 <= longest <= widest:
        raise RequestError(f"draft_tokens={longest} must be 1 to {widest} to predict a speed-up")
    walk = walker(llm, params, longest)
    walks = []
    for text in texts:
        walks.append(walk(text))
        tick()
    if timed is None:
        middle = sorted(texts, key=lambda t: len(t.prompt) + len(t.output))[len(texts) // 2]
        timed = profile(llm, middle.prompt + middle.output, params, longest, place=_typical(texts))
    detail = {
        "tokens": sum(len(text.output) for text in texts),
        "texts": len(texts),
        "plain_round_seconds": timed.plain_seconds,
        "drafter": llm.drafter,
        "verify": llm.verify_for(params),
        "own_text": all(text.own for text in texts),
    }
    found = predict_walks(walks, timed, draft_tokens, detail=detail)
    return Forecast(found, timed, texts, walks)


def check(llm: LLM, texts: list[Text], params: SamplingParams, repeats: int = 2, tick: Tick = lambda: None) -> Any:
    """Measure what was predicted: decode the prompts plainly and with the drafter in turn; return a `Ratio`.

    `llm` must draft as many tokens as the prediction is for; only texts of the target's own can be measured.
    """
    from slipstream.measure.report import Times, speedup
    from slipstream.measure.timing import in_turn, llm_runner, warm_up

    if not all(text.own for text in texts):
        raise RequestError("only prompts can be measured: give --suite instead of --text")
    runners = {"plain": llm_runner(llm.with_drafter("none"), params), "drafted": llm_runner(llm, params)}
    prompts = [text.prompt for text in texts]
    warm_up(runners, prompts[0])
    found = in_turn(runners, prompts, repeats, tick=tick)
    sides = [[Times(len(runs[0].tokens), [r.decode for r in runs]) for runs in found[name]] for name in runners]
    return speedup(sides[0], sides[1])


def _typical(texts: list[Text]) -> int:
    """The context length that a round of these texts has, on average."""
    return int(sum(len(t.prompt) + len(t.output) / 2 for t in texts) / len(texts))
