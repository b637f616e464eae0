"""Models by name: a catalogue model, a local folder, a local .gguf file or a hub id becomes a folder on disk.

The folder is an ordinary Hugging Face one: safetensors, config.json, tokenizer. Nothing here loads a model, and
nothing here imports torch or transformers to find one that is already on disk.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path

from slipstream.models.catalogue import CATALOGUE, DEFAULT, find
from slipstream.models.store import build_folder, home, is_complete, models_dir, readable_errors
from slipstream.types import RequestError

__all__ = ["CATALOGUE", "DEFAULT", "ModelInfo", "home", "listing", "path", "pull", "resolve"]

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


@dataclass(frozen=True)
class ModelInfo:
    """A catalogue model as `models list` shows it. Sizes in bytes; `folder` is None until it has been pulled."""

    name: str
    use: str
    license: str
    download: int
    disk: int
    folder: Path | None


def resolve(name_or_path: str | os.PathLike[str], progress: bool = True) -> Path:
    """Return the folder of a model, fetching or converting it on first use.

    A catalogue name wins over a folder of the same name in the working directory (write ./NAME for that).
    """
    text = os.fspath(name_or_path)
    if text in CATALOGUE:
        return pull(text, progress)
    local = Path(text).expanduser()
    if local.is_dir():
        return _checked_folder(local)
    if local.suffix.lower() == ".gguf":
        return _converted(local, progress)
    if _HUB_ID.fullmatch(text) and not text.startswith("."):
        from slipstream.models.hub import snapshot

        return snapshot(text)
    if "/" in text or os.sep in text:
        raise RequestError(f"model {text!r}: no such folder")
    find(text)  # raises, with the nearest name
    raise AssertionError(text)


def locate(name_or_path: str | os.PathLike[str], *, codes: bool, progress: bool = True) -> tuple[Path, Path]:
    """Return a model's folder and where its weights are: the same folder, or its .gguf file if `codes` can be run.

    A .gguf whose codes are run is not dequantised to disk: its folder holds config and tokenizer only.
    """
    file = Path(os.fspath(name_or_path)).expanduser()
    if not codes or file.suffix.lower() != ".gguf" or file.is_dir():
        folder = resolve(name_or_path, progress)
        return folder, folder
    return _converted(file, progress, weights=False), file


def pull(name: str, progress: bool = True) -> Path:
    """Return the folder of a catalogue model, downloading and converting it unless it is there."""
    entry = find(name)
    folder = path(name)
    if is_complete(folder):
        return folder
    from slipstream.models.fetch import discard_downloads, fetch

    build_folder(folder, lambda work: fetch(entry, work, progress))
    discard_downloads(entry)
    return folder


def path(name: str) -> Path:
    """Return where a catalogue model lies, or will lie once pulled."""
    return models_dir() / find(name).name


def listing() -> list[ModelInfo]:
    """List the catalogue, smallest model first."""
    infos = []
    for entry in CATALOGUE.values():
        folder = models_dir() / entry.name
        there = folder if is_complete(folder) else None
        infos.append(ModelInfo(entry.name, entry.use, entry.license, entry.download, entry.disk, there))
    return infos


def _checked_folder(folder: Path) -> Path:
    if not (folder / "config.json").is_file():
        raise RequestError(f"model folder {folder}: no config.json in it; a Hugging Face model folder is needed")
    return folder


def _converted(file: Path, progress: bool, weights: bool = True) -> Path:
    """Convert a .gguf once; the folder is keyed by the file's content, so a copy or a renamed file finds it too."""
    if not file.is_file():
        raise RequestError(f"model {str(file)!r}: no such file")
    with readable_errors(file.name):
        key = _content_key(file)
    from slipstream.checkpoints.gguf import convert

    folder = models_dir() / (f"gguf-{key[:16]}" if weights else f"gguf-{key[:16]}-described")
    return build_folder(folder, lambda work: convert(file, work, progress=progress, name=file.stem, weights=weights))


def _content_key(file: Path) -> str:
    """SHA-256 of a file, remembered by path, size and time: hashing gigabytes at each start would take seconds."""
    stat = file.stat()
    place = str(file.resolve())
    stamp = [place, stat.st_size, stat.st_mtime_ns]
    memo = home() / "hashes" / f"{hashlib.sha256(place.encode()).hexdigest()[:16]}.json"
    if memo.is_file():
        known = json.loads(memo.read_text())
        if known["stamp"] == stamp:
            return str(known["sha256"])
    with file.open("rb") as stream:
        key = hashlib.file_digest(stream, "sha256").hexdigest()
    memo.parent.mkdir(parents=True, exist_ok=True)
    fresh = memo.with_suffix(f".{os.getpid()}")
    fresh.write_text(json.dumps({"stamp": stamp, "sha256": key}))
    os.replace(fresh, memo)
    return key
