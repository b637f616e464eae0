"""The language of the project: the records that cross a module boundary, and the roles that exchange them.

Everything else is written in these words. Read this file first. Nothing here decodes, draws or decides.

Shapes: B rows, N nodes, D depth, V vocabulary, H hidden, T tokens. Integer tensors are int64.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    import torch
    from torch import Tensor

FinishReason = Literal["stop", "length", "abort", "error"]
LogitsProcessor = Callable[[Seq[int], "torch.Tensor"], "torch.Tensor"]


class RequestError(ValueError):
    """A request or option is wrong. The message names the thing, its value and what would work (exit status 2)."""


class WorkError(RuntimeError):
    """The request was right but the work cannot be finished: file damaged, out of memory (exit status 3)."""


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How one request wants to be sampled. Field names and meanings are vLLM's; each is exact or refused.

    `temperature` 0 means greedy. `top_k` 0 or -1 and `top_p` 1 mean off. `logprobs` is the number of alternatives
    recorded per emitted token (0: the token's own only; None: nothing). `logits_processors` are pure functions
    `(prefix ids, row [V]) -> row [V]`, called once per drafted position with the prefix that leads to it.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] | None = None
    min_tokens: int = 0
    max_tokens: int | None = 256
    stop: Seq[str] = ()
    stop_token_ids: Seq[int] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    n: int = 1
    seed: int | None = None
    logprobs: int | None = None
    logits_processors: Seq[LogitsProcessor] = ()

    def __post_init__(self) -> None:
        from slipstream.params import check, own  # the table of limits; kept apart so that this file stays readable

        own(self)
        check(self)

    @functools.cached_property
    def greedy(self) -> bool:
        """True when every row of the target law is a point mass at the highest logit (lowest id on a tie)."""
        return self.temperature == 0.0

    @functools.cached_property
    def penalised(self) -> bool:
        """True when a penalty is on."""
        return bool(self.repetition_penalty != 1.0 or self.presence_penalty or self.frequency_penalty)

    @functools.cached_property
    def edits(self) -> bool:
        """True when the law is not that of the raw logits, `min_tokens` apart."""
        return bool(self.logit_bias or self.logits_processors or self.penalised)


@dataclass
class Token:
    """One emitted token: its id, who proposed it ("target" or a drafter's name) and at which depth (target: 0)."""

    id: int
    by: str
    depth: int
    logprob: float | None = None
    top_logprobs: dict[int, float] | None = None


@dataclass
class Delta:
    """What one round added to one sequence. Joined `text` of all deltas is the final text."""

    sequence: Sequence
    tokens: list[Token]
    text: str
    finish_reason: FinishReason | None = None


class Status(enum.Enum):
    """Where a sequence is in its life."""

    WAITING = "waiting"
    PREFILL = "prefill"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(eq=False)
class Sequence:
    """One request's state, and the only mutable record. `tokens` is the prompt followed by what was emitted.

    `slot` is the row of the target's cache it owns while running. `stream` is the identity of its random streams.
    `rounds` counts its decode rounds: it is the counter of those streams, so a draw depends on own progress alone.
    """

    id: int
    tokens: list[int]
    prompt_len: int
    params: SamplingParams
    seed: int = 0
    sample: int = 0  # 0..n-1 within its request
    eos_ids: tuple[int, ...] = ()  # the model's end-of-text ids; empty when it has none
    slot: int = -1
    status: Status = Status.WAITING
    cached: int = 0  # tokens in the target's cache; law 1: len(tokens) - 1 while running
    rounds: int = 0
    emitted: list[Token] = field(default_factory=list)
    text: str = ""
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    error: str | None = None
    stats: Any = None  # engine.stats.Stats
    ending: Any = None  # engine.finish.Ending
    request: Any = None  # whatever the caller wants to find again

    @property
    def generated(self) -> int:
        """Number of tokens emitted so far."""
        return len(self.tokens) - self.prompt_len


class Draw(enum.IntEnum):
    """How a node's token was chosen, given its parent. The verification rule needs to know; nobody else does."""

    FIXED = 0  # a function of the prefix: its law is a point mass
    SAMPLED = 1  # drawn from the parent's row of q, independently of its siblings
    DISTINCT = 2  # drawn from the parent's row of q with the earlier siblings' tokens removed


@dataclass(frozen=True)
class Draft:
    """A tree of guesses for each row. Node 0 is the root: the last committed token.

    Nodes are in topological order and siblings in the order they were drawn. Row i of `q` describes what follows node
    i, in the target's vocabulary; it must be the very row the children of i were drawn from (law 3).
    """

    tokens: Tensor  # [B, N]
    parents: Tensor  # [B, N], parents[:, 0] == -1, parents[b, i] < i
    length: Tensor  # [B], valid nodes, root included; the rest is padding
    draw: Tensor  # [B, N], Draw of each node (root: FIXED)
    q: Tensor | None = None  # [B, N, V] or None when every node is FIXED
    chain: bool = True  # every node has at most one child: parents[b, i] == i - 1

    @functools.cached_property
    def nodes(self) -> int:
        """N, the width of the padded draft, root included."""
        return int(self.tokens.shape[1])


@dataclass(frozen=True)
class Laws:
    """The target's law p after each node, all sampling parameters applied: row i describes what follows node i.

    Either dense rows, or, when every row is a point mass (greedy), just where it sits.
    """

    probs: Tensor | None = None  # [B, N, V], float32 or float64
    points: Tensor | None = None  # [B, N]
    bad: Tensor | None = None  # [B, N] bool, rows whose logits were not finite; None when all are fine


@dataclass(frozen=True)
class Scores:
    """What the target says after each node."""

    logits: Tensor  # [B, N, V]
    taps: Mapping[int, Tensor] = field(default_factory=dict)  # {tap: [B, N, H]}
    # [B, N] ids of the highest logits, lowest on a tie, -1: not finite; None: the target does not say. No argument, so
    # that a copy with other logits (`dataclasses.replace`) has none
    peaks: Tensor | None = field(default=None, init=False)

    @classmethod
    def with_peaks(cls, logits: Tensor, taps: Mapping[int, Tensor], peaks: Tensor | None) -> Scores:
        """Say besides where the logits, never written to from here on, are highest."""
        scores = cls(logits, taps)
        object.__setattr__(scores, "peaks", peaks)
        return scores


@dataclass(frozen=True)
class Verdict:
    """Which nodes stand, and the token after them."""

    path: Tensor  # [B, D] accepted nodes in order, root excluded, padded with -1
    accepted: Tensor  # [B]
    next_token: Tensor  # [B]


@dataclass(frozen=True)
class Needs:
    """What a drafter asks of the target: hidden-state taps (see `Target`), and whether it drafts trees."""

    taps: tuple[int, ...] = ()
    tree: bool = False


@dataclass(frozen=True)
class Caps:
    """What a target can do. `vocab` is the number of real token ids: logits are cut to it.

    `own_threads`: its passes run on threads of their own, which torch's would have to share the processors with.
    """

    vocab: int
    max_len: int
    max_rows: int
    max_nodes: int
    tree: bool = True
    layers: int = 0
    hidden: int = 0
    own_threads: bool = False


class Rngs(Protocol):
    """All randomness of one round, for B rows. Disjoint streams per row; a row's draws never depend on its neighbours.

    `active` [B] bool marks the rows that really draw (others get 0/False and consume nothing). Weights need not be
    normalised; a zero weight is never drawn.
    """

    def draft(self, w: Tensor, depth: int, active: Tensor | None = None) -> Tensor:
        """Draw the token at `depth` (1 = the first drafted one) of each row from w [B, V] -> [B]."""

    def draft_nodes(self, w: Tensor, depth: int, owners: Seq[int]) -> Tensor:
        """Draw a token for each node i at `depth`, of row `owners[i]`, from w [R, V] -> [R]: as that many `draft`s."""

    def accept(self, a: Tensor, active: Tensor | None = None) -> Tensor:
        """Flip coins with probabilities a [B] or [B, K] -> bool, strict: probability 0 never passes."""

    def correct(self, w: Tensor, active: Tensor | None = None) -> Tensor:
        """Draw the correction or bonus token from w [B, V] -> [B]."""

    def shared(self, w: Tensor, depth: int, active: Tensor | None = None) -> Tensor:
        """Draw from w [B, V] with the noise of the absolute position `committed + depth - 1` (coupled rule) -> [B]."""


class Drafter(Protocol):
    """Guess what comes next. Prompt and accepted tokens arrive by the same door, `observe` (law 7)."""

    name: str
    needs: Needs

    def propose(self, rows: list[Sequence], budget: list[int], rngs: Rngs) -> Draft:
        """Draft at most `budget[b]` nodes (root not counted) for each row. May draft fewer, or none."""

    def observe(self, rows: list[Sequence], tokens: list[list[int]], taps: list[Mapping[int, Tensor]]) -> None:
        """Hear that `tokens[b]` are now in row b's cache, in order, and what the target felt there ({tap: [T, H]})."""

    def forget(self, row: Sequence) -> None:
        """Drop all state kept for a row."""


class Target(Protocol):
    """Run the model being sped up. Tap k in 0..layers is the residual stream after k layers (0: embedding output;
    `layers`: before the final norm); tap -1 is the state after the final norm."""

    caps: Caps

    def prefill(self, slot: int, tokens: list[int]) -> Mapping[int, Tensor]:
        """Append tokens to the slot's cache (an empty slot after `release`); return {tap: [T, H]}."""

    def score(self, slots: list[int], draft: Draft) -> Scores:
        """One forward over all nodes, node i at position `cached + depth(i)`. Changes no committed state: a raised
        exception, or a second call, leaves every slot as it was."""

    def commit(self, slots: list[int], paths: list[list[int]]) -> None:
        """Keep the root and the accepted nodes of the last `score` (its rows in the same order); drop the rest."""

    def release(self, slot: int) -> None:
        """Empty a slot."""


class Controller(Protocol):
    """Decide how much to draft, from what was known before the round only (law 4)."""

    def begin(self) -> None:
        """Hear that a round begins, before prompts are read: drafters that ask somebody are told whom."""

    def budget(self, rows: list[Sequence]) -> list[int]:
        """Return the most nodes to draft for each row."""

    def record(self, rows: list[Sequence], draft: Draft, verdict: Verdict, laws: Laws) -> None:
        """Hear how the round went."""


class VerifyRule(Protocol):
    """`(draft, p, rngs) -> Verdict`: pure, no model, no I/O, no global random state (law 5)."""

    @property
    def lossless(self) -> bool:
        """True: the output has the target's law."""

    @property
    def shared_noise(self) -> bool:
        """True: drafters draw with the position's shared noise (coupled rule)."""

    @property
    def tree(self) -> bool:
        """True: handles trees."""

    def __call__(self, draft: Draft, p: Laws, rngs: Rngs) -> Verdict:
        """Return the accepted path of each row and the token after it."""
