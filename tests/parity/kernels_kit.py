"""Decoders on the kernels beside the torch decoder, of the same bfloat16 weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from native_kit import save, tiny

from slipstream import kernels
from slipstream.nets.decoder import CachedDecoder, load_decoder

needs_kernels = pytest.mark.skipif(not kernels.available(), reason=f"no kernels: {kernels.reason()}")


def rounded(name: str, folder: Path, **changes: Any) -> Path:
    """Save a tiny model whose weights are bfloat16 values."""
    return save(tiny(name, **changes).to(torch.bfloat16), folder)


def fast(folder: Path, quantize: str = "none", *, rows: int = 1, **more: Any) -> CachedDecoder:
    """A decoder on the kernels that hands out float32 states."""
    from slipstream.kernels.load import load_kernel_decoder
    from slipstream.kernels.rows import FolderSource

    sizes = {"max_rows": rows, "max_len": 96, "max_nodes": 16, **more}
    return load_kernel_decoder(FolderSource(folder), quantize, "float32", **sizes)


def exact(folder: Path, **sizes: Any) -> CachedDecoder:
    """The torch decoder in float32."""
    return load_decoder(folder, "float32", "cpu", **{"max_len": 96, **sizes})
