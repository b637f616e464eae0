"""Sequential temperature scaling of a confidence head (DSpark, 2607.05147): fit, save, load.

In: what the head said of each drafted token and how many of them stood. Out: one temperature for each depth, fitted
left to right so that the product of the chances up to a depth is right about prefixes of that length. It changes which
drafts are worth checking, never the law of what is emitted.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence as Seq
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from slipstream.types import RequestError

VERSION = 1
_STEPS = 20  # of the grid, per doubling
_DOUBLINGS = 4


@dataclass(frozen=True)
class Outcome:
    """One row's round: the confidence logits of its drafted tokens, in order, and how many of them stood."""

    logits: tuple[float, ...]
    accepted: int


@dataclass(frozen=True)
class Calibration:
    """Temperatures by depth, the first drafted token's first; `counts` are the rounds each was fitted to.

    `drafter` is the network's fingerprint, `target` the name of the model it drafted for.
    """

    temperatures: tuple[float, ...]
    bins: int
    counts: tuple[int, ...]
    drafter: str = ""
    target: str = ""

    def save(self, path: str | Path) -> None:
        """Write it as JSON, whole or not at all."""
        path = Path(path)
        written = path.with_name(f"{path.name}.{os.getpid()}.part")
        written.write_text(json.dumps({"version": VERSION, **asdict(self)}, indent=1) + "\n")
        written.replace(path)


def fit(
    outcomes: Seq[Outcome], *, bins: int = 20, least: int = 200, drafter: str = "", target: str = ""
) -> Calibration:
    """Fit one temperature for each depth, earlier ones kept, by the least calibration error of the product.

    A depth seen in fewer than `least` rounds keeps temperature 1. Rounds are best collected with the whole block
    drafted: where confidence cut the draft, nothing is known of what it cut off.
    """
    depths = max((len(o.logits) for o in outcomes), default=0)
    grid = _grid()
    found, counts = [], []
    chances = torch.ones(len(outcomes), dtype=torch.float64)  # product of the depths done
    for depth in range(depths):
        here = torch.tensor([len(o.logits) > depth for o in outcomes])
        logits = torch.tensor([o.logits[depth] if len(o.logits) > depth else 0.0 for o in outcomes]).double()
        here &= logits.isfinite()
        stood = torch.tensor([o.accepted > depth for o in outcomes])
        best = 1.0
        if int(here.sum()) >= least:
            tried = chances[here] * torch.sigmoid(logits[here] / grid[:, None])  # [T, n]
            best = float(grid[calibration_error(tried, stood[here], bins).argmin()])
        chances = chances * torch.where(here, torch.sigmoid(logits / best), 0.0)
        found.append(best)
        counts.append(int(here.sum()))
    return Calibration(tuple(found), bins, tuple(counts), drafter, target)


def prefix_errors(outcomes: Seq[Outcome], temperatures: Seq[float] = (), *, bins: int = 20) -> list[float]:
    """Return the calibration error of the product at each depth; temperatures not given are 1."""
    depths = max((len(o.logits) for o in outcomes), default=0)
    heat = [*temperatures, *[1.0] * depths][:depths]
    errors = []
    for depth in range(1, depths + 1):
        full = [o for o in outcomes if len(o.logits) >= depth]
        logits = torch.tensor([o.logits[:depth] for o in full], dtype=torch.float64)
        chances = torch.sigmoid(logits / torch.tensor(heat[:depth], dtype=torch.float64)).prod(dim=1)
        stood = torch.tensor([o.accepted >= depth for o in full])
        errors.append(float(calibration_error(chances[None], stood, bins)[0]))
    return errors


def calibration_error(chances: Tensor, stood: Tensor, bins: int) -> Tensor:
    """Expected calibration error of chances [T, n] about what happened [n] bool -> [T]: bins of equal width."""
    where = (chances * bins).long().clamp(0, bins - 1)
    gap = torch.zeros(chances.shape[0], bins, dtype=torch.float64)
    gap.scatter_add_(1, where, chances.double() - stood.double())  # what a bin was wrong by, in rounds
    return gap.abs().sum(dim=1) / max(1, chances.shape[1])


def load(path: str | Path, *, drafter: str = "", target: str = "") -> Calibration:
    """Read a saved calibration; refuse a damaged one, and one fitted to another drafter or target than those named."""
    try:
        data = json.loads(Path(path).read_text())
    except OSError as error:
        raise RequestError(f"calibration {path}: {error.strerror or error}; fit one, or name no file") from None
    except (ValueError, UnicodeDecodeError):
        raise RequestError(f"calibration {path} is not JSON; fit it again") from None
    found = _read(data, path)
    for what, made, wanted in (("drafter", found.drafter, drafter), ("target", found.target, target)):
        if made and wanted and made != wanted:
            raise RequestError(f"calibration {path} was fitted to {what} {made!r}, this is {wanted!r}; fit it again")
    return found


def checked_temperatures(values: Any, where: str) -> tuple[float, ...]:
    """Return the temperatures as floats; each must be a finite number above 0."""
    if not isinstance(values, list | tuple):
        raise RequestError(f"{where}={values!r} must be a list of numbers above 0, one for each depth")
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int | float) or not (0 < value < math.inf):
            raise RequestError(f"{where}: temperature {value!r} must be a number above 0; 1 changes nothing")
    return tuple(float(value) for value in values)


def _read(data: Any, path: str | Path) -> Calibration:
    if not isinstance(data, dict) or data.get("version") != VERSION:
        version = data.get("version") if isinstance(data, dict) else None
        raise RequestError(f"calibration {path} has version {version!r}; this program reads {VERSION}: fit it again")
    wrong = [name for name in ("temperatures", "counts") if not isinstance(data.get(name), list)]
    wrong += [name for name in ("drafter", "target") if not isinstance(data.get(name), str)]
    wrong += [] if type(data.get("bins")) is int else ["bins"]
    if wrong:
        raise RequestError(f"calibration {path} has {wrong[0]} {data.get(wrong[0])!r}; fit it again")
    temperatures = checked_temperatures(data["temperatures"], f"calibration {path}")
    counts = tuple(n for n in data["counts"] if type(n) is int)
    if len(counts) != len(temperatures):
        raise RequestError(f"calibration {path} has {len(temperatures)} temperatures but {len(counts)} counts")
    return Calibration(temperatures, data["bins"], counts, data["drafter"], data["target"])


def _grid() -> Tensor:
    """Temperatures from 1/16 to 16, those nearest 1 first: of two equally good the milder one is taken."""
    steps = torch.arange(-_DOUBLINGS * _STEPS, _DOUBLINGS * _STEPS + 1, dtype=torch.float64)
    return 2.0 ** (steps[steps.abs().argsort(stable=True)] / _STEPS)
