"""Profiles on disk: one JSON file per key, written whole or not at all.

In: a folder and a key (model hash, device, dtype, threads, version: whatever costs depend on). Out: the profile, and a
line for people when a file was there but of no use. A file that cannot be written is a note, never an error.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slipstream.control.profile import Profile, from_dict

FORMAT = 2


def path_of(folder: Path, key: Mapping[str, Any]) -> Path:
    """Return the file that holds the profile of a key."""
    text = json.dumps(dict(key), sort_keys=True, default=str)
    return folder / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"


def load(folder: Path, key: Mapping[str, Any]) -> tuple[Profile | None, str]:
    """Return the stored profile of a key, or None, and a note if a file was there that cannot be used."""
    path = path_of(folder, key)
    try:
        found = json.loads(path.read_text(encoding="utf-8"), parse_constant=_no_constant)
        if found["format"] != FORMAT or found["key"] != _plain(key):
            return None, f"profile {path.name} is of another model, machine or version: measured again"
        return _finite(from_dict(found["profile"])), ""
    except FileNotFoundError:
        return None, ""
    except (OSError, KeyError, TypeError, ValueError, AttributeError, RecursionError):
        return None, f"profile {path.name} is damaged: measured again"


def save(folder: Path, key: Mapping[str, Any], profile: Profile) -> str:
    """Write the profile of a key; return a note if that is not possible."""
    path = path_of(folder, key)
    text = json.dumps({"format": FORMAT, "key": _plain(key), "profile": profile.as_dict()}, indent=1)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=folder, suffix=".partial")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
            os.replace(name, path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        return f"the profile cannot be kept in {folder} ({error.strerror or error}): it is measured at every start"
    return ""


def _plain(key: Mapping[str, Any]) -> Any:
    return json.loads(json.dumps(dict(key), default=str))


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} in a profile")


def _finite(profile: Profile) -> Profile:
    tables = [*profile.passes.values(), *profile.around.values()]
    tables += [table for kinds in profile.drafts.values() for table in kinds.values()]
    seconds = [s for table in tables for s in table.seconds] + [*profile.reach.values(), *profile.reading.values()]
    if not all(math.isfinite(s) for s in seconds):
        raise ValueError("a profile with an infinite time")
    return profile
