"""Fetch a model by its Hugging Face hub id; what is already in the hub's own cache is used without a network."""

from __future__ import annotations

import json
from pathlib import Path

from slipstream.types import RequestError, WorkError

_WANTED = ["*.safetensors", "*.json", "*.jinja", "*.model", "merges.txt", "vocab.txt"]
_UNWANTED = ["*/*", "*.onnx*", "consolidated*"]


def snapshot(repo_id: str, what: str = "model") -> Path:
    """Return the local folder of a hub model, or `what` it is, downloading it unless the hub's cache has all of it."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, HFValidationError, RepositoryNotFoundError

    try:
        cached = Path(snapshot_download(repo_id, local_files_only=True))
        if _has_weights(cached):
            return cached
    except FileNotFoundError:  # LocalEntryNotFoundError: nothing of it in the cache
        pass
    except HFValidationError as error:
        raise RequestError(f"{what} {repo_id!r}: not a hub id ({error})") from error
    try:
        folder = Path(snapshot_download(repo_id, allow_patterns=_WANTED, ignore_patterns=_UNWANTED))
    except GatedRepoError as error:
        raise WorkError(f"{what} {repo_id!r}: access must be granted on the hub first; then set HF_TOKEN") from error
    except RepositoryNotFoundError as error:
        raise RequestError(
            f"{what} {repo_id!r}: the hub has none of that name (or it is private: set HF_TOKEN)"
        ) from error
    except (HfHubHTTPError, OSError, RuntimeError) as error:
        raise WorkError(_offline(repo_id, what)) from error  # the cause is for --debug: no reader can act on it
    if not _has_weights(folder):
        raise RequestError(f"{what} {repo_id!r}: has no config.json with .safetensors weights")
    return folder


def _has_weights(folder: Path) -> bool:
    if not (folder / "config.json").is_file():
        return False
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        files = set(json.loads(index.read_text())["weight_map"].values())
        return all((folder / file).is_file() for file in files)
    return any(folder.glob("*.safetensors"))


def _offline(repo_id: str, what: str) -> str:
    here = (
        "a local folder" if what == "drafter" else "a local folder, a .gguf file or a name of 'slipstream models list'"
    )
    return f"{what} {repo_id!r}: not in the local hub cache, and the hub cannot be reached; use {here}"
