"""Our side of the comparison with the `speculators` package: its reference, read once a session, and our networks."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from speculators_cases import CASES, LENGTHS, H, V
from torch import Tensor

from slipstream.checkpoints.drafters import read_drafter
from slipstream.learned import make_net
from slipstream.nets.draft_config import DraftCheckpoint, Tables

ROOT = Path(__file__).parents[2]
PEER = ROOT / ".venv-speculators"
SIDE = Path(__file__).with_name("speculators_side.py")


def run_side(*arguments: str | Path) -> None:
    """Run the package's side; skip when it is not installed, fail when it is and does not work."""
    if not (PEER / ".installed").exists():
        pytest.skip("the speculators package is not installed: `make speculators` says why")
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(
        [PEER / "bin/python", SIDE, *arguments], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]


@dataclass(frozen=True)
class Text:
    """One text: its tokens [T], and the features of each {tap: [T, H]}."""

    tokens: Tensor
    taps: dict[int, Tensor]

    def __len__(self) -> int:
        return len(self.tokens)

    def felt(self, start: int, end: int) -> dict[int, Tensor]:
        """The features of a piece."""
        return {tap: x[start:end] for tap, x in self.taps.items()}


class Reference:
    """What the package wrote: folders of drafters, the target's tables, texts, and what it says on them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tensors = load_file(folder / "reference.safetensors")
        self.texts = [self._text(i) for i in range(len(LENGTHS))]

    def said(self, case: str, text: int, what: str = "logits") -> Tensor:
        """What the package says: see `speculators_side`."""
        return self.tensors[f"{case}.{text}.{what}"]

    def tables(self) -> Tables:
        """The target's embedding and head."""
        embed, head = (self.tensors[f"target.{name}.weight"] for name in ("model.embed_tokens", "lm_head"))
        return Tables(
            embed=lambda ids: embed[ids],
            head=lambda x: x @ head.T,
            vocab=V,
            rows=V,
            hidden=H,
            dtype=torch.float32,
            device=torch.device("cpu"),
        )

    def read(self, case: str) -> DraftCheckpoint:
        """Read a folder as a user's would be."""
        return read_drafter(self.folder / case)

    def net(self, case: str, found: DraftCheckpoint | None = None, *, rows: int = 3):
        """Build our network from a folder."""
        found = found or self.read(case)
        return make_net(found, self.tables(), rows=rows, max_len=max(LENGTHS), max_nodes=8)

    def _text(self, i: int) -> Text:
        taps = {int(name.split(".")[-1]): x for name, x in self.tensors.items() if name.startswith(f"text.{i}.tap.")}
        return Text(self.tensors[f"text.{i}.tokens"], taps)


def of_kind(*kinds: str) -> list[str]:
    """Names of the cases of these kinds."""
    return [name for name, case in CASES.items() if case[0] in kinds]
