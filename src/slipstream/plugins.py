"""The tables of plug-ins: this file alone knows the name of every drafter, target and rule.

A plug-in is one line. The tables feed `--help`, the docs and the tests; torch and the plug-ins themselves are imported
when something is built, not before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from slipstream.machine import read_model_config
from slipstream.types import Drafter, Target, VerifyRule

if TYPE_CHECKING:
    import torch

    from slipstream.decoders import Way
    from slipstream.opened import Opened, Wanted


@dataclass(frozen=True)
class PlugIn:
    """One line of a table. `most` is what `--draft-tokens auto` may go up to (0: `draft_tokens`; for a learned drafter
    its file comes first); `path`: its spec is `name:PATH`; `draws`: at temperature above 0 it samples its tokens;
    `learned`: a checkpoint made for one target, read by `learned`."""

    summary: str
    make: Callable[..., Any]
    draft_tokens: int = 0
    most: int = 0
    path: bool = False
    draws: bool = False
    learned: bool = False
    options: tuple[str, ...] = ()


def _make_none(opened: Opened, wanted: Wanted) -> Drafter:
    from slipstream.drafters.none import NoDraft

    return NoDraft(device=opened.device)


def _make_lookup(opened: Opened, wanted: Wanted) -> Drafter:
    from slipstream.drafters.lookup import Lookup, LookupOptions

    return Lookup(LookupOptions(**wanted.options), vocab=opened.target.caps.vocab, device=opened.device)


def _make_draft_model(opened: Opened, wanted: Wanted) -> Drafter:
    from slipstream import models
    from slipstream.decoders import draft_way, open_decoder
    from slipstream.drafters.draft_model import DraftModel, DraftModelOptions
    from slipstream.nets.families import read_config
    from slipstream.text import check_vocabularies, load_tokenizer

    options = DraftModelOptions(head_ids=wanted.options.get("head_ids", DraftModelOptions.head_ids))
    way = draft_way(wanted.options.get("quantize", ""), opened.dtype, opened.device)
    folder, weights = models.locate(wanted.path, packed=way.quantize if way.kernels else None)
    warnings = check_vocabularies(opened.tokenizer, load_tokenizer(folder, opened.tokenizer), opened.name, wanted.path)
    wanted.notes.extend([*warnings, *([way.note] if way.note else [])])
    caps = opened.target.caps
    own = read_config(read_model_config(folder))
    scored = min(options.head_ids or own.vocab, own.vocab)
    sizes = {"max_rows": wanted.rows, "max_len": min(own.max_len, caps.max_len), "vocab": scored}
    decoder = open_decoder(weights, way, opened.dtype, opened.device, **sizes)
    return DraftModel(
        decoder, vocab=caps.vocab, max_rows=wanted.rows, device=opened.device, options=options, ids=own.vocab
    )


def _learned(algorithm: str) -> Callable[[Opened, Wanted], tuple[Drafter, int]]:
    def make(opened: Opened, wanted: Wanted) -> tuple[Drafter, int]:
        from slipstream.learned import make_drafter

        return make_drafter(algorithm, opened, wanted)

    return make


def _head(algorithm: str, summary: str, draft_tokens: int, *options: str, draws: bool = True) -> PlugIn:
    options = (*options, "quantize")
    return PlugIn(summary, _learned(algorithm), draft_tokens, path=True, draws=draws, learned=True, options=options)


def _make_native(model: Path, way: Way, dtype: torch.dtype, device: str, **sizes: Any) -> Target:
    from slipstream.decoders import open_decoder
    from slipstream.targets.native import NativeTarget

    return NativeTarget(open_decoder(model, way, dtype, device, **sizes))


def _make_hf(folder: Path, way: Way, dtype: torch.dtype, device: str, **sizes: Any) -> Target:
    from slipstream.targets.hf import HFTarget

    sizes.pop("max_nodes")
    return HFTarget(str(folder), dtype=dtype, device=device, **sizes)


def _rule(name: str) -> Callable[[], VerifyRule]:
    def make() -> VerifyRule:
        from slipstream import verify

        rule: VerifyRule = verify.RULES[name]
        return rule

    return make


_EAGLE = ("shape", "depth", "top_k")
_DSPARK = ("schedule", "threshold", "temperatures")
_MEDUSA = ("shape", "choices")
DRAFTERS: Mapping[str, PlugIn] = MappingProxyType(
    {
        "none": PlugIn("guesses nothing: plain decoding", _make_none),
        "lookup": PlugIn(
            "copies what followed the same words before", _make_lookup, 10, 15, options=("min_ngram", "max_ngram")
        ),
        "draft_model": PlugIn(
            "a smaller model of the same vocabulary",
            _make_draft_model,
            *(4, 8),
            path=True,
            draws=True,
            options=("quantize", "head_ids"),
        ),
        "eagle": _head("eagle", "EAGLE-1/2: a layer that foresees the target's last state", 12, *_EAGLE),
        "eagle3": _head("eagle3", "EAGLE-3: a layer fed with several of the target's layers", 12, *_EAGLE),
        "peagle": _head("peagle", "P-EAGLE: EAGLE-3 that drafts all tokens in one pass", 6, "depth"),
        "dflash": _head("dflash", "DFlash: a whole block denoised in one pass", 15, "shape"),
        "dflash2": _head("dflash2", "DFlash 2: a block, and the best path through its likeliest tokens", 7),
        "dspark": _head("dspark", "DSpark: a block, corrected token by token, as long as it pays", 7, *_DSPARK),
        "medusa": _head(
            "medusa", "Medusa-1: one head per position, a tree of their guesses", 15, *_MEDUSA, draws=False
        ),
    }
)
TARGETS: Mapping[str, PlugIn] = MappingProxyType(
    {
        "native": PlugIn("this project's own decoder: faster, known families", _make_native),
        "hf": PlugIn("any transformers model", _make_hf),
    }
)
RULES: Mapping[str, PlugIn] = MappingProxyType(
    {
        "auto": PlugIn("the rule that fits the draft", _rule("auto")),
        "chain": PlugIn("token by token", _rule("chain")),
        "block": PlugIn("a whole block at once, never shorter than chain", _rule("block")),
        "tree": PlugIn("several guesses per position", _rule("tree")),
        "coupled": PlugIn("shared noise: same seed, same text with any drafter", _rule("coupled")),
    }
)
PLANNED = ("suffix", "mtp", "mlp_speculator", "self_spec")
