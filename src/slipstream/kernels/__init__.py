"""The CPU kernels: linear maps with packed weights, and what they need to know of the machine.

The extension `_native` is built from src/kernels when a C++ compiler is there. Without it, or with a level forced that
this machine lacks, `available()` is False, `reason()` says why, and nothing else of this package may be used.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

_CHOSEN = ("amx", "avx512", "avxvnni", "avx2", "dotprod", "neon")  # unasked; Arm: see make test-neon
_HOME = {"Linear": "linear", "pack": "linear", "pack_gguf": "linear"}
__all__ = [
    "Linear",
    "available",
    "level",
    "levels",
    "native",
    "pack",
    "pack_gguf",
    "reason",
    "set_level",
    "set_threads",
    "threads",
]


def _load() -> tuple[Any, str | None]:
    try:
        module = importlib.import_module("slipstream.kernels._native")
        level = module.level()
    except ImportError as error:
        return None, f"the extension is not there ({error}); install again with a C++ compiler present"
    except ValueError as error:  # SLIPSTREAM_KERNELS names a level that this machine lacks
        return None, str(error)
    if level not in _CHOSEN and not os.environ.get("SLIPSTREAM_KERNELS"):
        return None, f"this processor has no AVX2, AVX-512 or NEON; SLIPSTREAM_KERNELS={level} uses them nevertheless"
    return module, None


_module, _reason = _load()


def available() -> bool:
    """Say whether the kernels can be used here."""
    return _reason is None


def reason() -> str | None:
    """Say why they cannot, or None when they can."""
    return _reason


def native() -> Any:
    """Return the extension; raises RuntimeError with the reason where there is none."""
    if _reason is not None:
        raise RuntimeError(f"the CPU kernels are not available: {_reason}")
    return _module


def levels() -> list[str]:
    """Return the levels this machine can run, best first: of amx, avx512, avxvnni, avx2, dotprod, neon, portable."""
    return list(native().levels())


def level() -> str:
    """Return the level in use: the best, or the one the environment variable SLIPSTREAM_KERNELS names."""
    return str(native().level())


def set_level(name: str) -> None:
    """Use another level from the next call on; raises ValueError for one that is unknown or not available."""
    native().set_level(name)


def threads() -> int:
    """Return the number of threads that share a product; at first, the processors this process may use."""
    return int(native().threads())


def set_threads(count: int) -> None:
    """Use `count` threads from the next call on."""
    if count < 1:
        raise ValueError(f"threads must be at least 1, not {count}")
    native().set_threads(count)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'slipstream.kernels' has no attribute {name!r}")
    return getattr(importlib.import_module(f"slipstream.kernels.{_HOME[name]}"), name)
