"""Names and paths become objects here, and only here: this file alone knows every plug-in.

In: config records. Out: an `Opened` target, a drafter, an `Engine`. The tables feed `--help`, the docs and the tests,
so a plug-in is one line. torch and the plug-ins themselves are imported when something is built, not before.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from slipstream.config import DrafterConfig, EngineConfig, TargetConfig, choose, nearest, unknown
from slipstream.machine import cpu_flags, memory_guard, read_model_config, resolve_device, resolve_dtype
from slipstream.profiles import cost_name, profile_for
from slipstream.types import Controller, Drafter, RequestError, Target, VerifyRule

__all__ = ["cpu_flags", "memory_guard", "read_model_config", "resolve_device", "resolve_dtype"]

if TYPE_CHECKING:
    import torch

    from slipstream.control.cost import CostTable
    from slipstream.control.profile import Profile
    from slipstream.decoders import Way
    from slipstream.engine import Engine
    from slipstream.text import Detokenizer, Tokenizer


@dataclass(frozen=True)
class PlugIn:
    """One line of a table. `draft_tokens` is what a drafter drafts unless told, `most` what `auto` may go up to (0: as
    many); `path`: its spec is `name:PATH`; `draws`: at temperature above 0 it samples its tokens; `learned`: a
    checkpoint made for one target, read by `learned`."""

    summary: str
    make: Callable[..., Any]
    draft_tokens: int = 0
    most: int = 0
    path: bool = False
    draws: bool = False
    learned: bool = False
    options: tuple[str, ...] = ()


@dataclass
class Opened:
    """A loaded target with its tokenizer. `notes` are lines a person should see (on stderr).

    Several engines may be made on it, one decoding at a time: `busy` is the last one used, `lock` guards them all.
    """

    name: str
    folder: Path
    target: Target
    tokenizer: Tokenizer
    kind: str
    dtype: torch.dtype
    device: str
    quantize: str = "none"
    notes: list[str] = field(default_factory=list)
    lock: threading.RLock = field(default_factory=threading.RLock)
    busy: Engine | None = None
    measured: CostTable | None = None
    profile: Profile | None = None

    def cost(self) -> CostTable:
        """Return what a pass of the target costs by its nodes; measured once, when nothing is being decoded."""
        from slipstream.control.cost import measure

        with self.lock:
            if self.measured is None:
                if self.busy is not None and not self.busy.idle:
                    raise RequestError("the target is decoding: its cost can only be measured when it is idle")
                self.measured = measure(self.target)
            return self.measured


@dataclass(frozen=True)
class Wanted:
    """What a drafter is built for: where it is, rows decoded at once, its options, and whether it may draft trees."""

    path: str = ""
    rows: int = 1
    options: Mapping[str, Any] = field(default_factory=dict)
    tree: bool = True
    notes: list[str] = field(default_factory=list)  # written by what is built: lines a person should see


@dataclass(frozen=True)
class DrafterChoice:
    """Which drafter a spec means, and why if the spec left it open."""

    name: str
    path: str = ""
    reason: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    parts: tuple[DrafterChoice, ...] = ()  # of a mix


@dataclass(frozen=True)
class Part:
    """A drafter that can be chosen by cost: the object, the most it drafts, and its name among a target's costs."""

    drafter: Drafter
    most: int
    cost: str


@dataclass
class Guess:
    """A built drafter: the object, the most tokens it drafts per round, and lines a person should see.

    `parts` are the drafters to choose from, none for an object of the caller's; `fixed`: how much was asked for.
    """

    drafter: Drafter
    draft_tokens: int
    folder: Path | None = None
    notes: list[str] = field(default_factory=list)
    parts: list[Part] = field(default_factory=list)
    fixed: int | None = None


def _make_none(opened: Opened, wanted: Wanted) -> Drafter:
    from slipstream.drafters.none import NoDraft

    return NoDraft(device=opened.device)


def _make_lookup(opened: Opened, wanted: Wanted) -> Drafter:
    from slipstream.drafters.lookup import Lookup, LookupOptions

    return Lookup(LookupOptions(**wanted.options), vocab=opened.target.caps.vocab, device=opened.device)


def _make_draft_model(opened: Opened, wanted: Wanted) -> Drafter:
    from slipstream import models
    from slipstream.decoders import choose_way, open_decoder
    from slipstream.drafters.draft_model import DraftModel
    from slipstream.nets.families import read_config
    from slipstream.text import check_vocabularies, load_tokenizer

    folder = models.resolve(wanted.path)
    warnings = check_vocabularies(opened.tokenizer, load_tokenizer(folder), opened.name, wanted.path)
    wanted.notes.extend(warnings)
    caps = opened.target.caps
    own = read_config(read_model_config(folder)).max_len
    way = choose_way(opened.quantize, opened.dtype, opened.device)
    sizes = {"max_rows": wanted.rows, "max_len": min(own, caps.max_len)}
    decoder = open_decoder(folder, way, opened.dtype, opened.device, **sizes)
    return DraftModel(decoder, vocab=caps.vocab, max_rows=wanted.rows, device=opened.device)


def _learned(algorithm: str) -> Callable[[Opened, Wanted], tuple[Drafter, int]]:
    def make(opened: Opened, wanted: Wanted) -> tuple[Drafter, int]:
        from slipstream.learned import make_drafter

        return make_drafter(algorithm, opened, wanted)

    return make


def _head(algorithm: str, summary: str, draft_tokens: int, *options: str, draws: bool = True) -> PlugIn:
    return PlugIn(summary, _learned(algorithm), draft_tokens, path=True, draws=draws, learned=True, options=options)


def _make_native(model: Path, way: Way, dtype: torch.dtype, device: str, **sizes: Any) -> Target:
    from slipstream.decoders import open_decoder
    from slipstream.targets.native import NativeTarget

    return NativeTarget(open_decoder(model, way, dtype, device, **sizes))


def _make_hf(folder: Path, way: Way, dtype: torch.dtype, device: str, **sizes: Any) -> Target:
    from slipstream.targets.hf import HFTarget

    sizes.pop("max_nodes")
    return HFTarget(str(folder), dtype=dtype, device=device, **sizes)


def _rule(name: str) -> Callable[[], VerifyRule]:
    def make() -> VerifyRule:
        from slipstream import verify

        rule: VerifyRule = verify.RULES[name]
        return rule

    return make


_EAGLE = ("shape", "depth", "top_k")
_DSPARK = ("schedule", "threshold", "temperatures")
_MEDUSA = ("shape", "choices")
DRAFTERS: Mapping[str, PlugIn] = MappingProxyType(
    {
        "none": PlugIn("guesses nothing: plain decoding", _make_none),
        "lookup": PlugIn(
            "copies what followed the same words before", _make_lookup, 10, 15, options=("min_ngram", "max_ngram")
        ),
        "draft_model": PlugIn("a smaller model of the same vocabulary", _make_draft_model, 4, 8, path=True, draws=True),
        "eagle": _head("eagle", "EAGLE-1/2: a layer that foresees the target's last state", 12, *_EAGLE),
        "eagle3": _head("eagle3", "EAGLE-3: a layer fed with several of the target's layers", 12, *_EAGLE),
        "peagle": _head("peagle", "P-EAGLE: EAGLE-3 that drafts all tokens in one pass", 6, "depth"),
        "dflash": _head("dflash", "DFlash: a whole block denoised in one pass", 15, "shape"),
        "dflash2": _head("dflash2", "DFlash 2: a block, and the best path through its likeliest tokens", 7),
        "dspark": _head("dspark", "DSpark: a block, corrected token by token, as long as it pays", 7, *_DSPARK),
        "medusa": _head(
            "medusa", "Medusa-1: one head per position, a tree of their guesses", 15, *_MEDUSA, draws=False
        ),
    }
)
TARGETS: Mapping[str, PlugIn] = MappingProxyType(
    {
        "native": PlugIn("this project's own decoder: faster, known families", _make_native),
        "hf": PlugIn("any transformers model", _make_hf),
    }
)
RULES: Mapping[str, PlugIn] = MappingProxyType(
    {
        "auto": PlugIn("the rule that fits the draft", _rule("auto")),
        "chain": PlugIn("token by token", _rule("chain")),
        "block": PlugIn("a whole block at once, never shorter than chain", _rule("block")),
        "tree": PlugIn("several guesses per position", _rule("tree")),
        "coupled": PlugIn("shared noise: same seed, same text with any drafter", _rule("coupled")),
    }
)
PLANNED = ("suffix", "mtp", "mlp_speculator", "self_spec")


def parse_drafter(spec: str) -> DrafterChoice:
    """Read a drafter spec: a name, `name:PATH`, `auto`, or the bare PATH of a model or a learned drafter.

    Options follow a question mark: `eagle3:PATH?shape=chain&depth=4`. `A+B` chooses between drafters round by round;
    `auto:PATH` is lookup and that drafter.
    """
    spec = spec.strip()
    parts = _parts_of(spec)
    if len(parts) > 1:
        return _mix(spec, parts)
    bare, options = _options_of(spec)
    choice = _choice(bare)
    return replace(choice, options=options) if options else choice


def _parts_of(spec: str) -> list[str]:
    """Cut a mix at each + that is followed by another drafter; a path may hold one."""
    if spec.startswith("auto:"):
        return ["lookup", *_parts_of(spec.removeprefix("auto:"))]
    if "+" not in spec or Path(spec).expanduser().exists():
        return [spec]
    parts: list[str] = []
    for piece in spec.split("+"):
        name = piece.partition(":")[0].partition("?")[0]
        starts = name in DRAFTERS or name in (*PLANNED, "auto") or _is_model(piece) or Path(piece).expanduser().is_dir()
        if parts and not starts and ":" in parts[-1]:
            parts[-1] += f"+{piece}"
        else:
            parts.append(piece)
    return parts


def _mix(spec: str, parts: list[str]) -> DrafterChoice:
    choices = tuple(parse_drafter(part) for part in parts)
    for part, choice in zip(parts, choices, strict=True):
        if part == "auto" or choice.name == "none":
            raise RequestError(f"drafter {spec!r}: leave {part!r} out; drafting nothing is always among the choices")
        if parts.count(part) > 1:
            raise RequestError(f"drafter {spec!r} names {part!r} twice")
    names = ", ".join(choice.name for choice in choices)
    return DrafterChoice("mixed", reason=f"drafter {spec}: {names}, round by round whichever pays", parts=choices)


def _options_of(spec: str) -> tuple[str, dict[str, Any]]:
    bare, mark, text = spec.rpartition("?")
    if not mark:
        return spec, {}
    options: dict[str, Any] = {}
    for part in text.split("&"):
        key, equals, value = part.partition("=")
        if not (key and equals and value):
            raise RequestError(f"drafter {spec!r}: options are written ?key=value&key=value, not {text!r}")
        try:
            options[key] = json.loads(value)
        except json.JSONDecodeError:
            options[key] = value
    return bare, options


def _choice(spec: str) -> DrafterChoice:
    if spec == "auto":
        return DrafterChoice("lookup", reason="drafter auto: lookup where it pays (needs no second model)")
    name, _, path = spec.partition(":")
    if name in DRAFTERS:
        if DRAFTERS[name].path != bool(path):
            wanted = f"{name}:PATH" if DRAFTERS[name].path else name
            raise RequestError(f"drafter {spec!r} must be written {wanted}")
        return DrafterChoice(name, path)
    kind = _drafter_kind(spec)
    if kind is not None:
        return DrafterChoice(kind, spec, reason=f"drafter {spec}: recognised as {kind}")
    if _is_model(spec):
        return DrafterChoice("draft_model", spec, reason=f"drafter {spec}: a model folder, used as draft_model")
    if name in PLANNED:
        raise RequestError(f"drafter {spec!r} is not available yet; available: {_specs()}")
    if "/" in name or "\\" in name or name.endswith(".gguf"):
        raise RequestError(f"drafter {spec!r}: no such model folder (one with a config.json); available: {_specs()}")
    raise RequestError(f"unknown drafter {spec!r}{nearest(name, DRAFTERS)}; available: {_specs()}, or a model folder")


def _drafter_kind(spec: str) -> str | None:
    """Return the algorithm of a learned drafter's folder; None when it is anything else."""
    path = Path(spec).expanduser()
    if not path.is_dir() or not (path / "config.json").is_file():
        return None
    from slipstream.learned import recognise

    return recognise(path)


def _is_model(spec: str) -> bool:
    from slipstream import models

    path = Path(spec).expanduser()
    return (path / "config.json").is_file() or (path.suffix == ".gguf" and path.is_file()) or spec in models.CATALOGUE


def _specs() -> str:
    return ", ".join(["auto"] + [f"{name}:PATH" if p.path else name for name, p in DRAFTERS.items()])


def open_target(config: TargetConfig, *, rows: int, draft_tokens: int = 0) -> Opened:
    """Load the target and its tokenizer. `draft_tokens` is the widest draft it must be able to score."""
    from slipstream import models
    from slipstream.text import load_tokenizer

    choose("target", config.kind, ("auto", *TARGETS))
    device = resolve_device(config.device)
    dtype = resolve_dtype(config.dtype, device)
    way = _way(config, dtype, device)
    folder, weights = models.locate(config.model, codes=way.kernels)
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
        way = _way(replace(config, kind="hf"), dtype, device)
    elif way.note:
        notes.append(way.note)
    with memory_guard(f"loading {config.model}"):
        target = TARGETS[kind].make(weights, way, dtype, device, **sizes)
    return Opened(config.model, folder, target, tokenizer, kind, dtype, device, way.quantize, notes)


def _way(config: TargetConfig, dtype: torch.dtype, device: str) -> Way:
    """Decide how the target runs; transformers has no formats of ours."""
    from slipstream.decoders import Way, choose_way

    if config.kind != "hf":
        return choose_way(config.quantize, dtype, device)
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
    if choice.parts and config.draft_tokens != 0:
        return _open_mix(choice, config, opened, Wanted(rows=rows, tree=tree))
    plug = DRAFTERS[choice.name if not choice.parts else "none"]
    options = {**choice.options, **config.options}
    for key in options:
        if key not in plug.options:
            raise unknown(f"option of drafter {choice.name}", key, plug.options)
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
    drafter, default = made if plug.learned else (made, plug.most or plug.draft_tokens)
    count = min(default, widest) if config.draft_tokens is None else config.draft_tokens
    folder = models.resolve(choice.path) if choice.path else None
    notes = [line for line in (choice.reason, *wanted.notes) if line]
    parts = [Part(drafter, count, cost_name(choice.name, folder, options))] if count else []
    return Guess(drafter, count, folder, notes, parts, config.draft_tokens)


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
    controller = _controller(opened, guess, rule, config)
    return Engine(opened.target, guess.drafter, rule, controller, options, detokenizer=detokenizer)


def _controller(opened: Opened, guess: Guess, rule: VerifyRule, config: EngineConfig) -> Controller:
    """Return what decides how much is drafted: by cost, unless a number was asked for and there is nobody to choose."""
    from slipstream.control.adaptive import AdaptiveBudget, AdaptiveOptions
    from slipstream.control.arms import Arm
    from slipstream.control.budget import FixedBudget

    if not guess.parts or (guess.fixed is not None and len(guess.parts) == 1):
        return FixedBudget(guess.draft_tokens)
    profile = profile_for(opened, guess.parts, rule, config.max_rows, guess.notes)
    arms = [
        Arm(p.drafter.name, p.most, p.cost, getattr(p.drafter, "look", None), p.drafter.needs.tree) for p in guess.parts
    ]
    controller = AdaptiveBudget(arms, profile, AdaptiveOptions(fixed=guess.fixed, shared_noise=rule.shared_noise))
    if hasattr(guess.drafter, "route"):
        guess.drafter.route = controller.route
    return controller
