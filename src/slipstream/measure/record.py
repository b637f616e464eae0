"""Where a number comes from: argv, revision, versions, machine, hashes of model, drafter and prompts, time.

In: folders and prompts. Out: a dictionary that goes beside a result. Hashes are cheap: config, file sizes and the
safetensors headers, not the weights.
"""

from __future__ import annotations

import datetime
import hashlib
import importlib.metadata
import json
import math
import os
import platform
import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_PACKAGES = ("torch", "transformers", "tokenizers", "safetensors", "numpy")


def record(*, model: Path, drafter: Path | None, prompts: Sequence[Any], device: str) -> dict[str, Any]:
    """Return the record of a run."""
    return {
        "argv": list(sys.argv),
        "revision": revision(),
        "versions": versions(),
        "cpu": cpu_name(),
        "cpus": os.cpu_count(),
        "gpu": _gpu_name(device),
        "model_hash": model_hash(model),
        "drafter_hash": model_hash(drafter) if drafter else None,
        "prompts_hash": _digest(json.dumps(list(prompts), sort_keys=True, default=str).encode()),
        "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def record_line(found: dict[str, Any]) -> str:
    """Write a record in a line."""
    import torch

    versions = ", ".join(f"{name} {found['versions'][name]}" for name in ("slipstream", "torch", "transformers"))
    return (
        f"record: revision {found['revision']}, {versions}; {found['cpu']}, {torch.get_num_threads()} threads; "
        f"model {found['model_hash'][:19]}, prompts {found['prompts_hash'][:19]}, {found['time']}"
    )


def versions() -> dict[str, str]:
    """Return the versions of this project, Python and the packages that do the arithmetic."""
    from slipstream import __version__

    found = {"slipstream": __version__, "python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def revision() -> str | None:
    """Return the git revision of the source this package runs from, marked if modified; None outside a checkout."""
    here = str(Path(__file__).parent)
    try:
        run = ["git", "-C", here, "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
        found = subprocess.run(run, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip() or None


def cpu_name() -> str:
    """Return the processor's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def model_hash(folder: Path) -> str:
    """Return a short hash of a model folder: config, sizes, and the safetensors headers (names, shapes, formats).

    A model that is one file has its name and size.
    """
    parts = []
    for path in sorted(p for p in folder.iterdir() if p.is_file()) if folder.is_dir() else [folder]:
        parts.append(f"{path.name} {path.stat().st_size}".encode())
        if path.name == "config.json":
            parts.append(path.read_bytes())
        elif path.suffix == ".safetensors":
            parts.append(_header(path))
    return _digest(b"\n".join(parts))


def parameters(folder: Path) -> int | None:
    """Count a folder's weights from its safetensors headers; None without any."""
    total = 0
    for path in folder.glob("*.safetensors"):
        header = json.loads(_header(path) or b"{}")
        total += sum(math.prod(t["shape"]) for name, t in header.items() if name != "__metadata__")
    return total or None


def _header(path: Path) -> bytes:
    with path.open("rb") as file:
        size = file.read(8)
        return file.read(struct.unpack("<Q", size)[0]) if len(size) == 8 else b""


def _digest(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()[:32]


def _gpu_name(device: str) -> str | None:
    if not device.startswith("cuda"):
        return None
    import torch

    return torch.cuda.get_device_name(device)
