"""The machine a run finds: devices, number formats, CPU features, and memory running out.

In: names from a config. Out: what torch takes, or one clear error. Loads nothing; torch is imported when asked.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slipstream.types import RequestError, WorkError

if TYPE_CHECKING:
    import torch


def resolve_device(name: str) -> str:
    """Return a device torch can use; "auto" is cuda when there is one."""
    import torch

    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise RequestError(f"device {name!r} must be auto, cpu, cuda or cuda:N") from None
    if device.type not in ("cpu", "cuda"):
        raise RequestError(f"device {name!r} is not supported; use auto, cpu, cuda or cuda:N")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise RequestError(f"device {name!r} does not exist here: {torch.cuda.device_count()} CUDA devices; use cpu")
    return name


def resolve_dtype(name: str, device: str, *, kernels: bool = False) -> torch.dtype:
    """Return the number format; "auto" is bfloat16 where the hardware multiplies it natively, else float32.

    `kernels`: the CPU kernels run it. They widen bfloat16 weights on any processor, which torch does slowly.
    """
    import torch

    if name == "auto":
        native = kernels or cpu_flags() & {"avx512_bf16", "amx_bf16", "bf16"}
        name = "bfloat16" if device.startswith("cuda") or native else "float32"
    dtype: torch.dtype = getattr(torch, name)
    return dtype


@cache
def cpu_flags() -> frozenset[str]:
    """Return the CPU's feature flags as the kernel names them; empty where it does not say."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return frozenset()
    for line in text.splitlines():
        if line.startswith(("flags", "Features")):
            return frozenset(line.partition(":")[2].split())
    return frozenset()


@contextlib.contextmanager
def memory_guard(doing: str) -> Iterator[None]:
    """Turn running out of memory into a `WorkError` that names what to lower."""
    try:
        yield
    except (MemoryError, RuntimeError) as e:
        text = str(e).lower()
        out = isinstance(e, MemoryError) or "out of memory" in text or "can't allocate memory" in text
        if not out or isinstance(e, WorkError):
            raise
        raise WorkError(f"out of memory while {doing}; lower --max-model-len, max_rows or the size of the model") from e


def give_back_memory() -> None:
    """Return to the system what is free in this process: the C library keeps what loading and measuring let go."""
    with contextlib.suppress(AttributeError, OSError, TypeError):  # glibc alone has it
        ctypes.CDLL(None).malloc_trim(0)


def read_model_config(folder: Path) -> dict[str, Any]:
    """Read a model folder's config.json."""
    try:
        found: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError) as e:
        raise WorkError(f"{folder}/config.json cannot be read: {e}") from e
    return found
