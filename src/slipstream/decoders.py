"""How a model of a known family is run: on the CPU kernels where they can, else on torch; and in which weight format.

In: a folder or GGUF file, a weight format, a number format and a device. Out: a decoder, and lines for a person. A
format that was asked for and cannot be had is refused; only the choice left open falls back, and says so.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slipstream.types import RequestError

if TYPE_CHECKING:
    import torch

    from slipstream.nets.decoder import CachedDecoder

_PUBLISHED = "the weights' published codes (4 bits, finer ones in 8)"
_EIGHT = "activations in 8 bits"
_NAMES = {
    "none": "bfloat16 weights",
    "int8": "8-bit weights",
    "int4": f"4-bit weights, {_EIGHT}",
    "w8a8": "8-bit weights and activations",
}


@dataclass(frozen=True)
class Way:
    """`kernels`: the CPU kernels run it, else torch does. `quantize` is the format decided on, `note` says so.

    `coarse`: no part of it is held in a finer format than its layers, since it only guesses.
    """

    kernels: bool
    quantize: str = "none"
    note: str = ""
    coarse: bool = False


def choose_way(quantize: str, dtype: torch.dtype, device: str, *, codes: bool = False) -> Way:
    """Decide how to run a model; `quantize` is one of `config.QUANTIZE`.

    `codes`: its weights are published as codes of a few bits, and no number format was asked for.
    """
    import torch

    from slipstream import kernels

    if quantize == "auto" and codes and device == "cpu" and kernels.available():
        return Way(True, "int4", f"target: CPU kernels ({kernels.level()}), {_PUBLISHED}, {_EIGHT}")
    asked = quantize not in ("auto", "none")
    if device != "cpu":
        return _on_accelerator(quantize, dtype, device) if asked else Way(False)
    if not asked and dtype is not torch.bfloat16:
        return Way(False)
    if not kernels.available():
        if asked:
            raise RequestError(f"quantize={quantize} needs the CPU kernels: {kernels.reason()}")
        return Way(False, note=f"target: torch, slower than the CPU kernels would be: {kernels.reason()}")
    chosen = quantize if asked else "none"
    said = f"target: CPU kernels ({kernels.level()}), {_NAMES[chosen]}"
    return Way(True, chosen, f"{said} (quantize auto; int4 is faster)" if quantize == "auto" else said)


def _on_accelerator(quantize: str, dtype: torch.dtype, device: str) -> Way:
    import torch

    from slipstream.nets.quantised import BITS, lacking

    if quantize not in BITS:
        raise RequestError(f"quantize={quantize} is not available on {device}; use {', '.join(BITS)} or none")
    if dtype is not torch.bfloat16:
        raise RequestError(f"quantize={quantize} on {device} needs dtype bfloat16, not {str(dtype)[6:]}")
    reason = lacking(quantize, device)
    if reason:
        raise RequestError(f"quantize={quantize} is not available on {device} ({reason}); use none, or device cpu")
    return Way(False, quantize, f"target: torch on {device}, {BITS[quantize][0]}-bit weights")


def draft_way(quantize: str, dtype: torch.dtype, device: str) -> Way:
    """Decide how a draft model runs: in four bits where the kernels can, unless a format is asked for.

    What its weights are rounded to changes how many drafts are accepted, never the text.
    """
    import torch

    from slipstream import kernels

    if quantize and quantize not in _NAMES:
        raise RequestError(f"drafter option quantize={quantize!r} is not one of {', '.join(_NAMES)}")
    free = device == "cpu" and dtype is torch.bfloat16 and kernels.available()
    way = choose_way(quantize or ("int4" if free else "none"), dtype, device)
    said = f"draft model: CPU kernels, {_NAMES[way.quantize]}; rounding it changes the speed, not the text"
    return replace(way, note=said, coarse=True) if way.kernels else replace(way, note="")


def open_decoder(model: Path, way: Way, dtype: torch.dtype, device: str, **sizes: Any) -> CachedDecoder:
    """Load a model folder, or for the kernels a GGUF file, as a decoder; sizes as in `nets.decoder.load_decoder`."""
    if not way.kernels:
        from slipstream.nets.decoder import load_decoder

        return load_decoder(model, dtype, device, quantize=way.quantize, **sizes)
    from slipstream.kernels.load import Kinds, load_kernel_decoder

    kinds = Kinds.of(way.quantize, coarse=way.coarse)
    return load_kernel_decoder(_source(model, way), kinds, dtype, **sizes)


def _source(model: Path, way: Way) -> Any:
    if model.suffix.lower() == ".gguf":
        from slipstream.checkpoints.gguf_rows import GgufSource

        return GgufSource(model, codes=way.quantize == "int4")
    from slipstream.kernels.rows import FolderSource

    return FolderSource(model)
