"""Lossless speculative decoding of language models.

`LLM(model, drafter=...)` loads a target and a drafter; `generate` and `stream` run them through one decode round whose
output has exactly the target's distribution. Importing the package is cheap: torch is loaded on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["LLM", "Completion", "RequestError", "SamplingParams", "WorkError", "load"]

if TYPE_CHECKING:
    from slipstream.llm import LLM, Completion, load
    from slipstream.types import RequestError, SamplingParams, WorkError

_HOME = {
    "LLM": "slipstream.llm",
    "Completion": "slipstream.llm",
    "load": "slipstream.llm",
    "SamplingParams": "slipstream.types",
    "RequestError": "slipstream.types",
    "WorkError": "slipstream.types",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'slipstream' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOME[name]), name)
