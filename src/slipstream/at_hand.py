"""What `--drafter auto` can choose from on this machine, beside lookup: drafters of this target that are here already.

In: an opened target. Out: choices, the most promising first. Looked for are learned drafters in the drafters folder
that name the target, and pulled catalogue models of its vocabulary of at most half its size. Nothing is downloaded and
nothing loaded; whether a choice really fits shows when it is built.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slipstream.machine import read_model_config
from slipstream.profiles import cost_name, promise
from slipstream.specs import DrafterChoice
from slipstream.types import RequestError, WorkError

if TYPE_CHECKING:
    from slipstream.opened import Opened

LARGEST = 0.5  # of the target's weights: a draft model that is larger costs too much of a pass


def drafters_dir() -> Path:
    """Return the folder whose subfolders are looked through for learned drafters."""
    from slipstream.models import home

    return home() / "drafters"


def found(opened: Opened) -> list[DrafterChoice]:
    """Return the drafters of this target that are here: what was measured to pay, then learned ones, then models."""
    choices = [*_learned(opened), *_smaller_models(opened)]
    return sorted(choices, key=lambda choice: -max(1.0, promise(opened, _cost(choice))))


def _cost(choice: DrafterChoice) -> str:
    from slipstream import models

    return cost_name(choice.name, models.resolve(choice.path), {})


def _learned(opened: Opened) -> Iterator[DrafterChoice]:
    """Learned drafters that name this target, the newest first."""
    from slipstream.learned import recognise

    here = drafters_dir()
    folders = [path for path in here.iterdir() if (path / "config.json").is_file()] if here.is_dir() else []
    names = {_plain(opened.name), _plain(opened.folder.name)}
    for folder in sorted(folders, key=lambda path: (-path.stat().st_mtime, path.name)):
        try:
            raw = json.loads((folder / "config.json").read_text(encoding="utf-8"))
            kind = recognise(folder) if names & {_plain(text) for text in _texts(raw)} else None
        except (OSError, ValueError, RequestError, WorkError):
            continue  # no drafter, or a broken one: nobody asked for it
        if kind is not None:
            yield DrafterChoice(kind, str(folder), f"{kind} {folder}, made for this target")


def _texts(value: Any) -> Iterator[str]:
    """All strings in a config: each layout has a place of its own for the target's name."""
    if isinstance(value, str):
        yield value
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _texts(each)


def _plain(name: str) -> str:
    """The last part of a path or hub id, without case and ending."""
    return name.rstrip("/").rpartition("/")[2].casefold().removesuffix(".gguf")


def _smaller_models(opened: Opened) -> Iterator[DrafterChoice]:
    """Pulled catalogue models of the same vocabulary, the smallest first."""
    from slipstream import models
    from slipstream.text import check_vocabularies, load_tokenizer

    room = LARGEST * _weights(opened.folder)
    pulled = [(_weights(info.folder), info) for info in models.listing() if info.folder is not None]
    for size, info in sorted(pulled, key=lambda pair: pair[0]):
        if not 0 < size <= room or info.folder is None:
            continue
        if read_model_config(info.folder).get("vocab_size") != read_model_config(opened.folder).get("vocab_size"):
            continue  # saves reading a tokenizer; rows of padding may differ, but hardly within a family
        try:
            check_vocabularies(opened.tokenizer, load_tokenizer(info.folder, opened.tokenizer), opened.name, info.name)
        except (RequestError, WorkError):
            continue
        yield DrafterChoice("draft_model", info.name, f"draft_model {info.name}, a smaller model of its vocabulary")


def _weights(folder: Path) -> int:
    """Numbers in a model's matrices, by its config; 0 where that cannot be read."""
    from slipstream.nets.families import read_config

    try:
        c = read_config(read_model_config(folder))
    except (RequestError, WorkError):
        return 0
    attention = c.hidden * c.head_dim * 2 * (c.heads + c.kv_heads)
    return c.layers * (attention + 3 * c.hidden * c.mlp) + c.vocab * c.hidden
