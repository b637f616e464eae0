"""What the layout tables work with: a `Layout`, and the `Reading` of one folder that it turns into a `DraftConfig`.

In: config.json and canonical tensor shapes. Out: checked values; every refusal names the key or tensor in the file's
own spelling. `facts` is what is known of the target, `given` what the caller overrides. Reads no weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from slipstream.checkpoints.draft_names import Names
from slipstream.nets.draft_config import Algorithm, DraftConfig
from slipstream.types import RequestError, WorkError


@dataclass(frozen=True)
class TargetFacts:
    """What a loader must know of the target. `vocab` counts embedding rows, `real_vocab` the ids of its tokenizer."""

    name: str
    hidden: int
    layers: int
    vocab: int
    real_vocab: int
    rope_theta: float | None = None
    tied: bool = False


@dataclass
class Reading:
    """One folder on its way to a record. `shapes` has canonical names; `notes` collects what a person should see."""

    layout: Layout
    folder: str
    raw: Mapping[str, Any]
    shapes: Mapping[str, tuple[int, ...]]
    facts: TargetFacts | None = None
    given: Mapping[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def wrong(self, text: str) -> RequestError:
        """Return the error to raise for a wrong config.json."""
        return RequestError(f"{self.folder}/config.json: {text}")

    def damaged(self, text: str) -> WorkError:
        """Return the error to raise for wrong tensors."""
        return WorkError(f"{self.folder}: {text}")

    def own(self, canonical: str) -> str:
        """Return the file's own spelling of a canonical tensor name."""
        return self.layout.names.own(canonical) or canonical

    def need(self, key: str, cfg: Mapping[str, Any] | None = None) -> int:
        """Return a positive integer that must be in config.json."""
        return self._integer(key, (self.raw if cfg is None else cfg).get(key), 1)

    def integer(self, key: str, cfg: Mapping[str, Any] | None = None, least: int = 1) -> int | None:
        """Return an integer of config.json, or None where it says nothing."""
        value = (self.raw if cfg is None else cfg).get(key)
        return None if value is None else self._integer(key, value, least)

    def _integer(self, key: str, value: object, least: int) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            kind = "a positive integer" if least == 1 else f"an integer from {least} on"
            raise self.wrong(f"{key} is {value!r}; {kind} is needed")
        return value

    def flag(self, key: str, default: bool, cfg: Mapping[str, Any] | None = None) -> bool:
        """Return a true or false of config.json."""
        value = (self.raw if cfg is None else cfg).get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.wrong(f"{key} is {value!r}; true or false is needed")
        return value

    def table(self, key: str) -> Mapping[str, Any]:
        """Return a nested object of config.json, empty when it is not there."""
        value = self.raw.get(key)
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise self.wrong(f"{key} is {value!r}; an object is needed")
        return value

    def ids(self, key: str, value: object) -> list[int]:
        """Return a list of integers."""
        wrong = not isinstance(value, list) or any(isinstance(i, bool) or not isinstance(i, int) for i in value)
        if value is None:
            raise self.wrong(f"{key} is missing; no default is known for it")
        if wrong or not value:
            raise self.wrong(f"{key} is {value!r}; a list of layer numbers is needed")
        return list(value)  # type: ignore[call-overload, no-any-return]

    def target_layers(self) -> int | None:
        """Return the number of layers of the target: the file's claim, else the target's own."""
        return self.integer("num_target_layers") or (self.facts.layers if self.facts else None)

    def need_target_layers(self, key: str) -> int:
        """Return the number of layers of the target where the default of `key` depends on it."""
        found = self.target_layers()
        if found is None:
            raise self.wrong(f"{key} is missing and its default depends on the target: name the target (--model)")
        return found


@dataclass(frozen=True)
class Layout:
    """One public layout of one algorithm.

    `matches(raw, shapes)` decides by config.json and the file's own tensor names; `record` makes the canonical record;
    `marks` are own tensor names that must then be there ("|": one of them); `ignored` own names that may be there and
    are not read: a name, or a beginning or end marked by "*".
    """

    name: str
    algorithm: Algorithm
    names: Names
    matches: Callable[[Mapping[str, Any], Mapping[str, tuple[int, ...]]], bool]
    record: Callable[[Reading], DraftConfig]
    marks: Sequence[str] = ()
    ignored: Sequence[str] = ()

    def ignores(self, name: str) -> bool:
        """Say whether an own tensor name may be left unread."""
        for pattern in self.ignored:
            if pattern.startswith("*") and name.endswith(pattern[1:]):
                return True
            if pattern.endswith("*") and name.startswith(pattern[:-1]):
                return True
            if name == pattern:
                return True
        return False

    @property
    def title(self) -> str:
        """What to call it in messages."""
        return f"{self.name} {self.algorithm}"


def architectures(raw: Mapping[str, Any]) -> set[str]:
    """Return the class names a config.json gives."""
    names = raw.get("architectures")
    return set(names) if isinstance(names, list) else set()
