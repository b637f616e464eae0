"""The public drafter layouts, in the order in which they are tried, and what is recognised but not read.

In: config.json and the file's own tensor names and shapes. Out: the `Layout`, confirmed by tensors that must be there;
anything else is refused by name, with what would work.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from slipstream.checkpoints import (
    deepspec_layouts,
    eagle_layouts,
    medusa_layouts,
    speculators_layouts,
    transformers_layouts,
    zlab_layouts,
)
from slipstream.checkpoints.draft_files import DraftFiles
from slipstream.checkpoints.draft_parts import split_fused, strip_prefixes
from slipstream.checkpoints.draft_reading import Layout, architectures
from slipstream.types import RequestError

Raw = Mapping[str, Any]
Own = Mapping[str, tuple[int, ...]]

LAYOUTS: tuple[Layout, ...] = (
    speculators_layouts.EAGLE3,
    speculators_layouts.PEAGLE,
    speculators_layouts.DFLASH,
    speculators_layouts.DFLASH2_LAYOUT,
    speculators_layouts.DSPARK_LAYOUT,
    transformers_layouts.DFLASH,
    deepspec_layouts.DSPARK_LAYOUT,
    deepspec_layouts.DFLASH,
    deepspec_layouts.EAGLE3,
    zlab_layouts.DSPARK_LAYOUT,
    zlab_layouts.DFLASH2_LAYOUT,
    zlab_layouts.DFLASH,
    eagle_layouts.PEAGLE,
    eagle_layouts.SPECFORGE3,
    eagle_layouts.SAFEAILAB3,
    medusa_layouts.MEDUSA,
    medusa_layouts.LEGACY,
    eagle_layouts.SAFEAILAB1,
)
LAYOUT_NAMES = tuple(dict.fromkeys(layout.name for layout in LAYOUTS))


def layout_of(name: str, algorithm: str) -> Layout:
    """Return a layout by name and algorithm."""
    found = [layout for layout in LAYOUTS if (layout.name, layout.algorithm) == (name, algorithm)]
    if not found:
        able = [layout.name for layout in LAYOUTS if layout.algorithm == algorithm]
        raise RequestError(f"layout {name!r} has no {algorithm} drafters; {', '.join(able)} have")
    return found[0]


def recognise(folder: Path) -> str | None:
    """Return the algorithm of a drafter folder, or None when it is not one (an ordinary model, say)."""
    if not folder.is_dir():
        return None
    try:
        files = DraftFiles(folder)
    except RequestError:
        return None
    parts = split_fused(files, strip_prefixes(files, []))
    shapes = {name: part.shape for name, part in parts.items()}
    known = any(layout.matches(files.raw, shapes) for layout in LAYOUTS)
    if not known and _ordinary(files.raw, shapes):
        return None
    return find_layout(str(folder), files.raw, shapes).algorithm


def find_layout(folder: str, raw: Raw, shapes: Own) -> Layout:
    """Return the layout of a folder, or raise RequestError naming what it is, or the keys that were found."""
    for name, (test, remedy) in _REFUSED.items():
        if test(raw, shapes):
            raise RequestError(f"{folder}: this is {name}, which is not read; {remedy}")
    layout = next((layout for layout in LAYOUTS if layout.matches(raw, shapes)), None)
    if layout is None and _ordinary(raw, shapes):
        raise RequestError(
            f"{folder}: this is an ordinary model, no drafter with a layout; use it whole as a draft model"
        )
    if layout is None:
        raise RequestError(
            f"{folder}: no known drafter layout ({', '.join(LAYOUT_NAMES)}); config.json has {_some(raw)}; the tensors "
            f"are {_some(shapes)}"
        )
    missing = [mark.split("|")[0] for mark in layout.marks if not any(name in shapes for name in mark.split("|"))]
    if missing:
        raise RequestError(
            f"{folder}: config.json says {layout.title}, but tensor {missing[0]} is missing; the tensors look like "
            f"{fingerprint(shapes)}"
        )
    return layout


def fingerprint(shapes: Own) -> str:
    """Say in words what the tensors look like, whatever config.json says."""
    fc = shapes.get("fc.weight")
    doubled = _wide(shapes, "layers.0.self_attn.q_proj.weight")
    if "encoder.fc.weight" in shapes:
        return "a DFlash drafter of transformers"
    if "mask_hidden" in shapes:
        return "a P-EAGLE drafter"
    if any(name.startswith("midlayer.") for name in shapes):
        return "an EAGLE-3 drafter of SafeAILab or SpecForge"
    if any(name.startswith("candidate_selector.") for name in shapes):
        return "a DFlash 2 drafter"
    if any(name.startswith("markov_head.") for name in shapes):
        return "a DSpark drafter"
    if fc and "hidden_norm.weight" in shapes:
        return "a DFlash drafter"
    if fc and doubled:
        return "an EAGLE-3 drafter of speculators or DeepSpec"
    if fc:
        return "an EAGLE-1 drafter"
    if any(name.endswith(".linear.weight") for name in shapes):
        return "Medusa heads"
    return f"no drafter ({_some(shapes)})"


def _wide(shapes: Own, name: str) -> bool:
    shape, out = shapes.get(name), shapes.get("norm.weight")
    return shape is not None and out is not None and shape[-1] == 2 * out[0]


def _some(names: Mapping[str, Any]) -> str:
    listed = sorted(names)
    return ", ".join(listed[:12]) + (f", and {len(listed) - 12} more" if len(listed) > 12 else "") or "nothing"


def _speculators(raw: Raw) -> str:
    kind = raw.get("speculators_model_type")
    if kind is None and isinstance(raw.get("speculators_config"), dict):
        kind = raw["speculators_config"].get("algorithm")
    return str(kind or "")


def _projector(raw: Raw) -> object:
    nested = raw.get("dflash_config")
    return nested.get("projector_type") if isinstance(nested, dict) else None


def _unread_speculators(raw: Raw, shapes: Own) -> bool:
    named = "speculators_model_type" in raw or "speculators_config" in raw
    return named and _speculators(raw) not in ("eagle3", "peagle", "dflash", "dflash2", "dspark")


def _mtp(raw: Raw, shapes: Own) -> bool:
    keys = ("num_nextn_predict_layers", "num_mtp_layers", "mtp_num_hidden_layers")
    tensors = any(name.startswith("mtp.") or name.endswith(".eh_proj.weight") for name in shapes)
    return tensors or (any(raw.get(key) for key in keys) and "fc.weight" not in shapes)


def _ordinary(raw: Raw, shapes: Own) -> bool:
    layers = any(name.endswith("layers.0.self_attn.q_proj.weight") for name in shapes)
    fused = any(name.endswith("fc.weight") or name.startswith("medusa_head.") for name in shapes)
    return layers and not fused and "model_type" in raw and "eagle_config" not in raw


_Test = Callable[[Raw, Own], bool]
_REFUSED: dict[str, tuple[_Test, str]] = {
    "a speculators drafter of an algorithm other than eagle3, peagle, dflash, dflash2 and dspark": (
        _unread_speculators,
        "train or take one of those five for this target",
    ),
    "a Domino drafter": (
        lambda raw, shapes: "DominoDraftModel" in architectures(raw) or _projector(raw) == "domino",
        "its DFlash or DSpark sibling for the same target is",
    ),
    "a drafter with Gemma 4's layers": (
        lambda raw, shapes: bool(architectures(raw) & {"Gemma4DSparkModel", "Gemma4Eagle3Model"}),
        "drafters with Llama's or Qwen 3's layers are",
    ),
    "a DeepSeek-V4 DSpark drafter": (
        lambda raw, shapes: (
            any(k.startswith("dspark_") and k != "dspark_bonus_anchor" for k in raw)
            and "Qwen3DSparkModel" not in architectures(raw)
        ),
        "DSpark drafters of DeepSpec, SpecForge and speculators are",
    ),
    "a set of MTP layers of a target": (_mtp, "an EAGLE-3, DFlash or DSpark drafter for the same target is"),
}
