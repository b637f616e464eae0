"""Names and paths become objects here: config records in, an `Opened` target, a drafter, an `Engine` out.

The tables of plug-ins are `plugins`', the reading of specs is `specs`'. torch is imported when something is built.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slipstream.config import DrafterConfig, EngineConfig, TargetConfig, choose
from slipstream.machine import (
    cpu_flags,
    give_back_memory,
    memory_guard,
    read_model_config,
    resolve_device,
    resolve_dtype,
)
from slipstream.opened import Guess, Opened, Part, Wanted
from slipstream.plugins import DRAFTERS, PLANNED, RULES, TARGETS, PlugIn
from slipstream.profiles import cost_name, profile_for
from slipstream.specs import DrafterChoice, check_options, parse_drafter
from slipstream.types import Controller, Drafter, RequestError, VerifyRule, WorkError

__all__ = ["DRAFTERS", "PLANNED", "RULES", "TARGETS", "DrafterChoice", "Guess", "Opened", "Part", "PlugIn", "Wanted"]
__all__ += ["cpu_flags", "memory_guard", "parse_drafter", "read_model_config", "resolve_device", "resolve_dtype"]

if TYPE_CHECKING:
    import torch

    from slipstream.control.arms import Arm
    from slipstream.decoders import Way
    from slipstream.engine import Engine
    from slipstream.text import Detokenizer


def open_target(config: TargetConfig, *, rows: int, draft_tokens: int = 0) -> Opened:
    """Load the target and its tokenizer. `draft_tokens` is the widest draft it must be able to score."""
    from slipstream import models
    from slipstream.text import load_tokenizer

    choose("target", config.kind, ("auto", *TARGETS))
    device = resolve_device(config.device)
    dtype, way = _formats(config, device)
    folder, weights = models.locate(config.model, packed=way.quantize if way.kernels else None)
    tokenizer = load_tokenizer(folder)
    _check_context(config, read_model_config(folder))
    sizes = {"vocab": tokenizer.vocab, "max_rows": rows, "max_len": config.max_len}
    sizes["max_nodes"] = max(64, draft_tokens + 1)
    notes: list[str] = []
    kind = config.kind
    if kind == "auto":
        kind, note = target_kind(folder)
        notes += [note] if note else []
    if kind == "hf":
        dtype, way = _formats(replace(config, kind="hf"), device)
    elif way.note:
        notes.append(way.note)
    with memory_guard(f"loading {config.model}"):
        target = TARGETS[kind].make(weights, way, dtype, device, **sizes)
    give_back_memory()
    return Opened(config.model, folder, target, tokenizer, kind, dtype, device, way.quantize, notes)


def _formats(config: TargetConfig, device: str) -> tuple[torch.dtype, Way]:
    """Decide in which number format the target runs, and how."""
    dtype = resolve_dtype(config.dtype, device, kernels=config.kind != "hf")
    way = _way(config, dtype, device)
    return dtype if way.kernels else resolve_dtype(config.dtype, device), way


def _way(config: TargetConfig, dtype: torch.dtype, device: str) -> Way:
    """Decide how the target runs; transformers has no formats of ours."""
    from slipstream import models
    from slipstream.decoders import Way, choose_way

    if config.kind != "hf":
        codes = config.quantize == config.dtype == "auto" and models.has_codes(config.model)
        way = choose_way(config.quantize, dtype, device, codes=codes)
        if not codes or way.quantize != "int4":
            return way
        return replace(way, note=f"{way.note} (quantize auto): {models.perplexity_words(config.model)}")
    if config.quantize not in ("auto", "none"):
        raise RequestError(f"quantize={config.quantize} is not available with target hf; use none, or target native")
    return Way(False)


def _check_context(config: TargetConfig, raw: Mapping[str, Any]) -> None:
    """Positions the model was not made for give text without warning, so they are refused."""
    limit = (raw.get("text_config") or raw).get("max_position_embeddings")
    if config.max_len and isinstance(limit, int) and config.max_len > limit:
        raise RequestError(f"max_model_len={config.max_len} is more than the {limit} positions of {config.model}")


def target_kind(folder: Path) -> tuple[str, str]:
    """Return the kind of target that runs this model, and a note if it is not the native one."""
    from slipstream.nets.families import read_config

    try:
        read_config(read_model_config(folder))
    except RequestError as e:
        return "hf", f"target: transformers, since the native decoder cannot run this model: {e}"
    return "native", ""


def open_drafter(config: DrafterConfig, opened: Opened, *, rows: int, tree: bool = True) -> Guess:
    """Build the drafter a config names, for a loaded target. `tree`: the rule that will verify it handles trees."""
    from slipstream import models

    choice = parse_drafter(config.spec)
    if config.spec.strip() == "auto" and config.draft_tokens != 0 and not config.options:
        return _open_auto(config, opened, Wanted(rows=rows, tree=tree))
    if choice.parts and config.draft_tokens != 0:
        return _open_mix(choice, config, opened, Wanted(rows=rows, tree=tree))
    plug = DRAFTERS[choice.name if not choice.parts else "none"]
    options = {**choice.options, **config.options}
    check_options(choice.name if not choice.parts else "none", config.options)  # a spec's own are checked
    if choice.name == "none" and config.draft_tokens:
        raise RequestError(f"draft_tokens={config.draft_tokens} has no effect with drafter none; use 0, or another")
    if config.draft_tokens == 0 and choice.name != "none":
        plug, choice = DRAFTERS["none"], DrafterChoice("none", reason="draft_tokens 0: speculation is off")
    widest = opened.target.caps.max_nodes - 1
    if (config.draft_tokens or 0) > widest:
        raise RequestError(
            f"draft_tokens={config.draft_tokens} is more than this target can score at once: at most {widest}"
        )
    wanted = Wanted(choice.path, rows, options, tree and opened.target.caps.tree)
    with memory_guard(f"loading drafter {config.spec}"):
        made = plug.make(opened, wanted)
    give_back_memory()
    drafter, default = made if plug.learned else (made, plug.most or plug.draft_tokens)
    count = min(default, widest) if config.draft_tokens is None else config.draft_tokens
    folder = models.place_of(choice.path) if choice.path else None
    notes = [line for line in (choice.reason, *wanted.notes) if line]
    parts = [Part(drafter, count, cost_name(choice.name, folder, options), folder)] if count else []
    return Guess(drafter, count, folder, notes, parts, config.draft_tokens)


def _open_auto(config: DrafterConfig, opened: Opened, wanted: Wanted) -> Guess:
    """Build lookup and the best drafter of this target that is at hand; one that cannot be built is left out."""
    from slipstream import at_hand

    left_out = []
    for choice in at_hand.found(opened):
        parts = (DrafterChoice("lookup"), replace(choice, reason=""))
        reason = f"drafter auto: lookup and {choice.reason} (found here), round by round whichever pays, or nothing"
        try:
            guess = _open_mix(DrafterChoice("mixed", reason=reason, parts=parts), config, opened, wanted)
        except (RequestError, WorkError) as error:
            left_out.append(f"drafter auto: {choice.path} is left out: {error}")
        else:
            return replace(guess, notes=[*left_out, *guess.notes])
    guess = open_drafter(replace(config, spec="lookup"), opened, rows=wanted.rows, tree=wanted.tree)
    reason = "drafter auto: lookup where it pays (no drafter of this target is here, and no smaller model like it)"
    return replace(guess, notes=[*left_out, reason, *guess.notes])


def _open_mix(choice: DrafterChoice, config: DrafterConfig, opened: Opened, wanted: Wanted) -> Guess:
    """Build every drafter of a mix."""
    from slipstream.drafters.mixed import Mixed

    if config.options:
        raise RequestError(f"drafter {config.spec!r}: options of a mix go with its parts, as in lookup?max_ngram=4+..")
    guesses = []
    for part in choice.parts:
        spec = f"{part.name}:{part.path}" if part.path else part.name
        one = DrafterConfig(spec=spec, draft_tokens=config.draft_tokens, options=part.options)
        guesses.append(open_drafter(one, opened, rows=wanted.rows, tree=wanted.tree))
    drafter = Mixed([guess.drafter for guess in guesses], device=opened.device)
    folder = next((guess.folder for guess in guesses if guess.folder is not None), None)
    parts = [part for guess in guesses for part in guess.parts]
    reasons = [part.reason for part in choice.parts if part.reason]
    notes = [choice.reason, *reasons, *(note for guess in guesses for note in guess.notes)]
    return Guess(drafter, max(guess.draft_tokens for guess in guesses), folder, notes, parts, config.draft_tokens)


def make_rule(name: str) -> VerifyRule:
    """Return the verification rule of that name."""
    rule: VerifyRule = RULES[choose("verify", name, RULES)].make()
    return rule


def rule_used(name: str, drafter: str, draft_tokens: int, greedy: bool) -> str:
    """Return the rule that `auto` applies to this drafter's chains; any other name stands for itself."""
    if name != "auto" or drafter not in DRAFTERS:
        return name
    plug = DRAFTERS[drafter]  # of a learned drafter at least the chains are drawn
    return "block" if (plug.draws or plug.learned) and draft_tokens > 1 and not greedy else "chain"


def make_engine(opened: Opened, guess: Guess, config: EngineConfig) -> Engine:
    """Put target, drafter, rule and budget together."""
    from slipstream.engine.engine import Engine, EngineOptions
    from slipstream.text import Detokenizer

    def detokenizer() -> Detokenizer:
        return Detokenizer(opened.tokenizer)

    # other engines on this target go on reading theirs
    taps = {*getattr(opened.target, "taps", ()), *guess.drafter.needs.taps}
    if taps:
        opened.target.taps = tuple(sorted(taps))  # type: ignore[attr-defined]
    options = EngineOptions(max_rows=config.max_rows, logprobs_mode=config.logprobs_mode)  # type: ignore[arg-type]
    rule = make_rule(config.verify)
    controller = make_controller(opened, guess, rule, config)
    return Engine(opened.target, guess.drafter, rule, controller, options, detokenizer=detokenizer)


def arm_of(part: Part) -> Arm:
    """Return a drafter as the controller sees it."""
    from slipstream.control.arms import Arm

    drafter = part.drafter
    asked = {name: getattr(drafter, name, None) for name in ("look", "steer", "unread", "wait", "room")}
    return Arm(drafter.name, part.most, part.cost, tree=drafter.needs.tree, **asked)


def make_controller(opened: Opened, guess: Guess, rule: VerifyRule, config: EngineConfig) -> Controller:
    """Return what decides how much is drafted: by cost, unless a number was asked for and there is nobody to choose."""
    from slipstream.control.adaptive import AdaptiveBudget, AdaptiveOptions
    from slipstream.control.budget import FixedBudget

    if not by_cost(guess):
        return FixedBudget(guess.draft_tokens, hooks_of(guess.drafter))
    profile = profile_for(opened, guess.parts, rule, config.max_rows, guess.notes)
    arms = [arm_of(part) for part in guess.parts]
    options = AdaptiveOptions(fixed=guess.fixed, shared_noise=rule.shared_noise)
    return AdaptiveBudget(arms, profile, options, lead=getattr(guess.drafter, "lead", None))


def by_cost(guess: Guess) -> bool:
    """Tell whether there is something to choose: how much is drafted, or by whom."""
    return guess.fixed is None if len(guess.parts) == 1 else bool(guess.parts)


def hooks_of(drafter: Drafter) -> list[Callable[[None], None]]:
    """Return the hooks by which a drafter, and those it is mixed of, are told whom to ask."""
    each = (drafter, *getattr(drafter, "drafters", ()))
    found = [getattr(one, name, None) for one in each for name in ("lead", "steer", "wait")]
    return [hook for hook in found if hook is not None]
