"""Record every round of one generation: drafts, p and q of each drafted token, coins, what replaced a refused token.

In: an `LLM`, a prompt, parameters. Out: a `Story` of plain values, for a page or for JSON. The rounds are those of the
production engine with its own random streams: a watcher and a subclass that notes its draws look on, nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from slipstream.engine import Engine, EngineOptions, Round
from slipstream.measure.explain_rules import coins_of, rule_of
from slipstream.sampling import RequestRngs, new_seed
from slipstream.sampling.streams import Stream
from slipstream.types import Draw, SamplingParams, Sequence

if TYPE_CHECKING:
    from slipstream.llm import LLM

TOP = 5  # tokens listed of a law


@dataclass(frozen=True)
class Coin:
    """The draft stands if `drawn` < `chance`; None where a rule flips none."""

    chance: float
    drawn: float
    passed: bool


@dataclass(frozen=True)
class Choice:
    """A token that might follow: its share of p, of q (None: the drafter drew from no law), of the law drawn from."""

    token: str
    p: float
    q: float | None
    share: float


@dataclass(frozen=True)
class Node:
    """A drafted token. `p` and `q`: its probability after its parent, by the target and by the drafter (None: fixed).

    `overlap` is the chance of acceptance before any coin, sum min(p, q), and
    `entropy` that of the target's law, in nats.
    """

    index: int
    parent: int
    depth: int
    token: str
    p: float
    q: float | None
    overlap: float
    entropy: float
    state: str  # "kept", "refused" or "unreached"
    coin: Coin | None


@dataclass(frozen=True)
class RoundView:
    """One round. `own` is the target's own token, `kind` how it came: "bonus", "correction" or "plain"."""

    number: int
    root: str
    rule: str
    nodes: list[Node]
    kept: int
    own: str
    kind: str
    choices: list[Choice]
    emitted: list[tuple[str, str]]  # (text, who: "drafter" or "target")
    drafted_so_far: int
    kept_so_far: int
    tokens_so_far: int


@dataclass
class Story:
    """A whole generation."""

    prompt: str
    text: str
    model: str
    drafter: str
    params: dict[str, Any]
    rounds: list[RoundView] = field(default_factory=list)
    finish_reason: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the story for JSON."""
        return asdict(self)


def explain(llm: LLM, prompt: Any, params: SamplingParams, tick: Callable[[], object] = lambda: None) -> Story:
    """Generate once and record every round. `params.n` must be 1."""
    llm.check(prompt, params)
    ids = llm.encode(prompt)
    seed = params.seed if params.seed is not None else (llm.config.seed or new_seed())
    row = Sequence(-4, list(ids), len(ids), params, seed=seed, eos_ids=tuple(llm.tokenizer.eos_ids))
    draws: list[_Draws] = []
    engine = _engine(llm, draws)
    shown = {"temperature": params.temperature, "top_p": params.top_p, "top_k": params.top_k, "seed": seed}
    story = Story(llm.tokenizer.decode(ids, skip_special=False), "", llm.model, llm.drafter, shown)
    scribe = _Scribe(llm, story, draws)
    engine.watch = scribe.see
    engine.add(row)
    try:
        while not engine.idle:
            for delta in engine.step():
                scribe.close([(token.id, token.by) for token in delta.tokens])
                tick()
    finally:
        engine.abort(row)
    story.text, story.finish_reason = row.text, row.finish_reason
    return story


def _engine(llm: LLM, draws: list[_Draws]) -> Engine:
    from slipstream.text import Detokenizer

    own = llm.engine

    def make(rows: list[Sequence]) -> _Draws:
        draws[:] = [_Draws(rows, shared_noise=own.rule.shared_noise)]
        return draws[0]

    options = EngineOptions(max_rows=1, logprobs_mode=own.options.logprobs_mode)
    return Engine(
        own.target,
        own.drafter,
        own.rule,
        own.controller,
        options,
        detokenizer=lambda: Detokenizer(llm.tokenizer),
        make_rngs=make,
    )


class _Draws(RequestRngs):
    """The production streams of one round, which also note what was asked of them and what came out."""

    def __init__(self, rows: list[Sequence], shared_noise: bool = False) -> None:
        super().__init__(rows, shared_noise)
        self.coins: list[Coin] = []
        self.law: Tensor | None = None  # what the target's own token was drawn from
        self._drawn: list[float] = []

    def accept(self, a: Tensor, active: Tensor | None = None) -> Tensor:
        """Flip, and note chance, coin and outcome of each."""
        self._drawn = []
        passed = super().accept(a, active)
        flat = zip(a.flatten().tolist(), self._drawn, passed.flatten().tolist(), strict=False)
        self.coins += [Coin(float(chance), drawn, bool(up)) for chance, drawn, up in flat]
        return passed

    def correct(self, w: Tensor, active: Tensor | None = None) -> Tensor:
        """Draw, and note the law."""
        self.law = w[0].detach().clone()
        return super().correct(w, active)

    def _uniform(self, stream: Stream, b: int, n: int) -> list[float]:
        found = super()._uniform(stream, b, n)
        if stream is Stream.ACCEPT:
            self._drawn = found
        return found


class _Scribe:
    """Turns rounds of tensors into records of plain values."""

    def __init__(self, llm: LLM, story: Story, draws: list[_Draws]) -> None:
        self._decode: Callable[[int], str] = lambda token: llm.tokenizer.decode([token], skip_special=False)
        self._verify = llm.config.verify
        self._story, self._draws = story, draws
        self._open: dict[str, Any] = {}
        self._totals = [0, 0, 0]  # drafted, kept, tokens

    def see(self, work: Round) -> None:
        """Hear of a round before it is committed."""
        assert work.verdict is not None
        assert work.scores is not None
        draft, verdict, draws = work.draft, work.verdict, self._draws[0]
        length = int(draft.length[0])
        path = verdict.path[0, : int(verdict.accepted[0])].tolist()
        rule = rule_of(self._verify, draft, work.laws)
        p = work.laws.probs[0] if work.laws.probs is not None else work.scores.logits[0].float().softmax(-1)
        q = draft.q[0] if draft.q is not None else None
        coins = coins_of(draft, path, draws.coins)
        nodes = [self._node(draft, i, (p, q), path, coins) for i in range(1, length)]
        last = path[-1] if path else 0
        law = draws.law if draws.law is not None else p[last]
        refused = [int(draft.tokens[0, n.index]) for n in nodes if n.parent == last]
        own = int(verdict.next_token[0])
        self._open = {
            "root": self._name(int(draft.tokens[0, 0])),
            "rule": rule,
            "nodes": nodes,
            "kept": len(path),
            "own": self._name(own),
            "kind": ("correction" if refused else "bonus") if nodes else "plain",
            "choices": self._choices(law, p[last], self._row(draft, q, last, length), [own, *refused]),
        }

    def close(self, emitted: list[tuple[int, str]]) -> None:
        """Hear what the round emitted after all."""
        self._totals[0] += len(self._open["nodes"])
        self._totals[1] += sum(by != "target" for _, by in emitted)
        self._totals[2] += len(emitted)
        said = [(self._decode(t), "target" if by == "target" else "drafter") for t, by in emitted]
        number = len(self._story.rounds) + 1
        drafted, kept, tokens = self._totals
        so_far: dict[str, Any] = {"drafted_so_far": drafted, "kept_so_far": kept, "tokens_so_far": tokens}
        self._story.rounds.append(RoundView(number, emitted=said, **self._open, **so_far))

    def _node(
        self, draft: Any, i: int, laws: tuple[Tensor, Tensor | None], path: list[int], coins: dict[int, Coin]
    ) -> Node:
        p, q = laws
        parent, token = int(draft.parents[0, i]), int(draft.tokens[0, i])
        drawn = q is not None and int(draft.draw[0, i]) != int(Draw.FIXED)
        p_row = p[parent].double()
        q_row = q[parent].double() if drawn and q is not None else None
        overlap = float(p_row[token]) if q_row is None else float(torch.minimum(p_row, q_row).sum())
        above = {0, *path}
        state = "kept" if i in path else ("refused" if parent in above else "unreached")
        return Node(
            index=i,
            parent=parent,
            depth=_depth(draft, i),
            token=self._name(token),
            p=float(p_row[token]),
            q=None if q_row is None else float(q_row[token]),
            overlap=overlap,
            entropy=float(-(p_row * p_row.clamp(min=1e-30).log()).sum()),
            state=state,
            coin=coins.get(i),
        )

    def _name(self, token: int) -> str:
        """The token's text, or its id where that is half a character."""
        text = self._decode(token)
        return f"#{token}" if "\N{REPLACEMENT CHARACTER}" in text else text

    def _row(self, draft: Any, q: Tensor | None, node: int, length: int) -> Tensor | None:
        """The drafter's law at a node that has drawn children."""
        children = [i for i in range(1, length) if int(draft.parents[0, i]) == node]
        drawn = any(int(draft.draw[0, i]) != int(Draw.FIXED) for i in children)
        return q[node] if q is not None and drawn else None

    def _choices(self, law: Tensor, p: Tensor, q: Tensor | None, also: list[int]) -> list[Choice]:
        """The likeliest tokens of a law, and those in `also` wherever they stand."""
        share = law.double() / law.double().sum()
        top = share.topk(min(TOP, len(share))).indices.tolist()
        listed = [t for t in top if float(share[t]) > 5e-5] + [t for t in dict.fromkeys(also) if t not in top]
        return [Choice(self._name(t), float(p[t]), None if q is None else float(q[t]), float(share[t])) for t in listed]


def _depth(draft: Any, node: int) -> int:
    depth = 0
    while node > 0:
        node, depth = int(draft.parents[0, node]), depth + 1
    return depth
