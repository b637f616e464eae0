"""What must hold between a drafter's record, its tensors and its target before anything is built.

In: a `Reading`, its record, lazy tensors. Out: nothing; refusals name the tensor or key, what was found and what is
needed. Lines that only need to be seen go to the reading's notes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from slipstream.checkpoints.draft_reading import Reading
from slipstream.checkpoints.draft_shapes import expected_shapes
from slipstream.nets.draft_config import DraftConfig
from slipstream.types import RequestError

_NEVER_ZERO = ("fc.weight", "head.weight", "embed.weight")
_ALWAYS_DROPPED = ("d2t", "t2d", "vocab_map")


def check_shapes(r: Reading, config: DraftConfig, strangers: list[str]) -> None:
    """Every tensor of the record is there in its shape, and none besides; `strangers` have no canonical name."""
    asked = expected_shapes(config)
    for name, shape in asked.items():
        if name == "vocab_map":
            continue
        if name not in r.shapes:
            raise r.damaged(f"tensor {_own(r, config, name)} {list(shape)} is missing")
        if r.shapes[name] != shape:
            raise r.damaged(
                f"tensor {_own(r, config, name)} is {list(r.shapes[name])}; config.json asks for {list(shape)}"
            )
    extra = [n for n in r.shapes if n not in asked and n not in _ALWAYS_DROPPED]
    left = sorted([*(_own(r, config, name) for name in extra), *strangers])
    if left:
        tables = left[0] in ("embed_tokens.weight", "lm_head.weight")
        hint = (
            ": it takes the target's tables; DeepSpec's and speculators' files bring their own and may number their "
            "slots in another way"
        )
        raise r.damaged(f"tensor {left[0]} is unknown to the layout {r.layout.title}{hint if tables else ''}")


def check_values(r: Reading, config: DraftConfig, tensors: Mapping[str, Tensor]) -> None:
    """No weight is NaN, infinite or of an integer type, and none that must be trained is all zeros."""
    half = False
    for name in sorted(tensors):
        if name == "vocab_map":
            continue
        value = tensors[name]
        if not value.is_floating_point() or value.dtype.itemsize < 2:
            kind = str(value.dtype).removeprefix("torch.")
            raise r.damaged(f"tensor {_own(r, config, name)} is {kind}; weights of 16 or 32 bits are needed")
        half |= value.dtype == torch.float16
        low, high = (float(end) for end in value.aminmax())  # NaN if any is; one pass and no copy of a large table
        if not (math.isfinite(low) and math.isfinite(high)):
            raise r.damaged(
                f"tensor {_own(r, config, name)} has NaN or infinite values: it was never loaded or diverged"
            )
        if name in _NEVER_ZERO and low == high == 0:
            raise r.damaged(f"tensor {_own(r, config, name)} is all zeros: it was never trained or loaded")
    if half:
        r.notes.append("weights are float16: another dtype of the target rounds them")


def check_block(r: Reading, config: DraftConfig) -> None:
    """A block is long enough to draft a token and its mask token has a row in the embedding."""
    block = config.block
    if block is None:
        return
    least = 1 if block.anchor_predicts else 2
    if block.size < least:
        raise r.wrong(f"block_size is {block.size}; at least {least} is needed to draft a token")
    rows = r.facts.vocab if r.facts and not config.vocab.own_embed else config.vocab.target
    if not 0 <= block.mask_token < rows:
        raise r.wrong(f"mask token {block.mask_token} has no row in the embedding, which has {rows}")
    for key in ("bos_token_id", "eos_token_id", "pad_token_id"):
        ids = r.raw.get(key)
        if block.mask_token in (ids if isinstance(ids, list) else [ids]):
            r.notes.append(f"mask token {block.mask_token} is {key} too")


def check_target(r: Reading, config: DraftConfig) -> None:
    """The target is the one the file was made for, as far as numbers tell; without facts only the file's own word."""
    width, facts = config.features.width, r.facts
    brought = {"embed.weight": config.vocab.own_embed, "head.weight": config.vocab.own_head}
    for name, own in brought.items():
        if config.body is not None and not own and config.body.hidden != width:
            raise r.damaged(
                f"tensor {r.own(name)} is missing and the target's rows are {width} wide; the drafter needs "
                f"{config.body.hidden}"
            )
    if facts is None:
        return
    if max(config.features.taps) > facts.layers or min(config.features.taps) < -1:
        raise RequestError(f"{r.folder}: taps {list(config.features.taps)}; the target's go from 0 to {facts.layers}")
    where = f"the target {facts.name}"
    if width != facts.hidden:
        raise RequestError(f"{r.folder}: the drafter reads states of width {width}; {where} has {facts.hidden}")
    if config.claims.layers not in (None, facts.layers):
        raise RequestError(
            f"{r.folder}: made for a target of {config.claims.layers} layers (num_target_layers); {where} has "
            f"{facts.layers}"
        )
    _check_vocab(r, config)
    ours, theirs = facts.name.rstrip("/").split("/")[-1], config.claims.target.rstrip("/").split("/")[-1]
    if theirs and ours.lower() != theirs.lower():
        r.notes.append(f"made for {config.claims.target!r}; the target here is {facts.name!r}")


def _check_vocab(r: Reading, config: DraftConfig) -> None:
    facts, rows = r.facts, config.vocab.target
    assert facts is not None
    if rows == facts.vocab:
        return
    if facts.real_vocab <= rows < facts.vocab:
        r.notes.append(f"made for {rows} ids; the target's further rows up to {facts.vocab} are padding")
        return
    raise RequestError(
        f"{r.folder}: made for a vocabulary of {rows} (vocab_size); the target {facts.name} has {facts.vocab} rows, "
        f"{facts.real_vocab} of them real ids"
    )


def _own(r: Reading, config: DraftConfig, name: str) -> str:
    return r.layout.names.own(name, config.heads.blocks if config.heads else 0) or name
