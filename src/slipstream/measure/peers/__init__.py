"""Other engines on the same prompts: the table of them, and what each of them is asked.

In: a name of the table and a `Task`. Out: a function from a batch of prompts (as ids) to what was generated. An engine
is imported when it is asked for; one that is not installed is a single clear error.
"""

from __future__ import annotations

import importlib
import importlib.util
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from slipstream.config import unknown
from slipstream.types import RequestError

NO_DRAFT = "peer {} needs a draft model: add draft_model:PATH to --drafter"
NO_GGUF = "peer {} runs .gguf files only, not {}: give --model FILE.gguf, or pull it again"
Generate = Callable[[list[list[int]], list[int], int], list[list[int]]]  # prompts, seeds, most tokens -> outputs


@dataclass
class First:
    """When the first tokens of a call came, by `time.perf_counter`, and how many at once; `at` None: not yet."""

    at: float | None = None
    count: int = 0

    def mark(self, count: int) -> None:
        """Note that so many tokens are there; only the first time counts."""
        if self.at is None:
            self.at, self.count = time.perf_counter(), count


@dataclass(frozen=True)
class Task:
    """What a peer is given: the weights, how they run, and how to sample.

    `draft_folder` is a draft model, for the peers that use one. `eos_ids` empty: go on after an end of text. `first`
    is told when the first tokens of a call are there.
    """

    folder: Path
    name: str
    dtype: Any
    device: str
    max_len: int
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    eos_ids: tuple[int, ...] = ()
    draft_folder: Path | None = None
    first: First | None = None


@dataclass(frozen=True)
class Peer:
    """One line of the table: the module here, the package it needs, the extra that installs it.

    `batches`: it decodes several prompts at once. `drafts`: it needs a draft model. `gguf`: it runs a .gguf file only.
    `same_arithmetic`: it computes with the same weights in the same
    number format, so that greedy outputs must agree with ours up to rounding.
    """

    summary: str
    module: str
    package: str
    extra: str
    batches: bool = True
    same_arithmetic: bool = True
    drafts: bool = False
    gguf: bool = False


_HERE = "slipstream.measure.peers."
PEERS: Mapping[str, Peer] = MappingProxyType(
    {
        "hf": Peer("transformers generate, plain", f"{_HERE}hf", "transformers", ""),
        "hf-assisted": Peer(
            "transformers generate with a draft model",
            f"{_HERE}hf_assisted",
            "transformers",
            "",
            batches=False,
            drafts=True,
        ),
        "hf-lookup": Peer(
            "transformers generate with prompt lookup", f"{_HERE}hf_lookup", "transformers", "", batches=False
        ),
        "llama-cpp": Peer(
            "llama-cpp-python, plain",
            f"{_HERE}llama_cpp",
            "llama_cpp",
            "bench",
            batches=False,
            same_arithmetic=False,
            gguf=True,
        ),
        "llama-cpp-lookup": Peer(
            "llama-cpp-python with prompt lookup",
            f"{_HERE}llama_cpp_lookup",
            "llama_cpp",
            "bench",
            batches=False,
            same_arithmetic=False,
            gguf=True,
        ),
        "vllm": Peer("vLLM, plain", f"{_HERE}vllm", "vllm", "vllm"),
    }
)


def parse_peers(text: str) -> list[str]:
    """Read names separated by commas; an unknown one is an error that names the nearest, a missing one its extra."""
    names = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    for name in names:
        if name not in PEERS:
            raise unknown("peer", name, PEERS)
        if importlib.util.find_spec(PEERS[name].package) is None:
            wanted = f"slipstream[{PEERS[name].extra}]" if PEERS[name].extra else PEERS[name].package
            raise RequestError(f"peer {name} is not installed: pip install '{wanted}', or leave it out of --against")
    return names


def check_peers(names: Sequence[str], model: str, draft: Path | None) -> None:
    """Refuse a peer that lacks what it needs, before anything is loaded: a draft model's folder, a .gguf file."""
    from slipstream import models

    for name in names:
        if PEERS[name].drafts and draft is None:
            raise RequestError(NO_DRAFT.format(name))
        if PEERS[name].gguf and models.locate(model, packed="int4")[1].suffix.lower() != ".gguf":
            raise RequestError(NO_GGUF.format(name, model))


def open_peer(name: str, task: Task) -> Generate:
    """Load a peer and return its generate function."""
    found: Generate = importlib.import_module(PEERS[name].module).open_peer(task)
    return found
