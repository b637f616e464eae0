"""Write a drafter in a public layout: config.json and one safetensors file, the same bytes every time.

In: a canonical record with its tensors, a layout, and the target's folder where the layout brings tables that the
drafter shares with it. Out: a folder, whole or not there. What the layout cannot say is refused by name.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from slipstream.checkpoints.config_out import About, config_out
from slipstream.checkpoints.draft_names import MASK_HIDDEN_SHAPE
from slipstream.checkpoints.draft_shapes import expected_shapes
from slipstream.checkpoints.draft_vocab import kept_of, offsets_of
from slipstream.checkpoints.layout_limits import check_expressible, check_layout, needs_table
from slipstream.checkpoints.target_folder import TargetFolder, Which
from slipstream.nets.draft_config import DraftCheckpoint, DraftConfig
from slipstream.types import RequestError, WorkError

_TABLES: tuple[Which, ...] = ("embed", "head")
_CONTEXT = 32768
_IDENTITY_MAP = (("specforge", "eagle3"), ("specforge", "peagle"))  # their tools ask for d2t and t2d always


def write_drafter(
    found: DraftCheckpoint,
    layout: str,
    out: Path,
    *,
    base: TargetFolder | None = None,
    check: Callable[[Path, DraftCheckpoint], None] | None = None,
    force: bool = False,
) -> None:
    """Write a drafter to the folder `out`; `check` judges the written files before they get that name."""
    check_out(out, force)
    part = out.with_name(f"{out.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    try:
        ready = fit(found, layout, base)
        part.mkdir(parents=True)
        _write(ready, layout, part, base)
        if check is not None:
            check(part, ready)
        _put(part, out)
    except OSError as error:
        raise WorkError(f"{out} cannot be written: {error.strerror or error}") from None
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _put(part: Path, out: Path) -> None:
    """Rename, so that at every moment the old folder or the new one is there whole, if not always under its name."""
    old = out.with_name(f"{out.name}.old")
    if out.exists():
        shutil.rmtree(old, ignore_errors=True)
        out.replace(old)
    part.replace(out)
    shutil.rmtree(old, ignore_errors=True)


def check_out(out: Path, force: bool) -> None:
    """Raise RequestError before any work if `out` cannot become the folder."""
    if not out.parent.is_dir():
        raise RequestError(f"{out}: the folder {out.parent} does not exist")
    if not out.exists():
        return
    if not out.is_dir() or not (out / "config.json").is_file() or any(p.is_dir() for p in out.iterdir()):
        raise RequestError(f"{out}: exists and is not a drafter's folder; give another name")
    if not force:
        raise RequestError(f"{out}: exists; give another name, or --force to replace it")


def fit(found: DraftCheckpoint, layout: str, base: TargetFolder | None) -> DraftCheckpoint:
    """Return the drafter with the tables the layout asks for, checked; raise RequestError if it cannot be expressed."""
    check_layout(layout, found.config.algorithm)
    _check_tensors(found)
    for which in _TABLES:
        needed, own = needs_table(layout, found.config.algorithm, f"own_{which}"), _own(found.config, which)
        if needed is True and not own:
            found = _adopted(found, layout, which, base)
        if needed is False and own:
            found = _shared(found, layout, which, base)
        if needed is None and own and which == "embed" and _is_copy(found, which, base):
            found = _without(found, which)
    check_expressible(found.config, layout)
    return found


def _adopted(found: DraftCheckpoint, layout: str, which: Which, base: TargetFolder | None) -> DraftCheckpoint:
    if base is None:
        raise RequestError(
            f"layout {layout!r} holds the table {which}.weight, which this drafter shares with its target; give the "
            "target with --model"
        )
    table, v = base.table(which), found.config.vocab
    wide = found.config.features.width if found.config.body is None else found.config.body.hidden
    if tuple(table.shape) != (v.target, wide):
        raise RequestError(
            f"target {base.name!r} has a table {which}.weight {list(table.shape)}; the drafter asks for "
            f"{[v.target, wide]}: it was made for another target"
        )
    if which == "head" and v.reduced:
        table = table[found.tensors["vocab_map"]]
    return _changed(found, which, {**found.tensors, f"{which}.weight": table})


def _shared(found: DraftCheckpoint, layout: str, which: Which, base: TargetFolder | None) -> DraftCheckpoint:
    """Leave a table out: only where it is the target's own, value for value."""
    name = f"{which}.weight"
    if base is None:
        raise RequestError(
            f"layout {layout!r} has no place for the drafter's own {name}; where it is a copy of the target's, give "
            "the target with --model"
        )
    if not _is_copy(found, which, base):
        raise RequestError(
            f"layout {layout!r} has no place for the drafter's own {name}, and it is not a copy of that of "
            f"{base.name!r}"
        )
    return _without(found, which)


def _is_copy(found: DraftCheckpoint, which: Which, base: TargetFolder | None) -> bool:
    if base is None or base.scaled:
        return False
    own, theirs = found.tensors[f"{which}.weight"], base.table(which)
    return own.shape == theirs.shape and bool((own == theirs).all())


def _without(found: DraftCheckpoint, which: Which) -> DraftCheckpoint:
    return _changed(found, which, {n: found.tensors[n] for n in found.tensors if n != f"{which}.weight"})


def _own(config: DraftConfig, which: Which) -> bool:
    return config.vocab.own_embed if which == "embed" else config.vocab.own_head


def _changed(found: DraftCheckpoint, which: Which, tensors: Mapping[str, Tensor]) -> DraftCheckpoint:
    own = f"{which}.weight" in tensors
    v = found.config.vocab
    vocab = replace(v, own_embed=own) if which == "embed" else replace(v, own_head=own)
    return DraftCheckpoint(replace(found.config, vocab=vocab), tensors, found.notes)


def _check_tensors(found: DraftCheckpoint) -> None:
    """Nothing missing, nothing left over, all of the right shape: writing is where a random weight would slip in."""
    expected = expected_shapes(found.config)
    for name, shape in expected.items():
        if name not in found.tensors:
            raise WorkError(f"tensor {name} {list(shape)} is missing from the drafter; nothing was written")
        if tuple(found.tensors[name].shape) != shape:
            raise WorkError(f"tensor {name} is {list(found.tensors[name].shape)}; its record asks for {list(shape)}")
    for name in found.tensors:
        if name not in expected:
            raise WorkError(f"tensor {name} is unknown to a {found.config.algorithm} drafter; nothing was written")


def _write(found: DraftCheckpoint, layout: str, folder: Path, base: TargetFolder | None) -> None:
    from safetensors.torch import save_file

    tensors = {name: t.clone(memory_format=torch.contiguous_format) for name, t in own_tensors(found, layout).items()}
    written = config_out(found.config, layout, _about(found, base, tensors))
    text = json.dumps(written, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
    (folder / "config.json").write_text(text, encoding="utf-8")
    name = "medusa_lm_head.safetensors" if found.config.algorithm == "medusa" else "model.safetensors"
    save_file(dict(sorted(tensors.items())), str(folder / name), metadata={"format": "pt"})


def own_tensors(found: DraftCheckpoint, layout: str) -> dict[str, Tensor]:
    """Return the tensors under the layout's own names, in the layout's own shapes."""
    from slipstream.checkpoints.layouts import layout_of

    names = layout_of(layout, found.config.algorithm).names
    blocks = 0 if found.config.heads is None else found.config.heads.blocks
    out: dict[str, Tensor] = {}
    for name, tensor in found.tensors.items():
        if name == "vocab_map":
            continue
        own = names.own(name, blocks)
        if own is None:
            raise RequestError(f"layout {layout!r} has no name for tensor {name} {list(tensor.shape)}")
        out[own] = tensor.reshape(MASK_HIDDEN_SHAPE) if name == "mask_hidden" else tensor
    return out | _maps(found, layout)


def _maps(found: DraftCheckpoint, layout: str) -> dict[str, Tensor]:
    v = found.config.vocab
    if not v.reduced:
        if (layout, found.config.algorithm) not in _IDENTITY_MAP:
            return {}
        kept = torch.arange(v.target)
    else:
        kept = found.tensors["vocab_map"].to(torch.int64)
    if bool((kept.diff() <= 0).any()):
        raise RequestError(f"layout {layout!r} wants the draft vocabulary in ascending order; vocab_map is not")
    return {"d2t": offsets_of(kept), "t2d": kept_of(kept, v.target)}


def _about(found: DraftCheckpoint, base: TargetFolder | None, tensors: Mapping[str, Tensor]) -> About:
    kinds = Counter(t.dtype for t in tensors.values() if t.is_floating_point())
    dtype = str(max(kinds, key=lambda k: (kinds[k], str(k)))).removeprefix("torch.")
    claims = found.config.claims
    known: dict[str, Any] = {"target": claims.target, "dtype": dtype, "context": _CONTEXT, "layers": claims.layers}
    if base is not None:
        known |= {"target": claims.target or base.name, "architectures": base.architectures}
        if claims.layers not in (None, base.layers):
            raise RequestError(
                f"the drafter is for a target of {claims.layers} layers; {base.name!r} has {base.layers}: "
                "give its own target"
            )
        known |= {"layers": base.layers, "context": max(_CONTEXT, base.context or 0)}
    return About(**known)
