"""What each checkpoint layout can say of a drafter, as a table; what it cannot say is refused by name, never dropped.

In: a canonical record and a layout. Out: nothing, or a RequestError naming the feature, its value and what the layout
could hold. A feature without a row is free in that layout.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slipstream.nets.draft_config import Block, Body, DraftConfig, Features
from slipstream.types import RequestError

Allowed = Mapping[str, tuple[Any, ...]]

_LABELS = {
    "taps": "what the taps are",
    "tap_count": "the number of taps",
    "tap_norm": "the norm before fc",
    "fc_bias": "a bias of fc",
    "feedback": "the state fed to the next step (before or after the final norm)",
    "logit_norm": "a final norm before the head",
    "residual_norm": "a normed feature in the residual",
    "layers": "the number of layers",
    "qk_norm": "norms of queries and keys",
    "biases": "biases of the attention maps",
    "head_dim": "a head_dim other than hidden_size / num_attention_heads",
    "width": "a target wider or narrower than the drafter",
    "windows": "sliding windows",
    "causal": "layers that are causal within a block",
    "rope": "the kind of rotary scaling",
    "reduced": "a reduced draft vocabulary",
    "own_embed": "an embedding table in the file",
    "own_head": "an output head in the file",
    "anchor_predicts": "an anchor slot that predicts",
    "markov": "the kind of Markov head",
    "confidence": "what the confidence head reads",
    "scales": "scales or a cap of the target's tables",
    "own_heads": "a vocabulary projection in each head",
}
_SLIDING = "sliding layers"
_LAYERS, _EMBEDDING = "layers", "layers and the embedding"
_FINAL, _BARE = "the final state", "the final state without fc"
_CLASSIC = {
    **{"tap_norm": ("none",), "residual_norm": (False,), "qk_norm": (False,), "biases": ((),), "windows": ("none",)},
    **{"fc_bias": (False,), "feedback": ("pre",), "taps": (_LAYERS,), "tap_count": (3,)},
}
_SCALINGS = ("default", "linear", "llama3", "yarn")
_SPECFORGE_EAGLE3 = {
    **{**_CLASSIC, "tap_norm": ("none", "each"), "taps": (_LAYERS, _BARE)},
    **{"layers": (1,), "rope": _SCALINGS, "own_head": (True,)},
}
_SPECULATORS = {
    **{"taps": (_LAYERS, _EMBEDDING), "fc_bias": (False,), "logit_norm": (True,)},
    **{"biases": ((), ("qkv", "out")), "windows": ("none", "one size"), "rope": _SCALINGS},
    **{"own_embed": (True,), "own_head": (True,)},
}
_BLOCK = {
    **{"fc_bias": (False,), "tap_norm": ("none",), "qk_norm": (True,), "rope": _SCALINGS},
    **{"biases": ((), ("qkv", "out")), "windows": ("none", "one size"), "causal": ("none", _SLIDING)},
}
_SHARED = {"own_embed": (False,), "own_head": (False,), "reduced": (False,), "width": (False,)}
_ZLAB = {**_BLOCK, **_SHARED, "taps": (_LAYERS,), "causal": ("none", _SLIDING, "all layers")}
_DEEPSPEC = {
    **{"own_embed": (True,), "own_head": (True,), "reduced": (False,), "width": (False,), "windows": ("none",)},
    **{"qk_norm": (True,), "biases": ((), ("qkv", "out")), "fc_bias": (False,)},
    **{"tap_norm": ("none",), "rope": _SCALINGS, "causal": ("none",), "taps": (_LAYERS, _EMBEDDING)},
}
_NO_HEADS = {"markov": ("none",), "confidence": ("none",)}

LIMITS: dict[tuple[str, str], Allowed] = {
    ("safeailab", "eagle"): {
        **{"taps": (_FINAL,), "tap_norm": ("none",), "layers": (1,), "qk_norm": (False,)},
        **{"biases": ((), ("qkv",)), "head_dim": (False,), "width": (False,), "windows": ("none",)},
        **{"rope": ("default", "linear"), "reduced": (False,), "own_head": (False,), "residual_norm": (False,)},
        **{"logit_norm": (False,)},
    },
    ("safeailab", "eagle3"): {
        **{**_CLASSIC, "layers": (1,), "head_dim": (False,), "rope": ("default", "linear")},
        **{"logit_norm": (True,), "own_head": (True,)},
    },
    ("specforge", "eagle3"): _SPECFORGE_EAGLE3,
    ("specforge", "peagle"): {
        **{**_CLASSIC, "logit_norm": (True,), "rope": ("default",), "own_embed": (True,), "own_head": (True,)},
    },
    ("specforge", "dspark"): {**_ZLAB, "anchor_predicts": (True,)},
    ("speculators", "eagle3"): _SPECULATORS,
    ("speculators", "peagle"): _SPECULATORS,
    ("speculators", "dflash"): {**_SPECULATORS, **_BLOCK, **_NO_HEADS},
    ("speculators", "dflash2"): {**_SPECULATORS, **_BLOCK, "reduced": (False,), "scales": (False,)},
    ("speculators", "dspark"): {**_SPECULATORS, **_BLOCK},
    ("deepspec", "eagle3"): {
        **{**_DEEPSPEC, "taps": (_LAYERS,), "tap_count": (5,), "residual_norm": (False,)},
        **{"feedback": ("pre",), "logit_norm": (True,)},
    },
    ("deepspec", "dflash"): {**_DEEPSPEC, "anchor_predicts": (True,), **_NO_HEADS},
    ("deepspec", "dspark"): {**_DEEPSPEC, "anchor_predicts": (True,)},
    ("zlab", "dflash"): {**_ZLAB, "anchor_predicts": (False,), **_NO_HEADS},
    ("zlab", "dflash2"): {**_ZLAB, "anchor_predicts": (False,)},
    ("transformers", "dflash"): {
        **{**_BLOCK, **_SHARED, "taps": (_LAYERS,), "anchor_predicts": (False,), **_NO_HEADS},
        **{"biases": ((),), "causal": ("none",)},
    },
    ("medusa", "medusa"): {"own_heads": (True,)},
    ("medusa-legacy", "medusa"): {"own_heads": (False,)},
}
LAYOUT_NAMES = tuple(dict.fromkeys(name for name, _ in LIMITS))


def layouts_of(algorithm: str) -> tuple[str, ...]:
    """Return the layouts that know an algorithm."""
    return tuple(name for name, kind in LIMITS if kind == algorithm)


def needs_table(layout: str, algorithm: str, which: str) -> bool | None:
    """Say whether files of a layout must (True), must not (False) or may (None) bring `own_embed` or `own_head`."""
    allowed = LIMITS.get((layout, algorithm), {}).get(which)
    return None if allowed is None or len(allowed) != 1 else bool(allowed[0])


def check_layout(layout: str, algorithm: str) -> None:
    """Raise RequestError unless a layout knows the algorithm."""
    if layout not in LAYOUT_NAMES:
        raise RequestError(f"layout {layout!r} is not one of {', '.join(LAYOUT_NAMES)}")
    if (layout, algorithm) not in LIMITS:
        known = layouts_of(algorithm)
        able = f"can be written as {', '.join(known)}" if known else "is read, and written in no layout"
        raise RequestError(f"layout {layout!r} has no {algorithm} drafters; {algorithm} {able}")


def check_expressible(config: DraftConfig, layout: str) -> None:
    """Raise RequestError naming the first feature of the record that the layout has no place for."""
    check_layout(layout, config.algorithm)
    facts = facts_of(config)
    for fact, allowed in LIMITS[layout, config.algorithm].items():
        if fact in facts and facts[fact] not in allowed:
            raise RequestError(
                f"layout {layout!r} cannot express this {config.algorithm} drafter: {_LABELS[fact]}: "
                f"{_said(facts[fact])}; there it is {' or '.join(_said(a) for a in allowed)}"
            )


def facts_of(config: DraftConfig) -> dict[str, Any]:
    """Return what the table judges: the record in few words. Facts that a kind of drafter does not have are absent."""
    f, v = config.features, config.vocab
    facts: dict[str, Any] = {
        "taps": _taps(f),
        "tap_norm": f.norm,
        "fc_bias": f.bias and config.algorithm != "eagle",
        "reduced": v.reduced,
        "own_embed": v.own_embed,
        "own_head": v.own_head,
    }
    if f.fused:
        facts["tap_count"] = len(f.taps)
    if config.body is not None:
        facts |= _body_facts(config.body, f.width)
    if config.algorithm in ("eagle", "eagle3", "peagle"):
        r = config.rows
        facts |= {"feedback": r.feedback, "logit_norm": r.logit_norm, "residual_norm": r.residual_norm}
    if config.block is not None and config.algorithm != "peagle" and config.body is not None:
        facts |= {"anchor_predicts": config.block.anchor_predicts, "causal": _causal(config.body, config.block)}
        facts |= {"markov": config.markov.kind, "confidence": config.markov.confidence}
    if config.paths is not None:
        p = config.paths
        facts["scales"] = (p.embed_scale, p.logit_scale, p.logit_cap) != (1.0, 1.0, None)
    if config.heads is not None:
        facts["own_heads"] = config.heads.own
    return facts


def _taps(f: Features) -> str:
    if f.taps == (-1,):
        return _FINAL if f.fused else _BARE
    return _EMBEDDING if 0 in f.taps else _LAYERS


def _body_facts(b: Body, width: int) -> dict[str, Any]:
    sizes = {w for w in b.windows if w is not None}
    return {
        "layers": b.layers,
        "qk_norm": b.qk_norm,
        "biases": tuple(n for n in ("qkv", "out") if n in b.biases),
        "head_dim": b.head_dim * b.heads != b.hidden,
        "width": width != b.hidden,
        "windows": ("none", "one size", "several sizes")[min(len(sizes), 2)],
        "rope": b.rope.kind,
    }


def _causal(body: Body, block: Block) -> str:
    sliding = tuple(w is not None for w in body.windows)
    if not any(block.causal):
        return "none"
    if block.causal == sliding:
        return _SLIDING
    return "all layers" if all(block.causal) else "some layers"


def _said(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return " and ".join(map(str, value)) or "none" if isinstance(value, tuple) else str(value)
