"""What a run consists of: three frozen records, made from keyword arguments, from flags or from vLLM's dictionary.

In: plain values. Out: `TargetConfig`, `DrafterConfig`, `EngineConfig`, checked; a key or value that could not have an
effect is a `RequestError` that names the nearest valid one. Nothing is loaded here and torch is not imported.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from slipstream.types import RequestError

DEFAULT_MODEL = "smollm2-135m-instruct"
DTYPES = ("auto", "float32", "bfloat16", "float16")
QUANTIZE = ("auto", "none", "int8", "int4", "w8a8")
LOGPROBS_MODES = ("raw_logprobs", "processed_logprobs")
MAX_DRAFT_TOKENS = 256

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class TargetConfig:
    """Which model is sped up and how it runs. `max_len` is the context kept per row, in tokens (None: the model's)."""

    model: str = DEFAULT_MODEL
    kind: str = "auto"
    dtype: str = "auto"
    device: str = "auto"
    quantize: str = "auto"
    max_len: int | None = None

    def __post_init__(self) -> None:
        _text("model", self.model)
        choose("dtype", self.dtype, DTYPES)
        _text("device", self.device)
        choose("quantize", self.quantize, QUANTIZE)
        if self.max_len is not None:
            whole("max_model_len", self.max_len, least=2)


@dataclass(frozen=True, kw_only=True)
class DrafterConfig:
    """Who guesses, and at most how many tokens per round (None: the drafter's own default; 0: off)."""

    spec: str = "auto"
    draft_tokens: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _text("drafter", self.spec)
        if self.draft_tokens is not None:
            whole("draft_tokens", self.draft_tokens, least=0, most=MAX_DRAFT_TOKENS)


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """How requests are decoded: the verification rule, rows decoded at once, the default seed of unseeded requests."""

    verify: str = "auto"
    max_rows: int = 8
    logprobs_mode: str = "raw_logprobs"
    seed: int | None = None

    def __post_init__(self) -> None:
        whole("max_rows", self.max_rows, least=1)
        choose("logprobs_mode", self.logprobs_mode, LOGPROBS_MODES)
        if self.seed is not None:
            whole("seed", self.seed, least=0, most=2**63 - 1)


def from_mapping(kind: type[T], values: Mapping[str, Any], what: str) -> T:
    """Make a config record of `kind` from `values`; an unknown key is an error naming the nearest valid one."""
    known = [f.name for f in fields(kind)]  # type: ignore[arg-type]
    for key in values:
        if key not in known:
            raise unknown(f"{what} key", key, known)
    return kind(**values)


def draft_tokens_of(value: int | str | None) -> int | None:
    """Read a draft length: "auto" or None mean the drafter's own default; 0 means off."""
    if value is None or value == "auto":
        return None
    return whole("draft_tokens", value, least=0, most=MAX_DRAFT_TOKENS, also="auto")


def from_speculative_config(values: Mapping[str, Any]) -> DrafterConfig:
    """Read vLLM's `speculative_config` dictionary; its `num_speculative_tokens` 0 means off."""
    if not isinstance(values, Mapping):
        raise RequestError(f"speculative_config must be a JSON object such as {_EXAMPLE}, not {values!r}")
    for key in values:
        if key not in _SPECULATIVE_KEYS:
            raise unknown("speculative_config key", key, _SPECULATIVE_KEYS)
    count = None
    if "num_speculative_tokens" in values:
        count = whole("num_speculative_tokens", values["num_speculative_tokens"], least=0, most=MAX_DRAFT_TOKENS)
    method = _method(values)
    if count == 0:
        return DrafterConfig(spec="none", draft_tokens=0)
    if method == "ngram":
        return DrafterConfig(spec="lookup", draft_tokens=count, options=_ngram_options(values))
    for key in ("prompt_lookup_max", "prompt_lookup_min"):
        if key in values:
            raise RequestError(f"speculative_config {key} has no effect with method {method!r}; it goes with 'ngram'")
    return DrafterConfig(spec=_model_spec(method, values), draft_tokens=count)


_EXAMPLE = '{"method": "ngram", "num_speculative_tokens": 8}'
_SPECULATIVE_KEYS = ("method", "model", "num_speculative_tokens", "prompt_lookup_max", "prompt_lookup_min")


def _method(values: Mapping[str, Any]) -> str:
    method, model = values.get("method"), values.get("model")
    if method is None and model is None:
        raise RequestError(f"speculative_config needs a method, for example {_EXAMPLE}")
    if method is None:
        return "ngram" if model in ("ngram", "[ngram]") else "draft_model"
    if not isinstance(method, str) or not method:
        raise RequestError(f"speculative_config method must be a name such as 'ngram', not {method!r}")
    return method


def _model_spec(method: str, values: Mapping[str, Any]) -> str:
    model = values.get("model")
    if model is None:
        from slipstream.plugins import DRAFTERS

        if method in DRAFTERS and DRAFTERS[method].path:
            what = "a folder or a catalogue name" if method == "draft_model" else "a drafter's folder"
            raise RequestError(f'speculative_config method {method!r} needs a model: add "model": PATH, {what}')
        return method
    if not isinstance(model, str) or not model:
        raise RequestError(f"speculative_config model must be a folder or a catalogue name, not {model!r}")
    return f"{method}:{model}"


def _ngram_options(values: Mapping[str, Any]) -> dict[str, int]:
    if values.get("model") not in (None, "ngram", "[ngram]"):
        raise RequestError(f"speculative_config model {values['model']!r} has no effect with method 'ngram'")
    given = {k: whole(k, values[k], least=1) for k in ("prompt_lookup_min", "prompt_lookup_max") if k in values}
    if not given:
        return {}
    # one of the two alone means both, as in vLLM
    low = given.get("prompt_lookup_min", given.get("prompt_lookup_max", 1))
    high = given.get("prompt_lookup_max", low)
    if low > high:
        raise RequestError(f"prompt_lookup_min={low} must not be larger than prompt_lookup_max={high}")
    return {"min_ngram": low, "max_ngram": high}


def whole(name: str, value: Any, *, least: int, most: int | None = None, also: str = "") -> int:
    """Return `value` if it is a whole number in range; anything else (2.5, "3", True, None) is one clear error."""
    fits = isinstance(value, int) and not isinstance(value, bool) and value >= least and (most is None or value <= most)
    if not fits:
        limits = f"{least} or more" if most is None else f"{least} to {most}"
        raise RequestError(f"{name}={value!r} must be a whole number, {limits}" + (f", or {also!r}" if also else ""))
    return int(value)


def choose(name: str, value: Any, choices: Iterable[str]) -> str:
    """Return `value` if it is one of `choices`; else the error names the nearest one and all of them."""
    valid = tuple(choices)
    if value not in valid:
        raise unknown(name, value, valid)
    return str(value)


def unknown(what: str, value: Any, choices: Iterable[str]) -> RequestError:
    """Make the error for a name that does not exist: the nearest valid one first, then all of them."""
    valid = list(choices)
    if not valid:
        return RequestError(f"unknown {what} {value!r}: it has none")
    return RequestError(f"unknown {what} {value!r}{nearest(str(value), valid)}; available: {', '.join(valid)}")


def nearest(value: str, choices: Iterable[str]) -> str:
    """Return `, did you mean 'x'?`-style words for the closest of `choices`, or an empty string."""
    close = difflib.get_close_matches(value, list(choices), n=1, cutoff=0.5)
    return f" (did you mean {close[0]!r}?)" if close else ""


def _text(name: str, value: Any) -> None:
    if not isinstance(value, str) or not value.strip():
        raise RequestError(f"{name} must be a name or a path, not {value!r}")
