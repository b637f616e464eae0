"""Measure on texts how often a drafter would be right, without running it in the loop (teacher forcing).

In: a target, a drafter, a text (prompt and output ids). Out: a `Walk`. Drafters that guess by themselves (lookup) are
asked for a draft at every place of the text; a draft model and the target each run once over the text, and the laws
p and q at every place say how likely the text's own tokens would have been accepted.

If the target wrote the text, this is exact: given that token x came out after prefix s, it was an accepted draft with
probability min(1, q(x|s) / p(x|s)) (token by token; the others likewise, below). For other texts the chance of
acceptance sum min(p, q) stands in for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from slipstream import build
from slipstream.config import TargetConfig
from slipstream.measure.certify import chain_of, replay
from slipstream.measure.predict_walk import Array, Walk
from slipstream.sampling import laws
from slipstream.sampling.laws import draft_law, fit_vocab
from slipstream.types import Drafter, RequestError, SamplingParams, Sequence, Target

if TYPE_CHECKING:
    from slipstream.llm import LLM

CHUNK = 48  # positions scored, and laws held, at a time


@dataclass(frozen=True)
class Text:
    """A text to walk: what is given, and what is to be written. `own`: the target wrote it, with these parameters."""

    name: str
    prompt: list[int]
    output: list[int]
    own: bool


@dataclass(frozen=True)
class Chances:
    """What is known at each place of a text: `accept` [T], the chance of acceptance there, and, for a text of the
    target's own, log(q / p) of its token [T]; `coupled` [T] is the chance under shared noise."""

    accept: Array
    ratio: Array
    coupled: Array


def walker(llm: LLM, params: SamplingParams, longest: int) -> Callable[[Text], Walk]:
    """Return what walks a text with `llm`'s drafter, drafting at most `longest` tokens."""
    plug = build.DRAFTERS.get(llm.drafter)
    if llm.drafter == "none":
        raise RequestError("drafter none guesses nothing: there is no speed-up to predict; give another --drafter")
    if "+" in llm.drafter:
        raise RequestError(f"drafter {llm.drafter!r} is a mix: predict each part alone, or measure it with 'tune'")
    if plug is not None and plug.draws:
        if llm.drafter_folder is None or llm.drafter != "draft_model":
            raise RequestError(
                f"acceptance of drafter {llm.drafter!r} cannot be measured offline; give --alpha instead"
            )
        guesser = _draft_target(llm)
        rule = llm.verify_for(params)
        return lambda text: forced_walk(llm.engine.target, guesser, text, params, (rule, longest))
    eos = tuple(llm.tokenizer.eos_ids)
    return lambda text: guessed_walk(llm.engine.drafter, text, params, eos, longest)


def _draft_target(llm: LLM) -> Target:
    """The draft model as a target of its own: it is fed known text, which is what targets can do."""
    dtype = str(llm.opened.dtype).removeprefix("torch.")
    config = TargetConfig(
        model=str(llm.drafter_folder), dtype=dtype, device=llm.opened.device, max_len=llm.max_model_len
    )
    return build.open_target(config, rows=1).target


def guessed_walk(drafter: Drafter, text: Text, params: SamplingParams, eos_ids: tuple[int, ...], longest: int) -> Walk:
    """Ask `drafter` for a chain before every token of the text; what agrees with the text would have been kept."""
    row = Sequence(-1, list(text.prompt), len(text.prompt), params, eos_ids=eos_ids)
    count = len(text.output)
    survival, drafted = np.zeros((count, longest)), np.zeros(count, dtype=np.int64)
    fresh = text.prompt[:-1]
    try:
        for t, token in enumerate(text.output):
            drafter.observe([row], [fresh], [{}])
            guess = _guess(drafter, row, min(longest, count - t - 1))
            drafted[t] = len(guess)
            survival[t, : _agreeing(guess, text.output[t:])] = 1.0
            fresh = row.tokens[-1:]
            row.tokens.append(token)
    finally:
        drafter.forget(row)
    return Walk(survival, drafted)


def _guess(drafter: Drafter, row: Sequence, budget: int) -> list[int]:
    from slipstream.sampling import RequestRngs

    draft = drafter.propose([row], [budget], RequestRngs([row]))
    if not draft.chain:
        raise RequestError(f"drafter {drafter.name!r} drafts trees; only chains can be predicted from a text")
    found: list[int] = draft.tokens[0, 1 : int(draft.length[0])].tolist()
    return found


def _agreeing(guess: list[int], following: list[int]) -> int:
    count = 0
    for a, b in zip(guess, following, strict=False):
        if a != b:
            break
        count += 1
    return count


def forced_walk(target: Target, guesser: Target, text: Text, params: SamplingParams, how: tuple[str, int]) -> Walk:
    """Run both models once over the text and derive what rounds of the rule `how[0]`, up to `how[1]` tokens, keep."""
    rule, longest = how
    chances = measure_chances(target, guesser, text, params)
    count = len(text.output)
    survival = np.zeros((count, longest))
    exact = text.own and not params.greedy
    for t in range(count):
        stop = min(t + longest, count - 1)  # a round adds a token of the target's own: the last is never drafted
        part = slice(t, stop)
        if exact and rule == "block":
            kept = _block(chances.ratio[part])
        elif exact and rule == "coupled":
            kept = np.cumprod(chances.coupled[part])
        elif exact:
            kept = np.cumprod(np.exp(np.minimum(chances.ratio[part], 0.0)))
        else:
            kept = np.cumprod(chances.accept[part])
        survival[t, : len(kept)] = kept
    drafted = np.minimum(longest, count - 1 - np.arange(count))
    return Walk(survival, drafted)


def _block(ratio: Array) -> Array:
    """Return the chance that block verification kept at least 1, 2, .. of tokens that came out, from log(q/p) of each.

    With r_i = min(1, r_{i-1} p/q) it is r_i * prod(q/p), that is the least of 1 and prod(q/p) over 1..j, j <= i.
    """
    return np.asarray(np.exp(np.minimum.accumulate(np.minimum(np.cumsum(ratio), 0.0))))


def measure_chances(target: Target, guesser: Target, text: Text, params: SamplingParams) -> Chances:
    """Run both models over the text; return the chance of acceptance at each place."""
    accept: list[float] = []
    ratio: list[float] = []
    coupled: list[float] = []
    row = Sequence(-1, list(text.prompt), len(text.prompt), params)
    ours = replay(target, text.prompt, text.output, CHUNK)
    theirs = replay(guesser, text.prompt, text.output, min(CHUNK, target.caps.max_nodes))
    for logits, other in zip(_even(ours), _even(theirs), strict=True):
        done = len(accept)
        part = text.output[done : done + len(logits)]
        p, q = _laws(row, part, logits, other)
        found = _point_chances(p, q) if params.greedy else _chances(p, q, torch.tensor(part, device=p.device))
        for values, new in zip((accept, ratio, coupled), found, strict=True):
            values.extend(new.tolist())
        row.tokens.extend(part)
    return Chances(np.array(accept), np.array(ratio), np.array(coupled))


def _even(chunks: Any) -> Any:
    """Rows one by one in equal portions, whatever the targets' own limits made of the chunk size."""
    waiting: list[Tensor] = []
    held = 0
    for chunk in chunks:
        for row in chunk:
            waiting.append(row)
            held += 1
            if held == CHUNK:
                yield torch.stack(waiting)
                waiting, held = [], 0
    if waiting:
        yield torch.stack(waiting)


def _laws(row: Sequence, part: list[int], logits: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    """Return p and q after each prefix of the part: rows [T, V] for sampling, points [T] when greedy."""
    root = row.tokens[-1]
    fed = chain_of([root, *part[:-1]])
    found = laws([row], logits[None], fed)
    vocab = logits.shape[1]
    prefixes = [[*row.tokens, *part[:i]] for i in range(len(part))]
    q = draft_law([row] * len(part), prefixes, fit_vocab(other, vocab, logits=True))
    if found.points is not None:
        return found.points[0], q.argmax(-1)
    assert found.probs is not None
    return found.probs[0], q


def _point_chances(p: Tensor, q: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    same = (p == q).double()
    return same, torch.zeros_like(same), same


def _chances(p: Tensor, q: Tensor, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return sum min(p, q), log(q/p) at x, and the chance that shared noise made the drafter draw x given x came out.

    The noise gives both x with probability 1 / sum_v max(p_v / p_x, q_v / q_x) (Daliri et al. 2408.07978, sec. 3).
    """
    accept = torch.minimum(p, q).sum(-1).double()
    p_x, q_x = (rows.gather(1, x[:, None])[:, 0].double() for rows in (p, q))
    p_x, tiny = p_x.clamp(min=1e-30), 1e-30
    ratio = (q_x.clamp(min=tiny) / p_x).log()
    both = torch.maximum(p.double() / p_x[:, None], q.double() / q_x.clamp(min=tiny)[:, None]).sum(-1)
    coupled = torch.where(q_x > 0, 1.0 / (both * p_x), 0.0)
    return accept, ratio, coupled.clamp(max=1.0)
