"""From the tensors of a file to those of a layout: prefixes taken off, fused maps cut apart, without reading any.

In: the file's names and shapes. Out: one `Part` for each tensor the layout knows: which stored tensor, which rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from torch import Tensor

from slipstream.checkpoints.draft_files import DraftFiles
from slipstream.types import WorkError

PREFIXES = ("module.", "draft_model.", "model.", "logit_head.", "medusa_head.")


@dataclass(frozen=True)
class Part:
    """Rows `begin` to `end` of a stored tensor, or all of it; flattened where the layout stores it with more axes."""

    source: str
    shape: tuple[int, ...]
    begin: int | None = None
    end: int | None = None

    def take(self, stored: Tensor) -> Tensor:
        """Cut the part out of the stored tensor."""
        rows = stored if self.begin is None else stored[self.begin : self.end]
        return rows.reshape(self.shape)

    def flat(self) -> Part:
        """Return the part as one axis."""
        return replace(self, shape=(prod(self.shape),))


def strip_prefixes(files: DraftFiles, notes: list[str]) -> dict[str, Part]:
    """Take off what trainers and wrappers put before names."""
    names = list(files.shapes)
    if any(name.startswith("medusa_head.") for name in names):
        rest = [name for name in names if not name.startswith("medusa_head.")]
        if rest:
            notes.append(f"{len(rest)} tensors outside medusa_head. are the target's own: not read")
        names = [name for name in names if name.startswith("medusa_head.")]
    out: dict[str, Part] = {}
    stripped = set()
    for name in names:
        bare = name
        while (prefix := next((p for p in PREFIXES if bare.startswith(p)), None)) is not None:
            bare = bare.removeprefix(prefix)
            stripped.add(prefix)
        if bare in out:
            raise WorkError(f"{files.folder}: tensors {out[bare].source} and {name} are both {bare}")
        out[bare] = Part(name, files.shapes[name])
    for prefix in sorted(stripped):
        notes.append(f"names begin with {prefix}: taken off")
    return out


def split_fused(files: DraftFiles, parts: dict[str, Part]) -> dict[str, Part]:
    """Cut qkv_proj (q, then k, then v) and gate_up_proj (gate, then up) into the maps they hold."""
    out: dict[str, Part] = {}
    for name, part in parts.items():
        stem, _, kind = name.rpartition(".")
        if stem.endswith("self_attn.qkv_proj"):
            sizes = dict(zip("qkv", _qkv_sizes(files, name, part.shape[0]), strict=True))
            out |= _cut(part, {f"{stem[:-8]}{n}_proj.{kind}": size for n, size in sizes.items()})
        elif stem.endswith("mlp.gate_up_proj"):
            out |= _cut(part, {f"{stem[:-12]}{n}_proj.{kind}": part.shape[0] // 2 for n in ("gate", "up")})
        else:
            out[name] = part
    return out


def _cut(part: Part, sizes: dict[str, int]) -> dict[str, Part]:
    out, at = {}, 0
    for name, size in sizes.items():
        out[name] = Part(part.source, (size, *part.shape[1:]), at, at + size)
        at += size
    return out


def _qkv_sizes(files: DraftFiles, name: str, rows: int) -> tuple[int, int, int]:
    nested = files.raw.get("transformer_layer_config")
    cfg = nested if isinstance(nested, dict) else files.raw
    heads = cfg.get("num_attention_heads")
    kv_heads = cfg.get("num_key_value_heads") or heads
    if not isinstance(heads, int) or not isinstance(kv_heads, int) or rows % (heads + 2 * kv_heads):
        raise WorkError(
            f"{files.folder}: tensor {name} has {rows} rows; num_attention_heads {heads!r} and num_key_value_heads "
            f"{kv_heads!r} do not divide them"
        )
    size = rows // (heads + 2 * kv_heads)
    return heads * size, kv_heads * size, kv_heads * size
