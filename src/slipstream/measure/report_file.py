"""Write a report whole or not at all. In: a file name and its content. Out: the file, or an error that names it."""

from __future__ import annotations

from pathlib import Path

from slipstream.types import RequestError, WorkError


def check_writable(name: str | Path) -> None:
    """Raise before any long work if `name` cannot become a file."""
    path = Path(name).expanduser()
    if path.is_dir():
        raise RequestError(f"file {str(name)!r} cannot be written: it is a folder; give a file name")
    if not path.parent.is_dir():
        raise RequestError(f"file {str(name)!r} cannot be written: its folder does not exist")


def write_whole(name: str | Path, content: str) -> None:
    """Write to a temporary name, then rename."""
    path = Path(name).expanduser()
    part = path.with_name(path.name + ".part")
    try:
        part.write_text(content, encoding="utf-8")
        part.replace(path)
    except OSError as e:
        part.unlink(missing_ok=True)
        raise WorkError(
            f"file {str(name)!r} cannot be written: {e.strerror}; give one in a folder that exists"
        ) from None
