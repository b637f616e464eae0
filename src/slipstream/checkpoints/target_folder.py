"""The target model's folder, as far as a drafter's file may need it: a few facts, its embedding and its head.

In: a folder with config.json and weights. Out: facts at once, tables when asked for. The model is never built.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from slipstream.checkpoints.draft_files import DraftFiles
from slipstream.nets.weights import read_json
from slipstream.types import RequestError

Which = Literal["embed", "head"]

_NAMES: dict[Which, str] = {"embed": "embed_tokens.weight", "head": "lm_head.weight"}
_SCALED = ("gemma", "muse")  # their embeddings are multiplied by a number that no drafter layout writes down


@dataclass(frozen=True)
class TargetFolder:
    """A target on disk; `name` is what a drafter's file will call it."""

    folder: Path
    name: str

    @cached_property
    def raw(self) -> dict[str, Any]:
        """The text model's part of config.json."""
        found = read_json(self.folder / "config.json")
        return {**found, **(found.get("text_config") or {})}

    @property
    def layers(self) -> int:
        """Number of decoder layers."""
        return self._number("num_hidden_layers")

    @property
    def hidden(self) -> int:
        """Hidden size."""
        return self._number("hidden_size")

    @property
    def vocab(self) -> int:
        """Rows of the embedding table."""
        return self._number("vocab_size")

    @property
    def context(self) -> int | None:
        """The longest context it claims, None where it does not say."""
        found = self.raw.get("max_position_embeddings")
        return found if isinstance(found, int) else None

    @property
    def architectures(self) -> tuple[str, ...]:
        """Its class names."""
        return tuple(self.raw.get("architectures") or ())

    @property
    def tied(self) -> bool:
        """True when the head is the embedding."""
        return self._head_name is None

    @property
    def scaled(self) -> bool:
        """True when the embedding is multiplied by a number before the first layer."""
        return str(self.raw.get("model_type", "")).startswith(_SCALED)

    def table(self, which: Which) -> Tensor:
        """Read the embedding or the head [V, H] as the file has it; a tied head is the embedding."""
        self._refuse_scaled()
        name = self._embed_name if which == "embed" or self._head_name is None else self._head_name
        return self._files.get(name)

    @cached_property
    def _files(self) -> DraftFiles:
        return DraftFiles(self.folder)

    @cached_property
    def _embed_name(self) -> str:
        found = self._find("embed")
        if found is None:
            raise RequestError(f"{self.folder}: no tensor {_NAMES['embed']} in the target {self.name!r}")
        return found

    @cached_property
    def _head_name(self) -> str | None:
        found = self._find("head")
        if found is None and self.raw.get("tie_word_embeddings") is False:
            raise RequestError(
                f"{self.folder}: no tensor {_NAMES['head']} in the target {self.name!r}, and config.json says "
                "tie_word_embeddings false"
            )
        return found

    def _find(self, which: Which) -> str | None:
        ending = _NAMES[which]
        names = [n for n in self._files.shapes if n == ending or n.endswith(f".{ending}")]
        names = [n for n in names if "visual" not in n and "vision" not in n and "mtp" not in n]
        return min(names, key=len) if names else None

    def _number(self, key: str) -> int:
        found = self.raw.get(key)
        if not isinstance(found, int) or found < 1:
            raise RequestError(f"{self.folder / 'config.json'}: {key} is {found!r}; a positive integer is needed")
        return found

    def _refuse_scaled(self) -> None:
        if self.scaled:
            raise RequestError(
                f"target {self.name!r} is a {self.raw['model_type']} model, which scales its embedding: a drafter's "
                "file that holds the table cannot say so; convert to a layout that shares the target's tables"
            )
