"""Tensor names of the public drafter layouts against the canonical ones of `nets.draft_config`, both ways.

In: a name in one spelling. Out: the name in the other, or None. A pair is (canonical, own); {i}, {j} and {c} stand for
numbers, {L} for the number of residual blocks of a Medusa head, which the canonical name does not repeat. Reading and
writing use the same tables, so what is written is what is read. Knows no shapes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cached_property

Pair = tuple[str, str]

_ATTENTION = [f"self_attn.{n}_proj" for n in "qkvo"]
_MLP = [f"mlp.{n}_proj" for n in ("gate", "up", "down")]
_LAYER = (
    *(f"{name}.{part}" for name in _ATTENTION for part in ("weight", "bias")),
    *(f"{name}.weight" for name in _MLP),
    *(f"self_attn.{n}_norm.weight" for n in "qk"),
    *("input_layernorm.weight", "hidden_norm.weight", "post_attention_layernorm.weight"),
)


def layer_pairs(canonical: str = "layers.{i}", own: str = "layers.{i}") -> tuple[Pair, ...]:
    """Return the pairs of one decoder layer's tensors under these two prefixes."""
    return tuple((f"{canonical}.{name}", f"{own}.{name}") for name in _LAYER)


def same(*names: str) -> tuple[Pair, ...]:
    """Return pairs of names that are spelled alike."""
    return tuple((name, name) for name in names)


TABLES: tuple[Pair, ...] = (("embed.weight", "embed_tokens.weight"), ("head.weight", "lm_head.weight"))
TAP_NORMS = same("fc_norm.{c}.weight", "input_norm.weight")
DSPARK: tuple[Pair, ...] = (
    ("markov.w1.weight", "markov_head.markov_w1.weight"),
    ("markov.w2.weight", "markov_head.markov_w2.weight"),
    ("markov.gate.weight", "markov_head.gate_proj.weight"),
    ("markov.gate.bias", "markov_head.gate_proj.bias"),
    ("markov.joint.weight", "markov_head.joint_proj.weight"),
    ("markov.joint.bias", "markov_head.joint_proj.bias"),
    ("confidence.weight", "confidence_head.proj.weight"),
    ("confidence.bias", "confidence_head.proj.bias"),
)
_SELECTOR = (
    ("paths.before.weight", "candidate_selector.predecessor_codebook"),
    ("paths.after.weight", "candidate_selector.successor_codebook"),
)
DFLASH2: tuple[Pair, ...] = (
    *((f"layers.{{i}}.{n}_conv.base", f"layers.{{i}}.{n}_conv.base_kernel") for n in ("attention", "mlp")),
    *(
        (f"layers.{{i}}.{n}_conv.dynamic.weight", f"layers.{{i}}.{n}_conv.kernel_projection.weight")
        for n in ("attention", "mlp")
    ),
    *_SELECTOR,
    *((canonical, f"{own}.weight") for canonical, own in _SELECTOR),  # of files that their own class saved again
    ("paths.mix.weight", "candidate_selector.hidden_projection.weight"),
)
MASK_HIDDEN_SHAPE = (1, 1, -1)  # how layouts store mask_hidden, which is [K*Ht] here
MAPS = ("d2t", "t2d")  # layouts' spelling of vocab_map: offsets [Vd], and bool [V]; see draft_vocab


class Names:
    """A two-way table of names."""

    def __init__(self, pairs: Iterable[Pair]) -> None:
        self.pairs = tuple(pairs)

    def canonical(self, name: str) -> str | None:
        """Return the canonical name of a layout's own name."""
        return _through(self._inward, name)

    def own(self, name: str, blocks: int = 0) -> str | None:
        """Return the layout's own name of a canonical one; `blocks` is a Medusa head's number of residual blocks."""
        found = _through(self._outward, name)
        return None if found is None else found.replace("{L}", str(blocks))

    @cached_property
    def _inward(self) -> list[tuple[re.Pattern[str], str]]:
        return [(_pattern(own), canonical) for canonical, own in self.pairs]

    @cached_property
    def _outward(self) -> list[tuple[re.Pattern[str], str]]:
        return [(_pattern(canonical), own) for canonical, own in self.pairs]


def numbered(names: Iterable[str], pattern: str) -> list[int]:
    """Return the numbers that fill {i} in the names that match, ascending, without repeats."""
    tried = _pattern(pattern)
    return sorted({int(m.group("i")) for m in map(tried.fullmatch, names) if m})


def _pattern(name: str) -> re.Pattern[str]:
    parts = re.split(r"\{(\w)\}", name)
    places = [f"(?P<{p}>0|[1-9]\\d*)" if at % 2 else re.escape(p) for at, p in enumerate(parts)]
    return re.compile("".join(places))


def _through(table: Sequence[tuple[re.Pattern[str], str]], name: str) -> str | None:
    for pattern, other in table:
        match = pattern.fullmatch(name)
        if match:
            for place, number in match.groupdict().items():
                other = other.replace(f"{{{place}}}", number)
            return other
    return None
