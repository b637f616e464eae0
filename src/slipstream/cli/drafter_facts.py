"""What `slipstream info` says of a drafter: what it is, for which target, what it reads, what it costs in memory.

In: a folder in any public layout. Out: a flat dictionary. The target is never loaded.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from slipstream.types import RequestError, WorkError

if TYPE_CHECKING:
    from slipstream.nets.draft_config import Body, DraftCheckpoint, DraftConfig

KINDS = {
    "eagle": "EAGLE-1/2: continues the target's last hidden state, token by token or as a tree",
    "eagle3": "EAGLE-3: continues features of several layers, token by token or as a tree",
    "peagle": "P-EAGLE: EAGLE-3 with all tokens in one pass",
    "dflash": "DFlash: a block of tokens in one pass",
    "dflash2": "DFlash 2: a block in one pass, and the best path through its likeliest tokens",
    "dspark": "DSpark: a block in one pass, corrected left to right",
    "medusa": "Medusa-1: one head for each position, a tree",
}
_KEYS = ("speculators_model_type", "speculators_config", "dflash_config", "eagle_config")
_WORDS = ("DraftModel", "Eagle", "DSpark", "Speculator")
_TABLES = ("embed.weight", "head.weight")
_HALF = 2  # bytes of a number in 16 bits
_CONTEXT = 4096


def is_drafter(folder: Path) -> bool:
    """Say whether a folder holds a drafter rather than a model: one that is read, or one whose refusal says why not."""
    from slipstream.checkpoints.draft_files import DraftFiles
    from slipstream.checkpoints.draft_parts import strip_prefixes
    from slipstream.checkpoints.layouts import LAYOUTS

    try:
        files = DraftFiles(folder)
        shapes = {name: part.shape for name, part in strip_prefixes(files, []).items()}
    except (RequestError, WorkError):
        return False
    if any(layout.matches(files.raw, shapes) for layout in LAYOUTS):
        return True
    names = " ".join(map(str, files.raw.get("architectures") or ()))
    return any(key in files.raw for key in _KEYS) or any(word in names for word in _WORDS)


def drafter_facts(
    name: str, folder: Path, max_model_len: int | None = None, target: str | None = None
) -> dict[str, Any]:
    """Return the facts of a drafter's folder; memory per row is stated for `max_model_len` tokens.

    `target` names the model it is checked against; some files place their taps by its number of layers.
    """
    from slipstream import learned
    from slipstream.checkpoints.drafters import read_drafter
    from slipstream.cli.convert_cmd import target_folder
    from slipstream.cli.info import size_text
    from slipstream.measure.convert import facts_of

    found = read_drafter(folder, None if target is None else facts_of(target_folder(target)))
    c = found.config
    numbers = sum(t.numel() for n, t in found.tensors.items() if n != "vocab_map")
    per_token = row_bytes(c.body)
    length = max_model_len or _CONTEXT
    return {
        "drafter": name,
        "folder": str(folder),
        "kind": KINDS[c.algorithm],
        "algorithm": c.algorithm,
        "layout": c.layout,
        "use": f"--drafter {c.algorithm}:{name}",
        "target": c.claims.target or None,
        "target_layers": c.claims.layers,
        "target_hidden": c.features.width,
        "target_vocabulary": c.vocab.target,
        "parameters": numbers,
        "parameters_of_tables": sum(found.tensors[n].numel() for n in _TABLES if n in found.tensors),
        "layers": None if c.body is None else c.body.layers,
        "hidden": c.features.width if c.body is None else c.body.hidden,
        "taps": taps_text(c),
        "tap_ids": list(c.features.taps),
        **_block_facts(c),
        "draft_vocabulary": c.vocab.draft,
        "tables": tables_text(c),
        "weights": f"{size_text(_HALF * numbers)} in 16 bits ({_stored(found)} in the file)",
        "cache_per_token": f"{size_text(per_token)} for each row in 16 bits",
        "memory_per_row": f"{size_text(per_token * length)} at --max-model-len {length}",
        "bytes": {"weights": _HALF * numbers, "cache_per_token": per_token, "cache_per_row": per_token * length},
        "draft_tokens": learned.suggested(c),
        "notes": list(found.notes),
    }


def row_bytes(body: Body | None) -> int:
    """Return the bytes one token of one row takes in the drafter's cache, in 16 bits; 0 without layers."""
    return 0 if body is None else 2 * _HALF * body.layers * body.kv_heads * body.head_dim


def taps_text(c: DraftConfig) -> str:
    """Say what is read of the target."""
    taps = c.features.taps
    if taps == (-1,):
        return "the state after the final norm"
    spelled = ["the embedding" if t == 0 else str(t) for t in taps]
    return f"the state after layers {', '.join(spelled)} (of 1..{c.claims.layers or 'N'})"


def tables_text(c: DraftConfig) -> str:
    """Say where embedding and head come from."""
    v = c.vocab
    if c.algorithm == "medusa":
        own = c.heads is not None and c.heads.own
        return "a vocabulary projection in each head" if own else "the target's head"
    embed = "own embedding" if v.own_embed else "the target's embedding"
    head = "own head" if v.own_head else "the target's head"
    return f"{embed}, {head}"


def _block_facts(c: DraftConfig) -> dict[str, Any]:
    if c.heads is not None:
        return {"heads": c.heads.count}
    if c.block is None:
        return {}
    if c.algorithm == "peagle":
        return {"mask_token": c.block.mask_token}
    out: dict[str, Any] = {"block_size": c.block.size, "block_drafts": c.block.drafts, "mask_token": c.block.mask_token}
    if c.paths is not None:
        out |= {"path_choices": c.paths.top_k, "convolution_taps": c.paths.taps}
    if c.algorithm == "dspark":
        out |= {"markov_head": f"{c.markov.kind}, rank {c.markov.rank}", "confidence_head": c.markov.confidence}
    return out


def _stored(found: DraftCheckpoint) -> str:
    kinds = {str(t.dtype).removeprefix("torch.") for t in found.tensors.values() if t.is_floating_point()}
    return ", ".join(sorted(kinds))
