"""Read drafter specs: a name, `name:PATH`, `auto`, a bare PATH, options, mixes. Text in, a `DrafterChoice` out.

Nothing is loaded; of a PATH only its config.json is looked at.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from slipstream.config import nearest, unknown
from slipstream.plugins import DRAFTERS, PLANNED
from slipstream.types import RequestError


@dataclass(frozen=True)
class DrafterChoice:
    """Which drafter a spec means, and why if the spec left it open."""

    name: str
    path: str = ""
    reason: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    parts: tuple[DrafterChoice, ...] = ()  # of a mix


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
    check_options(choice.name, options)
    return replace(choice, options=options) if options else choice


def check_options(name: str, options: Mapping[str, Any]) -> None:
    """Refuse an option that the drafter of this name does not have."""
    known = DRAFTERS[name].options
    for key in options:
        if not known:
            said = f"{name} has no options; leave out {key}={options[key]}"
            raise RequestError(f"unknown option of drafter {name}: {said}")
        if key not in known:
            raise unknown(f"option of drafter {name}", key, known)


def check_places(spec: str) -> None:
    """Refuse a drafter whose PATH is plainly a place on this machine and is not there, before a target is loaded."""
    found = parse_drafter(spec)
    for choice in found.parts or (found,):
        path = Path(choice.path).expanduser()
        local = choice.path.startswith(("/", ".", "~")) or choice.path.count("/") > 1 or path.suffix == ".gguf"
        if local and not path.exists():
            kind = "model" if choice.name == "draft_model" else "drafter"
            raise RequestError(f"drafter {spec!r}: no such {kind} folder: {choice.path}")


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
        return DrafterChoice("lookup", reason="drafter auto: lookup where it pays")
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
