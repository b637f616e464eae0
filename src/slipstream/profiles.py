"""The cost profile of a loaded target: from the disk if it fits, measured in a few seconds if not, and kept.

In: an opened target, drafters and a rule. Out: the `Profile` that `auto` decides by. What costs depend on is its key:
the model's files, device, number format, threads and versions. torch is imported when something is measured.
"""

from __future__ import annotations

import hashlib
import json
import platform
import sys
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slipstream.machine import memory_guard
from slipstream.types import VerifyRule

if TYPE_CHECKING:
    from slipstream.control.profile import Profile
    from slipstream.opened import Opened, Part

_PIECE, _PIECES = 4096, 9
MOST_ROWS = 8  # rows timed together; more are drawn on by the last slope
FARTHEST = 2048  # no context beyond is measured, so longer ones share a profile


def profiles_dir() -> Path:
    """Return the folder of stored profiles."""
    from slipstream.models import home

    return home() / "profiles"


def profile_for(opened: Opened, parts: Seq[Part], rule: VerifyRule, rows: int, notes: list[str]) -> Profile:
    """Return the target's profile with the costs of these drafters in it; what is missing is measured and stored.

    While the target is decoding nothing can be measured: then what is known must do.
    """
    from slipstream.control import profile_file
    from slipstream.control.profile import flat

    folder, key = profiles_dir(), key_of(opened)
    with opened.lock:
        if opened.profile is None:
            opened.profile, note = profile_file.load(folder, key)
            notes += [note] if note else []
        if not opened.idle:
            return opened.profile or flat()
        with memory_guard("measuring what rounds cost"):
            found, fresh = _complete(opened, parts, rule, rows)
        if fresh:
            note = profile_file.save(folder, key, found)
            notes += [note] if note else []
        return found


def measure_again(opened: Opened, parts: Seq[Part], rule: VerifyRule, rows: int) -> Profile:
    """Forget what was measured of the target and these drafters, and measure it; acceptance that was found stays."""
    with opened.lock:
        opened.need_idle()
        old, opened.profile = opened.profile, None
        found, _ = _complete(opened, parts, rule, rows)
        if old is not None:
            found.rates.update(old.rates)
        return found


def lacks(opened: Opened, parts: Seq[Part]) -> bool:
    """Tell whether what these drafters cost is not known yet: the target was decoding when they were built."""
    return any(opened.profile is None or _unknown(part, opened.profile) for part in parts)


def promise(opened: Opened, cost: str) -> float:
    """Return how many times as fast as plain a drafter was when it was last tuned; 0 when that is not known."""
    from slipstream.control import profile_file
    from slipstream.control.acceptance import survival
    from slipstream.control.knowledge import rate_key

    profile = opened.profile or profile_file.load(profiles_dir(), key_of(opened))[0]
    shares = profile.rates.get(cost, {}).get(rate_key(True, 0)) if profile is not None else None
    if profile is None or not shares or cost not in profile.drafts:
        return 0.0
    tokens, best, plain = 1.0, 0.0, profile.target(1, 1)
    for n, chance in enumerate(survival(shares, tree=cost in profile.trees), 1):
        tokens += chance
        best = max(best, tokens * plain / (profile.target(1, 1 + n) + profile.draft(cost, n, "greedy")))
    return best


def save(opened: Opened) -> str:
    """Store the target's profile; return a note if that is not possible."""
    from slipstream.control import profile_file

    assert opened.profile is not None
    return profile_file.save(profiles_dir(), key_of(opened), opened.profile)


def _complete(opened: Opened, parts: Seq[Part], rule: VerifyRule, rows: int) -> tuple[Profile, bool]:
    """Measure what the profile lacks; say whether anything did."""
    from slipstream.devices import StepAside

    with StepAside(opened.target.caps.own_threads):  # as in rounds
        return _measured(opened, parts, rule, rows)


def _measured(opened: Opened, parts: Seq[Part], rule: VerifyRule, rows: int) -> tuple[Profile, bool]:
    from slipstream.control import profile as timed

    rows, found = min(rows, MOST_ROWS, opened.target.caps.max_rows), opened.profile
    new = [part for part in parts if found is None or _unknown(part, found)]
    drawn = timed.kind_of(False, rule.shared_noise)
    if found is not None and rows in found.passes and drawn in found.around and not new:
        return found, False
    if sys.stderr.isatty():  # for who waits; a script's errors stay one line
        print(f"{opened.name}: measuring what rounds cost here, once: some seconds", file=sys.stderr)  # noqa: T201
    if found is None:
        found = opened.profile = timed.measure_target(opened.target)
    if drawn not in found.around:
        found.around.update(timed.measure_around(opened.target, rule))
    if rows not in found.passes:
        found.passes[rows] = timed.measure_rows(opened.target, rows)
    for part in new:
        found.drafts[part.cost] = timed.measure_drafter(opened.target, part.drafter, part.most)
        if part.drafter.needs.tree:
            found.trees.add(part.cost)
        if hasattr(part.drafter, "unread"):
            found.reading[part.cost] = timed.measure_reading(opened.target, part.drafter)
    return found, True


def _unknown(part: Part, profile: Profile) -> bool:
    """Tell whether a drafter's costs, or those of its longest drafts, are lacking."""
    return part.cost not in profile.drafts or part.most + 1 > max(profile.drafts[part.cost]["greedy"].nodes)


def key_of(opened: Opened) -> dict[str, Any]:
    """Return what the costs depend on."""
    import torch

    from slipstream import __version__

    device = torch.cuda.get_device_name(opened.device) if opened.device.startswith("cuda") else _cpu()
    return {
        "model": folder_hash(opened.folder),
        "target": opened.kind,
        "device": device,
        "dtype": str(opened.dtype),
        "quantize": getattr(opened, "quantize", "none"),
        "threads": torch.get_num_threads(),
        "context": min(opened.target.caps.max_len, FARTHEST),
        "kernels": _kernels(opened),
        "version": __version__,
        "torch": torch.__version__,
    }


def _kernels(opened: Opened) -> str:
    """Say how the CPU kernels run and which they are, if they run the target."""
    if not opened.target.caps.own_threads:
        return ""
    from slipstream import kernels

    return f"{kernels.level()}, {kernels.threads()} threads, {_sample(Path(kernels.native().__file__))}"


def cost_name(name: str, folder: Path | None, options: Mapping[str, Any]) -> str:
    """Return the name of a drafter's costs: its kind, its files, its options."""
    found = f"{name}@{folder_hash(folder)}" if folder is not None else name
    return found + (f"?{json.dumps(dict(options), sort_keys=True, default=str)}" if options else "")


def folder_hash(folder: Path) -> str:
    """Return a short hash of a model folder: its config, and its files by name, size and a few pieces of each; or of
    a model that is one file."""
    files = sorted(folder.iterdir()) if folder.is_dir() else [folder]
    parts = [_sample(path) for path in files if path.is_file()]
    config = folder / "config.json"
    parts += [config.read_text(encoding="utf-8", errors="replace")] if config.is_file() else []
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _sample(path: Path) -> str:
    """Tell a file from another of its size: two drafters of one shape differ in their numbers alone."""
    size = path.stat().st_size
    found = hashlib.sha256()
    with path.open("rb") as file:
        for k in range(_PIECES):
            file.seek(k * max(0, size - _PIECE) // (_PIECES - 1))
            found.update(file.read(_PIECE))
    return f"{path.name} {size} {found.hexdigest()}"


@cache
def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
