"""Models by name: a catalogue model, a local folder, a local .gguf file or a hub id becomes a folder on disk.

The folder is an ordinary Hugging Face one: safetensors, config.json, tokenizer; a pulled one also keeps the .gguf file
that it was made of. Nothing here loads a model, and
nothing here imports torch or transformers to find one that is already on disk.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from slipstream.models.catalogue import CATALOGUE, DEFAULT, Entry, find
from slipstream.models.store import KEPT, build_folder, home, is_complete, locked, models_dir, readable_errors
from slipstream.types import RequestError, WorkError

__all__ = [
    "CATALOGUE",
    "DEFAULT",
    "KEPT",
    "ModelInfo",
    "check_kind",
    "has_codes",
    "home",
    "listing",
    "locate",
    "path",
    "perplexity_words",
    "place_of",
    "pull",
    "resolve",
]

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


@dataclass(frozen=True)
class ModelInfo:
    """A catalogue model as `models list` shows it. Sizes in bytes; `folder` is None until it has been pulled.

    `codes`: its .gguf file is there, whose codes the kernels run as they are.
    """

    name: str
    use: str
    license: str
    download: int
    disk: int
    folder: Path | None
    codes: bool = False


def resolve(name_or_path: str | os.PathLike[str], progress: bool = True, what: str = "model") -> Path:
    """Return the folder of a model, fetching or converting it on first use; `what` it is is said in errors.

    A catalogue name wins over a folder of the same name in the working directory (write ./NAME for that).
    """
    text = os.fspath(name_or_path)
    if text in CATALOGUE:  # a folder pulled before .gguf files were kept does without
        return path(text) if is_complete(path(text)) else pull(text, progress)
    local = Path(text).expanduser()
    if local.is_dir():
        return _checked_folder(local, what)
    if local.suffix.lower() == ".gguf":
        return _converted(local, progress)
    if _HUB_ID.fullmatch(text) and not text.startswith("."):
        from slipstream.models.hub import snapshot

        return snapshot(text, what)
    if "/" in text or os.sep in text:
        raise RequestError(f"{what} {text!r}: no such folder")
    find(text)  # raises, with the nearest name
    raise AssertionError(text)


def locate(name_or_path: str | os.PathLike[str], *, packed: str | None, progress: bool = True) -> tuple[Path, Path]:
    """Return a model's folder and where its weights are: the same folder, or its .gguf file.

    `packed` is the weight format that the kernels pack, None for torch. They read a .gguf as it is: it is not
    dequantised to disk, and its folder holds config and tokenizer only. For int4 they read the .gguf kept in a folder.
    """
    file = Path(os.fspath(name_or_path)).expanduser()
    if packed is not None and file.suffix.lower() == ".gguf" and not file.is_dir():
        return _converted(file, progress, weights=False), file
    folder = resolve(name_or_path, progress)
    check_kind(folder, os.fspath(name_or_path))
    kept = folder / KEPT
    return folder, kept if packed == "int4" and kept.is_file() else folder


def place_of(name_or_path: str | os.PathLike[str]) -> Path:
    """Return where a model's weights are: its folder, or the .gguf file that it is; that file is not converted."""
    file = Path(os.fspath(name_or_path)).expanduser()
    return file if file.suffix.lower() == ".gguf" and file.is_file() else resolve(name_or_path)


def has_codes(name_or_path: str | os.PathLike[str]) -> bool:
    """Tell whether a model's weights are here, or will be once pulled, as codes of a few bits."""
    text = os.fspath(name_or_path)
    place = path(text) if text in CATALOGUE else Path(text).expanduser()
    if text in CATALOGUE and not is_complete(place):
        return True
    file = place / KEPT if place.is_dir() else place
    if file.suffix.lower() != ".gguf" or not file.is_file():
        return False
    if text in CATALOGUE:
        return True
    from slipstream.checkpoints.gguf_file import open_gguf

    return open_gguf(file).coded


def perplexity_words(name_or_path: str | os.PathLike[str]) -> str:
    """Say what running a model's codes costs in perplexity, as measured when this package was made."""
    entry = _entry(os.fspath(name_or_path))
    table = json.loads(resources.files(__name__).joinpath("perplexity.json").read_text(encoding="utf-8"))
    if entry is None or entry.name not in table:
        return f"perplexity not measured; python -m slipstream.measure.perplexity --model {name_or_path} measures it"
    found = table[entry.name]
    return f"perplexity {found['int4']:.2f} beside {found['none']:.2f} in bfloat16"


def _entry(text: str) -> Entry | None:
    """Return the catalogue entry of a name, of a pulled folder, or of a .gguf file of the same content."""
    if text in CATALOGUE:
        return CATALOGUE[text]
    place = Path(text).expanduser()
    if place.is_dir():
        return next((e for e in CATALOGUE.values() if path(e.name).resolve() == place.resolve()), None)
    return next((e for e in CATALOGUE.values() if e.gguf_sha256 == _content_key(place)), None)


def pull(name: str, progress: bool = True) -> Path:
    """Return the folder of a catalogue model with its .gguf file; only what is missing is downloaded and converted."""
    entry = find(name)
    folder = path(name)
    if is_complete(folder) and (folder / KEPT).is_file():
        return folder
    from slipstream.models.fetch import discard_downloads, fetch, fetch_codes

    if is_complete(folder):
        with locked(folder):
            fetch_codes(entry, folder, progress)
    else:
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
        codes = there is not None and (there / KEPT).is_file()
        disk = entry.disk + entry.gguf_size
        infos.append(ModelInfo(entry.name, entry.use, entry.license, entry.download, disk, there, codes))
    return infos


def _checked_folder(folder: Path, what: str) -> Path:
    if not (folder / "config.json").is_file():
        raise RequestError(f"{what} folder {folder}: no config.json in it; a Hugging Face folder is needed")
    _config(folder)
    return folder


def _config(folder: Path) -> dict[str, Any]:
    """Read config.json: a damaged one is named before anything else is looked for in the folder."""
    file = folder / "config.json"
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except OSError as e:
        raise WorkError(f"{file} cannot be read: {e.strerror or e}") from None
    except ValueError as e:
        raise WorkError(f"{file} is not valid JSON: {e}") from None
    if not isinstance(found, dict):
        raise WorkError(f"{file} is not valid: it must hold a JSON object, not {type(found).__name__}")
    return found


def check_kind(folder: Path, name: str) -> None:
    """Refuse a model that neither decoder knows; transformers is asked last, since importing it takes seconds."""
    from slipstream.nets.families import FAMILIES

    kind = _config(folder).get("model_type")
    if not isinstance(kind, str) or kind in FAMILIES:
        return
    from slipstream.targets.hf_kinds import is_known

    if not is_known(kind):
        known = f"{', '.join(FAMILIES)}, and those of transformers"
        raise RequestError(f"model {name!r}: model_type {kind!r} is not known; known: {known}")


def _converted(file: Path, progress: bool, weights: bool = True) -> Path:
    """Convert a .gguf once; the folder is keyed by the file's content, so a copy or a renamed file finds it too."""
    if not file.is_file():
        raise RequestError(f"model {str(file)!r}: no such file")
    with readable_errors(file.name):
        key = _content_key(file)
    from slipstream.checkpoints.gguf import convert

    def fill(work: Path) -> None:
        if not weights:  # so that two folders without weights differ, and what is kept by a folder's hash with them
            (work / "weights.sha256").write_text(key + "\n", encoding="ascii")
        convert(file, work, progress=progress, name=file.stem, weights=weights)

    return build_folder(models_dir() / (f"gguf-{key[:16]}" if weights else f"gguf-{key[:16]}-described"), fill)


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
