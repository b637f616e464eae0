"""Run requests through the real engine over toy targets: what most public cases need."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from slipstream.control.budget import FixedBudget
from slipstream.engine import Engine, EngineOptions
from slipstream.testing import NoneToy, ToyTarget, scripted
from slipstream.types import Delta, Sequence
from slipstream.types import SamplingParams as Params
from slipstream.verify import RULES

PROMPT = [1, 2]


class Bytes:
    """A detokenizer whose tokens are bytes; an unfinished character waits."""

    def __init__(self) -> None:
        self._pending = b""

    def push(self, token: int) -> str:
        self._pending += bytes([token])
        try:
            text = self._pending.decode()
        except UnicodeDecodeError:
            return ""
        self._pending = b""
        return text

    def flush(self) -> str:
        text, self._pending = self._pending.decode(errors="replace"), b""
        return text


def make_engine(target: Any, drafter: Any = None, nodes: int = 4, rule: str = "auto", **options: Any) -> Engine:
    """Build an engine; keyword options go to EngineOptions, `detokenizer` and `trace` to the engine."""
    apart = {k: options.pop(k) for k in ("detokenizer", "trace", "make_rngs") if k in options}
    options.setdefault("max_rows", 8)
    drafter = drafter or NoneToy(target.caps.vocab)
    return Engine(target, drafter, RULES[rule], FixedBudget(nodes), EngineOptions(**options), **apart)


def request(id: int = 0, prompt: list[int] | None = None, eos: tuple[int, ...] = (), **params: Any) -> Sequence:
    tokens = list(PROMPT if prompt is None else prompt)
    params.setdefault("max_tokens", 20)
    return Sequence(id=id, tokens=tokens, prompt_len=len(tokens), params=Params(**params), eos_ids=eos)


def finish(engine: Engine, *rows: Sequence) -> list[Delta]:
    """Add the rows, run until all have ended, return every delta; law 1 is checked after every round."""
    for row in rows:
        engine.add(row)
    deltas = []
    for _ in range(5000):
        if engine.idle:
            return deltas
        deltas += engine.step()
        for row in engine.scheduler.rows:
            if row.status.value == "running":
                assert row.cached == len(row.tokens) - 1 == len(engine.target.cache[row.slot])
    raise AssertionError("the engine does not come to an end")


def output(row: Sequence) -> list[int]:
    return row.tokens[row.prompt_len :]


def outcome(row: Sequence, deltas: list[Delta]) -> tuple[Any, ...]:
    """All that must be equal with and without speculation."""
    own = [d for d in deltas if d.sequence is row]
    streamed = [t.id for d in own for t in d.tokens]
    assert streamed == output(row) == [t.id for t in row.emitted]
    assert "".join(d.text for d in own) == row.text
    assert row.stats.completion_tokens == len(streamed)
    logprobs = [(t.logprob, t.top_logprobs) for t in row.emitted]
    return output(row), row.text, row.finish_reason, row.stop_reason, logprobs


def chain_target(tokens: list[int], vocab: int = 16, peak: float = 0.9, **caps: Any) -> ToyTarget:
    """The scripted target: the arg max after prompt + i tokens is tokens[i]."""
    return ToyTarget(scripted(tokens, vocab, len(PROMPT), peak), vocab, **caps)


def total_variation(counts: dict[int, int], law: list[float]) -> float:
    n = sum(counts.values())
    return 0.5 * sum(abs(counts.get(i, 0) / n - p) for i, p in enumerate(law)) + 0.5 * sum(
        c / n for i, c in counts.items() if i >= len(law)
    )


def same_as_plain(
    make_target: Callable[[], ToyTarget], drafter: Any, make: Callable[[], Sequence], **options: Any
) -> Any:
    """Assert that a request ends the same with `drafter` as without, and return the speculative row."""
    plain, drafted = make(), make()
    kept = {k: v for k, v in options.items() if k not in {"nodes", "rule"}}
    expected = outcome(plain, finish(make_engine(make_target(), **kept), plain))
    found = outcome(drafted, finish(make_engine(make_target(), drafter, **options), drafted))
    assert found == expected
    return drafted
