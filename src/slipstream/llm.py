"""The Python face: `LLM(model, drafter=...)`, then `generate`, `chat` or `stream`.

In: text, token ids or chat messages, and `SamplingParams`. Out: `Completion` records, or deltas as they are decoded.
It owns no decode loop: it feeds sequences to the engine and hands each round's output to whoever waits for it.
"""

from __future__ import annotations

import dataclasses
import itertools
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import Any

from slipstream import build, profiles
from slipstream.config import (
    DEFAULT_MODEL,
    DrafterConfig,
    EngineConfig,
    TargetConfig,
    draft_tokens_of,
    from_speculative_config,
)
from slipstream.params import check_vocab, from_dict
from slipstream.types import (
    Delta,
    Drafter,
    FinishReason,
    RequestError,
    SamplingParams,
    Sequence,
    Status,
    Token,
    WorkError,
)

Prompt = str | list[int] | list[dict[str, Any]]
Params = SamplingParams | Mapping[str, Any] | None

_ids = itertools.count(1)  # shared by all engines: a drafter object may be given to several


@dataclass
class Completion:
    """One finished sample. `completions` holds all n samples of the prompt, this one included.

    `logprobs` has one entry per token: its id, its log probability and the alternatives asked for. `provenance` says
    who proposed each token and at which depth of the draft (the target's own: 0).
    """

    text: str
    token_ids: list[int]
    finish_reason: FinishReason | None
    stop_reason: int | str | None
    logprobs: list[dict[str, Any]] | None
    stats: dict[str, Any]
    provenance: list[dict[str, Any]]
    prompt_tokens: int
    seed: int
    index: int = 0
    error: str | None = None
    completions: list[Completion] = field(default_factory=list, repr=False, compare=False)


@dataclass(frozen=True)
class StreamDelta:
    """What one round added to one sample: new text (possibly none yet), its tokens, and the end if this is it."""

    text: str
    token_ids: list[int]
    tokens: list[Token]
    finish_reason: FinishReason | None
    index: int
    completion: Completion | None = None  # with the last delta of a sample


class LLM:
    """A target and a drafter, ready to generate. Options are those of the command line, with the same defaults.

    `drafter` is a spec or a `Drafter` object; `speculative_config` is vLLM's dictionary, instead of `drafter` and
    `draft_tokens`. `seed` serves requests that give none. Raises `RequestError` or `WorkError`, nothing else by design.
    """

    def __init__(
        self,
        model: str = DEFAULT_MODEL,
        drafter: str | Drafter = "auto",
        *,
        draft_tokens: int | str | None = "auto",
        verify: str = "auto",
        dtype: str = "auto",
        device: str = "auto",
        max_model_len: int | None = None,
        max_rows: int = 8,
        speculative_config: Mapping[str, Any] | None = None,
        logprobs_mode: str = "raw_logprobs",
        quantize: str = "auto",
        seed: int | None = None,
        target: str = "auto",
    ) -> None:
        target_config = TargetConfig(
            model=model, kind=target, dtype=dtype, device=device, quantize=quantize, max_len=max_model_len
        )
        self.config = EngineConfig(verify=verify, max_rows=max_rows, logprobs_mode=logprobs_mode, seed=seed)
        build.make_rule(verify)
        count = draft_tokens_of(draft_tokens)
        wanted = _drafter_config(drafter, count, speculative_config)
        if isinstance(wanted, DrafterConfig):
            build.parse_drafter(wanted.spec)  # a wrong name is an error before the target is loaded
            count = wanted.draft_tokens
        self._bind(build.open_target(target_config, rows=max_rows, draft_tokens=count or 0), wanted, count)

    def _bind(self, opened: build.Opened, wanted: DrafterConfig | Drafter | build.Guess, count: int | None) -> None:
        rows = self.config.max_rows
        if isinstance(wanted, build.Guess):
            guess = wanted
        elif isinstance(wanted, DrafterConfig):
            tree = build.make_rule(self.config.verify).tree
            guess = build.open_drafter(wanted, opened, rows=rows, tree=tree)
        else:
            guess = build.Guess(wanted, 4 if count is None else count)
        self.opened, self.guess = opened, guess
        self.draft_tokens = guess.draft_tokens
        self.drafter_folder = guess.folder
        self.engine = build.make_engine(opened, guess, self.config)
        self._guessing = build.by_cost(guess) and profiles.lacks(opened, guess.parts)
        self.notes = opened.notes + guess.notes

    def with_drafter(self, drafter: str | Drafter | build.Guess, *, draft_tokens: int | str | None = "auto") -> LLM:
        """Return another LLM on the same loaded target. They take turns: while one decodes, a request
        to the other is refused, since both keep their rows in the target's one cache. A `Guess` is a drafter that
        was built already, with all that goes with it."""
        other = LLM.__new__(LLM)
        other.config = self.config
        count = draft_tokens_of(draft_tokens)
        wanted = drafter if isinstance(drafter, build.Guess) else _drafter_config(drafter, count, None)
        other._bind(self.opened, wanted, count)
        return other

    @property
    def model(self) -> str:
        """The target's name as it was given."""
        return self.opened.name

    @property
    def tokenizer(self) -> Any:
        """The target's tokenizer."""
        return self.opened.tokenizer

    @property
    def drafter(self) -> str:
        """The drafter's name, as it appears in `provenance`."""
        return self.engine.drafter.name

    def verify_for(self, params: SamplingParams) -> str:
        """Return the name of the rule that verifies a request with these parameters."""
        return build.rule_used(self.config.verify, self.drafter, self.draft_tokens, params.greedy)

    @property
    def max_model_len(self) -> int:
        """Tokens of prompt and output together that fit in a row."""
        return self.engine.target.caps.max_len

    def generate(self, prompts: Any, sampling_params: Params | Seq[Params] = None, *, progress: bool = False) -> Any:
        """Complete one prompt (text, token ids or chat messages), or each of a list of them: list in, list out.

        Text is taken as it is; use `chat` or messages for the model's chat template. `sampling_params` is one for all
        or one per prompt. A sample that failed has `error` set and finish reason "error".
        """
        many, items = _split_prompts(prompts)
        params = _params_list(sampling_params, len(items))
        requests = [self._request(item, p) for item, p in zip(items, params, strict=True)]
        with self.engine.at_work, _bar(progress, sum(len(rows) for rows in requests)) as tick:
            for delta in self._run([row for rows in requests for row in rows]):
                if delta.finish_reason is not None:
                    tick()
        results = [_gather(rows) for rows in requests]
        return results if many else results[0]

    def chat(self, messages: list[dict[str, Any]], sampling_params: Params = None) -> Completion:
        """Complete a conversation with the model's chat template."""
        found: Completion = self.generate(messages, sampling_params)
        return found

    def stream(self, prompt: Prompt, sampling_params: Params = None) -> Iterator[StreamDelta]:
        """Yield a `StreamDelta` per round and sample. Closing the iterator ends the request at once."""
        many, items = _split_prompts(prompt)
        if many:
            raise RequestError("stream takes one prompt; use generate for a list of prompts")
        rows = self._request(items[0], _params_list(sampling_params, 1)[0])
        return self._stream(rows)

    def encode(self, prompt: Prompt) -> list[int]:
        """Return the token ids of a prompt: text as it is, messages through the chat template."""
        if isinstance(prompt, str):
            ids = self.tokenizer.encode(prompt)
        elif prompt and isinstance(prompt[0], dict):
            ids = self.tokenizer.chat(prompt)
        else:
            ids = [_checked_id(i, self.engine.target.caps.vocab) for i in prompt]
        if not ids:
            raise RequestError("the prompt is empty: at least one token is needed to start from")
        if len(ids) >= self.max_model_len:
            raise RequestError(
                f"the prompt has {len(ids)} tokens, which leaves no room in a context of {self.max_model_len}; "
                f"shorten it to {self.max_model_len - 1} tokens or raise max_model_len"
            )
        return list(ids)

    def check(self, prompts: Any, sampling_params: Params | Seq[Params] = None) -> None:
        """Raise the `RequestError` that `generate` would raise for these, without decoding anything."""
        _, items = _split_prompts(prompts)
        for item, params in zip(items, _params_list(sampling_params, len(items)), strict=True):
            self._request(item, params)

    def _request(self, prompt: Prompt, params: SamplingParams) -> list[Sequence]:
        from slipstream.sampling import new_seed

        tokens = self.encode(prompt)
        check_vocab(params, self.engine.target.caps.vocab)
        seed = params.seed if params.seed is not None else self.config.seed
        params = dataclasses.replace(params, seed=new_seed() if seed is None else seed)
        eos = tuple(self.tokenizer.eos_ids)
        return [Sequence(next(_ids), list(tokens), len(tokens), params, sample=k, eos_ids=eos) for k in range(params.n)]

    def _stream(self, rows: list[Sequence]) -> Iterator[StreamDelta]:
        for delta in self._run(rows):
            row = delta.sequence
            done = completion_of(row) if delta.finish_reason is not None else None
            ids = [t.id for t in delta.tokens]
            yield StreamDelta(delta.text, ids, delta.tokens, delta.finish_reason, row.sample, done)

    def _run(self, rows: list[Sequence]) -> Iterator[Delta]:
        """Decode these rows to their ends. Other callers' rows advance too; their deltas wait in their inboxes."""
        inbox: deque[Delta] = deque()
        try:
            with self.opened.lock:
                self._take_target()
                for row in rows:
                    row.request = inbox
                    self.engine.add(row)
            left = len(rows)
            while left:
                while not inbox:
                    self._step(rows, inbox)
                delta = inbox.popleft()
                left -= delta.finish_reason is not None
                yield delta
        finally:
            with self.opened.lock:
                for row in rows:
                    if row.status is not Status.FINISHED:
                        self.engine.abort(row)

    def _take_target(self) -> None:
        busy = self.opened.busy
        if busy not in (None, self.engine) and not busy.idle:
            raise RequestError(
                "another LLM on this target is still decoding, and its cache is needed: finish or close its streams"
            )
        if self._guessing and self.opened.idle:  # it was built while another decoded
            self.engine.controller = build.make_controller(self.opened, self.guess, self.engine.rule, self.config)
            self._guessing = False
        self.opened.busy = self.engine

    def _step(self, rows: list[Sequence], inbox: deque[Delta]) -> None:
        with self.opened.lock:
            if inbox:  # another caller's round has served these rows while this one waited for the lock
                return
            if all(row.status is Status.FINISHED for row in rows):
                reason = next((row.error for row in rows if row.error), "the request was ended by somebody else")
                raise WorkError(reason)
            try:
                deltas = self.engine.step()
            except (MemoryError, RuntimeError):
                with build.memory_guard("decoding"):  # only here: a guard that is entered in each round is felt
                    raise
            for delta in deltas:
                delta.sequence.request.append(delta)


def load(model: str = DEFAULT_MODEL, drafter: str | Drafter = "auto", **options: Any) -> LLM:
    """Return `LLM(model, drafter, **options)`."""
    return LLM(model, drafter, **options)


def completion_of(row: Sequence) -> Completion:
    """Return the record of a finished sequence."""
    logprobs = None
    if row.params.logprobs is not None:
        logprobs = [{"token": t.id, "logprob": t.logprob, "top_logprobs": t.top_logprobs} for t in row.emitted]
    return Completion(
        text=row.text,
        token_ids=row.tokens[row.prompt_len :],
        finish_reason=row.finish_reason,
        stop_reason=row.stop_reason,
        logprobs=logprobs,
        stats=row.stats.as_dict(),
        provenance=[{"token": t.id, "by": t.by, "depth": t.depth} for t in row.emitted],
        prompt_tokens=row.prompt_len,
        seed=row.seed,
        index=row.sample,
        error=row.error,
    )


def _gather(rows: list[Sequence]) -> Completion:
    samples = [completion_of(row) for row in rows]
    samples[0].completions = samples
    return samples[0]


def _drafter_config(
    drafter: str | Drafter, count: int | None, speculative: Mapping[str, Any] | None
) -> DrafterConfig | Drafter:
    if speculative is None:
        if isinstance(drafter, str):
            return DrafterConfig(spec=drafter, draft_tokens=count)
        if not all(callable(getattr(drafter, verb, None)) for verb in ("propose", "observe", "forget")):
            raise RequestError(f"drafter must be a name or an object with propose, observe and forget, not {drafter!r}")
        return drafter
    if drafter != "auto" or count is not None:
        raise RequestError("speculative_config and drafter/draft_tokens say the same thing; give one of them")
    return from_speculative_config(speculative)


def _split_prompts(prompts: Any) -> tuple[bool, list[Prompt]]:
    """Tell one prompt from a list of them: a list of ids or of messages is one prompt."""
    if isinstance(prompts, str):
        return False, [prompts]
    if not isinstance(prompts, (list, tuple)):
        raise RequestError(f"prompts must be text, token ids, chat messages or a list of those, not {type(prompts)}")
    if not prompts:
        raise RequestError("prompts is empty: give text, token ids, chat messages or a list of those")
    items = list(prompts)
    if all(_is_id(x) for x in items) or all(isinstance(x, Mapping) for x in items):
        return False, [items]
    for item in items:
        if not isinstance(item, (str, list, tuple)):
            raise RequestError(f"a prompt must be text, token ids or chat messages, not {item!r}")
    return True, [x if isinstance(x, str) else list(x) for x in items]


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _checked_id(value: Any, vocab: int) -> int:
    if not _is_id(value) or not 0 <= value < vocab:
        raise RequestError(f"prompt token {value!r} must be a whole number from 0 to {vocab - 1}")
    return int(value)


def _params_list(params: Params | Seq[Params], count: int) -> list[SamplingParams]:
    if isinstance(params, Seq):
        if len(params) != count:
            raise RequestError(f"{len(params)} sampling_params for {count} prompts; give one, or one per prompt")
        return [_params_one(p) for p in params]
    return [_params_one(params)] * count


def _params_one(params: Params) -> SamplingParams:
    if params is None:
        return SamplingParams()
    if isinstance(params, SamplingParams):
        return params
    if isinstance(params, Mapping):
        return from_dict(dict(params))
    raise RequestError(f"sampling_params must be SamplingParams or a dictionary, not {params!r}")


class _bar:
    """A progress bar over samples on stderr, or nothing."""

    def __init__(self, shown: bool, total: int) -> None:
        self._bar: Any = None
        if shown:
            from tqdm import tqdm

            self._bar = tqdm(total=total, unit="sample", file=sys.stderr)

    def __enter__(self) -> Any:
        return self._bar.update if self._bar is not None else _nothing

    def __exit__(self, *error: Iterable[Any]) -> None:
        if self._bar is not None:
            self._bar.close()


def _nothing() -> None:
    """Stand in for a bar that is not shown."""
