"""Where models live on this machine, and how a folder comes into being: built beside, then renamed, under a lock.

In: a model name and a function that fills a folder. Out: a complete folder, or none at all.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from slipstream.types import RequestError, WorkError

KEPT = "model.gguf"  # beside the converted weights: the published codes


def home() -> Path:
    """Return $SLIPSTREAM_HOME, or ~/.cache/slipstream; a file in its place is a `RequestError`."""
    given = os.environ.get("SLIPSTREAM_HOME")
    place = Path(given or "~/.cache/slipstream").expanduser()
    in_the_way = next((str(p) for p in (place, *place.parents) if os.path.isfile(p)), "") if given else ""
    if in_the_way:
        raise RequestError(f"SLIPSTREAM_HOME={given}: {in_the_way} is a file; name a folder, or unset the variable")
    return place


def models_dir() -> Path:
    """Return the folder that holds one folder per converted model."""
    return home() / "models"


def is_complete(folder: Path) -> bool:
    """Tell whether a model folder is there; folders appear by rename, so a config.json means all of it."""
    return (folder / "config.json").is_file()


@contextlib.contextmanager
def readable_errors(what: str) -> Iterator[None]:
    """Turn the operating system's refusals into one line that names `what` and the remedy."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise WorkError(f"{what}: disk full below {home()}; free some space or set SLIPSTREAM_HOME") from error
        raise WorkError(f"{what}: {error.strerror or error} ({error.filename or home()})") from error


def require_space(bytes_needed: int, what: str) -> None:
    """Raise WorkError when fewer than `bytes_needed` bytes are free below the home folder."""
    free = shutil.disk_usage(models_dir()).free
    if free < bytes_needed:
        raise WorkError(
            f"{what}: needs {bytes_needed / 1e9:.1f} GB below {home()}, {free / 1e9:.1f} GB are free; "
            "free some space or set SLIPSTREAM_HOME to a larger disk"
        )


def build_folder(folder: Path, fill: Callable[[Path], None]) -> Path:
    """Make `folder` by calling `fill` on an empty folder beside it; do nothing when it is complete already.

    A second process that wants the same folder waits for the first. A killed one leaves only the working folder,
    which the next attempt clears away.
    """
    if is_complete(folder):
        return folder
    with readable_errors(folder.name):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with locked(folder):
            if not is_complete(folder):
                _fill_and_rename(folder, fill)
    return folder


def _fill_and_rename(folder: Path, fill: Callable[[Path], None]) -> None:
    work = folder.parent / f".{folder.name}.partial"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    try:
        fill(work)
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(work, folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a model folder."""
    from filelock import FileLock, Timeout  # comes with huggingface-hub; the kernel frees it when a process dies

    lock = FileLock(folder.parent / f".{folder.name}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        print(f"{folder.name}: another process is fetching it; waiting", file=sys.stderr)  # noqa: T201
        lock.acquire()
    try:
        yield
    finally:
        lock.release()
