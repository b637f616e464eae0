"""Names and paths become objects here, and only here: this file alone knows every plug-in.

In: config records. Out: an `Opened` target, a drafter, an `Engine`. The tables feed `--help`, the docs and the tests,
so a plug-in is one line. torch and the plug-ins themselves are imported when something is built, not before.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from slipstream.config import DrafterConfig, EngineConfig, TargetConfig, choose, nearest, unknown
from slipstream.types import Drafter, RequestError, Target, VerifyRule, WorkError

if TYPE_CHECKING:
    import torch

    from slipstream.engine import Engine
    from slipstream.text import Detokenizer, Tokenizer


@dataclass(frozen=True)
class PlugIn:
    """One line of a table. `draft_tokens` is a drafter's default; `path`: its spec is `name:PATH`; `draws`: at
    temperature above 0 it samples its tokens."""

    summary: str
    make: Callable[..., Any]
    draft_tokens: int = 0
    path: bool = False
    draws: bool = False
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
    notes: list[str] = field(default_factory=list)
    lock: threading.RLock = field(default_factory=threading.RLock)
    busy: Engine | None = None


@dataclass(frozen=True)
class DrafterChoice:
    """Which drafter a spec means, and why if the spec left it open."""

    name: str
    path: str = ""
    reason: str = ""


@dataclass
class Guess:
    """A built drafter: the object, the most tokens it drafts per round, and lines a person should see."""

    drafter: Drafter
    draft_tokens: int
    folder: Path | None = None
    notes: list[str] = field(default_factory=list)


def _make_none(opened: Opened, path: str, rows: int, options: Mapping[str, Any]) -> Drafter:
    from slipstream.drafters.none import NoDraft

    return NoDraft(device=opened.device)


def _make_lookup(opened: Opened, path: str, rows: int, options: Mapping[str, Any]) -> Drafter:
    from slipstream.drafters.lookup import Lookup, LookupOptions

    return Lookup(LookupOptions(**options), vocab=opened.target.caps.vocab, device=opened.device)


def _make_draft_model(opened: Opened, path: str, rows: int, options: Mapping[str, Any]) -> Drafter:
    from slipstream import models
    from slipstream.drafters.draft_model import DraftModel
    from slipstream.nets.decoder import load_decoder
    from slipstream.nets.families import read_config
    from slipstream.text import check_vocabularies, load_tokenizer

    folder = models.resolve(path)
    warnings = check_vocabularies(opened.tokenizer, load_tokenizer(folder), opened.name, path)
    opened.notes.extend(warnings)
    caps = opened.target.caps
    own = read_config(read_model_config(folder)).max_len
    decoder = load_decoder(folder, opened.dtype, opened.device, max_rows=rows, max_len=min(own, caps.max_len))
    return DraftModel(decoder, vocab=caps.vocab, max_rows=rows, device=opened.device)


def _make_native(folder: Path, dtype: torch.dtype, device: str, **sizes: Any) -> Target:
    from slipstream.nets.decoder import load_decoder
    from slipstream.targets.native import NativeTarget

    return NativeTarget(load_decoder(folder, dtype, device, **sizes))


def _make_hf(folder: Path, dtype: torch.dtype, device: str, **sizes: Any) -> Target:
    from slipstream.targets.hf import HFTarget

    sizes.pop("max_nodes")
    return HFTarget(str(folder), dtype=dtype, device=device, **sizes)


def _rule(name: str) -> Callable[[], VerifyRule]:
    def make() -> VerifyRule:
        from slipstream import verify

        rule: VerifyRule = verify.RULES[name]
        return rule

    return make


DRAFTERS: Mapping[str, PlugIn] = MappingProxyType(
    {
        "none": PlugIn("guesses nothing: plain decoding", _make_none),
        "lookup": PlugIn(
            "copies what followed the same words before", _make_lookup, 10, options=("min_ngram", "max_ngram")
        ),
        "draft_model": PlugIn("a smaller model of the same vocabulary", _make_draft_model, 4, path=True, draws=True),
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
PLANNED = ("suffix", "eagle", "eagle3", "dflash", "dspark", "medusa", "mtp", "mlp_speculator", "self_spec")


def parse_drafter(spec: str) -> DrafterChoice:
    """Read a drafter spec: a name, `name:PATH`, `auto`, or the bare PATH of a model."""
    spec = spec.strip()
    if spec == "auto":
        return DrafterChoice("lookup", reason="drafter auto: lookup (needs no second model)")
    name, _, path = spec.partition(":")
    if name in DRAFTERS:
        if DRAFTERS[name].path != bool(path):
            wanted = f"{name}:PATH" if DRAFTERS[name].path else name
            raise RequestError(f"drafter {spec!r} must be written {wanted}")
        return DrafterChoice(name, path)
    if _is_model(spec):
        return DrafterChoice("draft_model", spec, reason=f"drafter {spec}: a model folder, used as draft_model")
    if name in PLANNED or "+" in spec:
        raise RequestError(f"drafter {spec!r} is not available yet; available: {_specs()}")
    if "/" in name or "\\" in name or name.endswith(".gguf"):
        raise RequestError(f"drafter {spec!r}: no such model folder (one with a config.json); available: {_specs()}")
    raise RequestError(f"unknown drafter {spec!r}{nearest(name, DRAFTERS)}; available: {_specs()}, or a model folder")


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
    folder = models.resolve(config.model)
    tokenizer = load_tokenizer(folder)
    _check_context(config, read_model_config(folder))
    device = resolve_device(config.device)
    dtype = resolve_dtype(config.dtype, device)
    sizes = {"vocab": tokenizer.vocab, "max_rows": rows, "max_len": config.max_len}
    sizes["max_nodes"] = max(64, draft_tokens + 1)
    notes: list[str] = []
    kind = config.kind
    if kind == "auto":
        kind, note = target_kind(folder)
        notes += [note] if note else []
    with memory_guard(f"loading {config.model}"):
        target = TARGETS[kind].make(folder, dtype, device, **sizes)
    return Opened(config.model, folder, target, tokenizer, kind, dtype, device, notes)


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


def open_drafter(config: DrafterConfig, opened: Opened, *, rows: int) -> Guess:
    """Build the drafter a config names, for a loaded target."""
    from slipstream import models

    choice = parse_drafter(config.spec)
    plug = DRAFTERS[choice.name]
    for key in config.options:
        if key not in plug.options:
            raise unknown(f"option of drafter {choice.name}", key, plug.options)
    count = plug.draft_tokens if config.draft_tokens is None else config.draft_tokens
    if choice.name == "none" and count:
        raise RequestError(f"draft_tokens={count} has no effect with drafter none; use 0, or another drafter")
    if count == 0 and choice.name != "none":
        plug, choice = DRAFTERS["none"], DrafterChoice("none", reason="draft_tokens 0: speculation is off")
    widest = opened.target.caps.max_nodes - 1
    if count > widest:
        raise RequestError(f"draft_tokens={count} is more than this target can score at once: at most {widest}")
    with memory_guard(f"loading drafter {config.spec}"):
        drafter = plug.make(opened, choice.path, rows, config.options)
    folder = models.resolve(choice.path) if choice.path else None
    return Guess(drafter, count, folder, [choice.reason] if choice.reason else [])


def make_rule(name: str) -> VerifyRule:
    """Return the verification rule of that name."""
    rule: VerifyRule = RULES[choose("verify", name, RULES)].make()
    return rule


def rule_used(name: str, drafter: str, draft_tokens: int, greedy: bool) -> str:
    """Return the rule that `auto` applies to this drafter's chains; any other name stands for itself."""
    if name != "auto" or drafter not in DRAFTERS:
        return name
    return "block" if DRAFTERS[drafter].draws and draft_tokens > 1 and not greedy else "chain"


def make_engine(opened: Opened, guess: Guess, config: EngineConfig) -> Engine:
    """Put target, drafter, rule and budget together."""
    from slipstream.control.budget import FixedBudget
    from slipstream.engine.engine import Engine, EngineOptions
    from slipstream.text import Detokenizer

    def detokenizer() -> Detokenizer:
        return Detokenizer(opened.tokenizer)

    if guess.drafter.needs.taps and opened.kind == "native":
        opened.target.taps = tuple(guess.drafter.needs.taps)  # type: ignore[attr-defined]
    options = EngineOptions(max_rows=config.max_rows, logprobs_mode=config.logprobs_mode)  # type: ignore[arg-type]
    rule = make_rule(config.verify)
    return Engine(opened.target, guess.drafter, rule, FixedBudget(guess.draft_tokens), options, detokenizer=detokenizer)


def resolve_device(name: str) -> str:
    """Return a device torch can use; "auto" is cuda when there is one."""
    import torch

    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise RequestError(f"device {name!r} must be auto, cpu, cuda or cuda:N") from None
    if device.type not in ("cpu", "cuda"):
        raise RequestError(f"device {name!r} is not supported; use auto, cpu, cuda or cuda:N")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise RequestError(f"device {name!r} does not exist here: {torch.cuda.device_count()} CUDA devices; use cpu")
    return name


def resolve_dtype(name: str, device: str) -> torch.dtype:
    """Return the number format; "auto" is bfloat16 where the hardware multiplies it natively, else float32."""
    import torch

    if name == "auto":
        native = cpu_flags() & {"avx512_bf16", "amx_bf16", "bf16"}
        name = "bfloat16" if device.startswith("cuda") or native else "float32"
    dtype: torch.dtype = getattr(torch, name)
    return dtype


@cache
def cpu_flags() -> frozenset[str]:
    """Return the CPU's feature flags as the kernel names them; empty where it does not say."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return frozenset()
    for line in text.splitlines():
        if line.startswith(("flags", "Features")):
            return frozenset(line.partition(":")[2].split())
    return frozenset()


@contextlib.contextmanager
def memory_guard(doing: str) -> Iterator[None]:
    """Turn running out of memory into a `WorkError` that names what to lower."""
    try:
        yield
    except (MemoryError, RuntimeError) as e:
        text = str(e).lower()
        out = isinstance(e, MemoryError) or "out of memory" in text or "can't allocate memory" in text
        if not out or isinstance(e, WorkError):
            raise
        raise WorkError(f"out of memory while {doing}; lower --max-model-len, max_rows or the size of the model") from e


def read_model_config(folder: Path) -> dict[str, Any]:
    """Read a model folder's config.json."""
    try:
        found: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError) as e:
        raise WorkError(f"{folder}/config.json cannot be read: {e}") from e
    return found
