"""Results on disk: one JSON object per line, only ever appended, so that a stopped run goes on where it was.

In: a path and the settings of a run. Out: the lines already measured under the same settings, and a place to append
more. A line is written whole and flushed at once; a torn last line (the run was killed while writing) is skipped.
Lines of other settings are kept and ignored, so that one file can collect many runs.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from slipstream.types import RequestError, WorkError


def key_of(settings: Mapping[str, Any]) -> str:
    """Return the name of these settings: equal settings have equal names."""
    text = json.dumps(settings, sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class Results:
    """The measured lines of one set of settings, in memory and, if a path is given, on disk.

    `settings` say what two measurements must share to belong together; `about` is noted beside them (the record).
    """

    def __init__(self, path: Path | None, settings: Mapping[str, Any], about: Mapping[str, Any]) -> None:
        self.path, self.key = path, key_of(settings)
        self._head = {"run": self.key, "settings": settings, "about": about}
        self._headed = False
        self.lines: list[dict[str, Any]] = []
        for line in _read(path) if path else ():
            if line.get("run") == self.key:
                self._headed |= "settings" in line
                if "settings" not in line:
                    self.lines.append(line)
        self.found = len(self.lines)  # measured by earlier runs

    def append(self, line: Mapping[str, Any]) -> None:
        """Add one line, on disk before this returns."""
        whole = {"run": self.key, **line}
        self.lines.append(whole)
        if self.path is None:
            return
        new = [whole] if self._headed else [self._head, whole]
        self._headed = True
        _write(self.path, "".join(json.dumps(one, ensure_ascii=False, default=str) + "\n" for one in new))


def _read(path: Path) -> Iterator[dict[str, Any]]:
    try:
        text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    except OSError as e:
        raise WorkError(f"{path} cannot be read: {e.strerror}; give another --output") from e
    lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            found = json.loads(line)
        except json.JSONDecodeError:
            found = None
        if isinstance(found, dict):
            yield found
        elif number == 1 and len(lines) > 1:  # not a torn line: some other kind of file
            raise RequestError(f"{path} is not a file of results (line 1 is no JSON object); give another --output")


def _write(path: Path, text: str) -> None:
    try:
        with path.open("ab+") as file:
            if file.tell() and not _ends_a_line(file):
                text = "\n" + text  # what a killed run tore stays a line of its own
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())
    except OSError as e:
        raise WorkError(f"cannot write {path}: {e.strerror}; give an --output in an existing folder") from e


def _ends_a_line(file: Any) -> bool:
    file.seek(-1, os.SEEK_END)
    ends: bool = file.read(1) == b"\n"
    file.seek(0, os.SEEK_END)
    return ends
