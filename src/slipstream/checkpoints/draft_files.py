"""Open a drafter's folder: config.json, and its tensors by name without reading them.

In: a folder with *.safetensors (one file, or several with an index), pytorch_model.bin or medusa_lm_head.pt. Out:
names, shapes and tensors on demand. A pickled file is opened as plain tensors only: nothing in it is ever run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from slipstream.nets.weights import read_json
from slipstream.types import RequestError, WorkError

SAFE = ("model.safetensors", "medusa_lm_head.safetensors")
PICKLED = ("pytorch_model.bin", "medusa_lm_head.pt", "pytorch_model.pt")
_INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")


class Lazy(Mapping[str, Tensor]):
    """Tensors that are read each time one is taken; nothing is kept."""

    def __init__(self, readers: Mapping[str, Callable[[], Tensor]]) -> None:
        self._readers = dict(readers)

    def __getitem__(self, name: str) -> Tensor:
        return self._readers[name]()

    def __iter__(self) -> Iterator[str]:
        return iter(self._readers)

    def __len__(self) -> int:
        return len(self._readers)

    def __contains__(self, name: object) -> bool:
        return name in self._readers


class DraftFiles:
    """One folder: `raw` is its config.json ({} for a bare Medusa file), `shapes` its tensors, `get` reads one."""

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise RequestError(f"{folder}: no such folder; a drafter is a folder with config.json and *.safetensors")
        self.folder = folder
        self.shapes: dict[str, tuple[int, ...]] = {}
        self._readers: dict[str, Callable[[], Tensor]] = {}
        self.names = self._list()
        for name in self.names:
            self._add(name)
        medusa = any(name.startswith("medusa_lm_head") for name in self.names)
        self.raw = {} if medusa and not (folder / "config.json").exists() else read_json(folder / "config.json")

    def get(self, name: str) -> Tensor:
        """Read one tensor."""
        return self._readers[name]()

    @property
    def unread(self) -> list[str]:
        """Other files of weights beside those read."""
        return [name for name in (*SAFE, *PICKLED) if name not in self.names and (self.folder / name).exists()]

    def _list(self) -> list[str]:
        for index in _INDEXES:
            if (self.folder / index).exists():
                table = read_json(self.folder / index).get("weight_map")
                if not isinstance(table, dict) or not table:
                    raise WorkError(f"{self.folder / index}: has no weight_map")
                return sorted(set(table.values()))
        for name in (*SAFE, *PICKLED):
            if (self.folder / name).exists():
                return [name]
        loose = sorted(p.name for p in self.folder.glob("*.safetensors"))
        if not loose:
            raise RequestError(f"{self.folder}: holds none of {', '.join((*SAFE, *PICKLED[:2]))}")
        return loose

    def _add(self, name: str) -> None:
        path = self.folder / name
        if path.parent.resolve() != self.folder.resolve():
            raise WorkError(f"{self.folder}: the index names {name!r}, which lies outside the folder")
        if not path.exists():
            raise WorkError(f"{path}: named in the index but not there")
        found = _safe(path) if name.endswith(".safetensors") else _pickled(path)
        for tensor, (shape, reader) in found.items():
            if tensor in self.shapes:
                raise WorkError(f"{path}: tensor {tensor} is in another file too")
            self.shapes[tensor], self._readers[tensor] = shape, reader


_Found = dict[str, tuple[tuple[int, ...], Callable[[], Tensor]]]


def _safe(path: Path) -> _Found:
    from safetensors import safe_open

    try:
        file = safe_open(path, framework="pt", device="cpu")
        return {n: (tuple(file.get_slice(n).get_shape()), _reader(file, n)) for n in file.keys()}  # noqa: SIM118
    except Exception as error:
        raise WorkError(f"{path}: damaged or truncated safetensors file ({error})") from None


def _reader(file: Any, name: str) -> Callable[[], Tensor]:
    return lambda: file.get_tensor(name)  # type: ignore[no-any-return]


def _pickled(path: Path) -> _Found:
    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise WorkError(
            f"{path}: cannot be opened as plain tensors ({reason}); a file that holds other objects could run code "
            "and is refused: save it as safetensors"
        ) from None
    if not isinstance(loaded, dict):
        raise WorkError(f"{path}: holds a {type(loaded).__name__}, not a dictionary of tensors")
    odd = next((name for name, value in loaded.items() if not isinstance(value, Tensor)), None)
    if odd is not None:
        raise WorkError(
            f"{path}: entry {odd!r} is a {type(loaded[odd]).__name__}, not a tensor; save the tensors alone"
        )
    return {str(n): (tuple(t.shape), _held(t)) for n, t in loaded.items()}


def _held(tensor: Tensor) -> Callable[[], Tensor]:
    return lambda: tensor
