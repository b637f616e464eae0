"""The limits of every sampling parameter, and the names other libraries use for them.

In goes a `SamplingParams` or a dictionary; out comes the same record, or a `RequestError` that names the field, its
value and what would work. Knows nothing of models: `check_vocab` is for whoever does. Does not import torch.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import fields
from numbers import Integral, Real
from typing import Any

from slipstream.types import RequestError, SamplingParams

MAX_LOGPROBS = 20  # what OpenAI and vLLM allow by default
MAX_BIAS = 100.0

ALIASES: Mapping[str, str] = {
    "max_new_tokens": "max_tokens",
    "max_completion_tokens": "max_tokens",
    "min_new_tokens": "min_tokens",
    "num_return_sequences": "n",
    "stop_strings": "stop",
    "logits_processor": "logits_processors",
}
_SPECIAL = ("do_sample", "top_logprobs")
_NONE = {"max_tokens": ", or None (no limit)", "seed": ", or None", "logprobs": ", or None (not recorded)"}
_NULLABLE = frozenset({"max_tokens", "seed", "logprobs", "logit_bias"})


def _is_int(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _is_real(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)


def _ints(low: int, high: int | None = None) -> Callable[[Any], bool]:
    return lambda value: _is_int(value) and value >= low and (high is None or value <= high)


def _reals(fits: Callable[[float], bool]) -> Callable[[Any], bool]:
    return lambda value: _is_real(value) and fits(float(value))


def _or_none(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or fits(value)


def _is_bool(value: object) -> bool:
    return isinstance(value, bool)


def _listed(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, Iterable) and not isinstance(value, (str, bytes)) and all(map(fits, value))


def _is_text(value: object) -> bool:
    return isinstance(value, str) and value != ""


def _is_bias(value: object) -> bool:
    return isinstance(value, Mapping) and all(
        _ints(0)(token) and _is_real(bias) and abs(bias) <= MAX_BIAS for token, bias in value.items()
    )


_PENALTY = (_reals(lambda v: -2.0 <= v <= 2.0), "a number from -2 to 2 (0 is off)")

LIMITS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "temperature": (_reals(lambda v: v >= 0.0), "a finite number, 0 (greedy) or more"),
    "top_k": (_ints(-1), "a whole number, 1 or more (0 or -1 is off)"),
    "top_p": (_reals(lambda v: 0.0 < v <= 1.0), "a number above 0 and at most 1 (1 is off)"),
    "min_p": (_reals(lambda v: 0.0 <= v <= 1.0), "a number from 0 to 1 (0 is off)"),
    "repetition_penalty": (_reals(lambda v: v > 0.0), "a finite number above 0 (1 is off)"),
    "presence_penalty": _PENALTY,
    "frequency_penalty": _PENALTY,
    "logit_bias": (
        _or_none(_is_bias),
        f"a mapping of token ids (0 or more) to numbers from -{MAX_BIAS:g} to {MAX_BIAS:g}",
    ),
    "min_tokens": (_ints(0), "a whole number, 0 or more"),
    "max_tokens": (_or_none(_ints(1)), "a whole number, 1 or more"),
    "stop": (_listed(_is_text), "a text or a list of texts, none of them empty"),
    "stop_token_ids": (_listed(_ints(0)), "a list of token ids, each 0 or more"),
    "include_stop_str_in_output": (_is_bool, "true or false"),
    "ignore_eos": (_is_bool, "true or false"),
    "n": (_ints(1), "a whole number, 1 or more"),
    "seed": (_or_none(_ints(-(2**63), 2**63 - 1)), "a whole number of 64 bits with sign"),
    "logprobs": (_or_none(_ints(0, MAX_LOGPROBS)), f"a whole number from 0 to {MAX_LOGPROBS}"),
    "logits_processors": (_listed(callable), "a list of functions (prefix ids, row [V]) -> row [V]"),
}


def own(params: SamplingParams) -> None:
    """Copy what the caller may change later, or what can be read only once: a frozen record stays as it was checked."""
    if isinstance(params.stop, str):
        object.__setattr__(params, "stop", (params.stop,))
    for name in ("stop", "stop_token_ids", "logits_processors"):
        value = getattr(params, name)
        if isinstance(value, Iterable) and not isinstance(value, (str, bytes)):
            object.__setattr__(params, name, tuple(value))
    if isinstance(params.logit_bias, Mapping):
        object.__setattr__(params, "logit_bias", dict(params.logit_bias))


def check(params: SamplingParams) -> None:
    """Refuse, with a `RequestError`, the first field that is outside its limits."""
    for name, (fits, works) in LIMITS.items():
        value = getattr(params, name)
        if not fits(value):
            raise RequestError(f"{name}={_short(value)} cannot be used: give {works}{_NONE.get(name, '')}")
    if params.max_tokens is not None and params.min_tokens > params.max_tokens:
        raise RequestError(
            f"min_tokens={params.min_tokens} is above max_tokens={params.max_tokens}: "
            f"give min_tokens of at most {params.max_tokens}, or a larger max_tokens"
        )


def check_vocab(params: SamplingParams, vocab: int) -> None:
    """Refuse token ids that a target of `vocab` ids does not have."""
    for name in ("logit_bias", "stop_token_ids"):
        wrong = [token for token in getattr(params, name) or () if token >= vocab]
        if wrong:
            raise RequestError(f"{name} names token {wrong[0]}, but the target has ids 0 to {vocab - 1} only")


def from_dict(options: Mapping[str, Any]) -> SamplingParams:
    """Build `SamplingParams` from keyword names of vLLM, OpenAI or Hugging Face (see `ALIASES`).

    An unknown key is an error. A null means the default, where null is not itself a value. `do_sample` decides the
    temperature when none is given (false: 0, true: 1). OpenAI's `logprobs: true` with `top_logprobs` is understood, and
    so are the text keys JSON forces upon `logit_bias`.
    """
    known = [f.name for f in fields(SamplingParams)]
    given: dict[str, Any] = {}
    source: dict[str, str] = {}
    for key, value in options.items():
        if key in _SPECIAL:
            continue
        name = ALIASES.get(key, key)
        if name not in known:
            raise RequestError(_unknown(key, [*known, *ALIASES, *_SPECIAL]))
        if value is None and name not in _NULLABLE:
            continue
        if name in given and given[name] != value:
            raise RequestError(
                f"{key}={_short(value)} contradicts {source[name]}={_short(given[name])}: give one of the two"
            )
        given[name], source[name] = value, key
    _apply_do_sample(given, options.get("do_sample"))
    _apply_top_logprobs(given, options.get("top_logprobs"))
    if isinstance(given.get("logit_bias"), Mapping):
        given["logit_bias"] = {_token_id(key): bias for key, bias in given["logit_bias"].items()}
    return SamplingParams(**given)


def _apply_do_sample(given: dict[str, Any], do_sample: object) -> None:
    if do_sample is None:
        return
    if not isinstance(do_sample, bool):
        raise RequestError(f"do_sample={_short(do_sample)} cannot be used: give true or false")
    temperature = given.setdefault("temperature", 1.0 if do_sample else 0.0)
    if _is_real(temperature) and (temperature > 0) != do_sample:
        raise RequestError(
            f"do_sample={do_sample} contradicts temperature={temperature}: "
            "drop do_sample, since temperature 0 is greedy and any other temperature samples"
        )


def _apply_top_logprobs(given: dict[str, Any], top: object) -> None:
    logprobs = given.get("logprobs")
    if isinstance(logprobs, bool):
        given["logprobs"] = 0 if logprobs else None
    if top is None:
        return
    if logprobs is not True:
        raise RequestError(f"top_logprobs={_short(top)} needs logprobs=true beside it")
    if not _ints(0, MAX_LOGPROBS)(top):
        raise RequestError(f"top_logprobs={_short(top)} cannot be used: give a whole number from 0 to {MAX_LOGPROBS}")
    given["logprobs"] = top


def _token_id(key: object) -> object:
    return int(key) if isinstance(key, str) and key.isdecimal() else key


def _unknown(key: str, names: Seq[str]) -> str:
    near = difflib.get_close_matches(str(key), names, n=1, cutoff=0.0)[0]
    return f"unknown sampling parameter {key!r}: did you mean {near!r}?"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
