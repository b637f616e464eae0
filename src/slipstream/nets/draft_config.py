"""The canonical record of a learned drafter: what every checkpoint layout is read into and written from.

In: facts of a config.json and of tensor names, already checked by `checkpoints`. Out: plain frozen records; networks
are built from them and from tensors under the canonical names below. No reading, no arithmetic.

Canonical tensor names (a layout's own names never leave `checkpoints`):
  embed.weight [V, H]; head.weight [Vd, H]; vocab_map int64 [Vd], ABSOLUTE target ids; fc.weight [H, K*Ht], fc.bias [H];
  fc_norm.{c}.weight [Ht]; input_norm.weight [K*Ht]; hidden_norm.weight [H] (block drafters); norm.weight [H];
  mask_hidden [K*Ht]; layers.{i}.self_attn.{q,k,v,o}_proj.{weight,bias}, .self_attn.{q,k}_norm.weight [D],
  .{input_layernorm,hidden_norm,post_attention_layernorm}.weight [H], .mlp.{gate,up,down}_proj.weight;
  markov.w1.weight [V, r], markov.w2.weight [Vd, r], markov.gate.{weight,bias}, markov.joint.{weight,bias};
  confidence.weight [1, H (+ r)], confidence.bias [1];
  layers.{i}.{attention,mlp}_conv.base [2, T, H], .dynamic.weight [2 * T * H / G, H] (side, tap, channel or group);
  paths.before.weight [V, r], paths.after.weight [V, r], paths.mix.weight [r, H] (DFlash 2);
  heads.{i}.blocks.{j}.{weight,bias}, heads.{i}.head.weight [V, H] (Medusa).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from slipstream.nets.families import Rope
from slipstream.nets.layers import MapMaker

Algorithm = Literal["eagle", "eagle3", "peagle", "dflash", "dflash2", "dspark", "medusa"]


@dataclass(frozen=True)
class Body:
    """The transformer layers of a drafter. `windows` has one entry per layer (None: full attention).

    `biases` names the maps of every layer that have one: "qkv", "out".
    """

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp: int
    windows: tuple[int | None, ...]
    eps: float = 1e-6
    rope: Rope = field(default_factory=lambda: Rope(10000.0))
    activation: str = "silu"
    qk_norm: bool = False
    biases: tuple[str, ...] = ()


@dataclass(frozen=True)
class Features:
    """What is read of the target, and how it becomes one row of width H.

    `taps` are ids of `types.Target`: k in 0..N is the raw residual stream after k layers, -1 the state after the final
    norm. `width` is the target's hidden size. `norm`: none, one norm for each tap, or one over the whole concatenation.
    `fused` False: a single tap is used as it is, there is no fc (EAGLE-1's fc takes the embedding too and is True).
    """

    taps: tuple[int, ...]
    width: int
    norm: Literal["none", "each", "whole"] = "none"
    bias: bool = False
    fused: bool = True


@dataclass(frozen=True)
class Vocab:
    """Token ids. `target` counts the rows the file was made for, `draft` those the drafter's head has.

    `own_embed` and `own_head`: the file brings its own tables; else the target's are used.
    """

    target: int
    draft: int
    own_embed: bool = False
    own_head: bool = False

    @property
    def reduced(self) -> bool:
        """True when only some of the target's ids can be drafted."""
        return self.draft != self.target


@dataclass(frozen=True)
class Block:
    """A block drafter's slots. `size` counts all slots, the anchor's included.

    `anchor_predicts`: slot k predicts the token k + 1 places after the anchor and all slots draft; else slot k predicts
    the token k places after it and slot 0 drafts nothing. `causal` per layer: a slot sees only earlier slots.
    """

    size: int
    mask_token: int
    anchor_predicts: bool
    causal: tuple[bool, ...]

    @property
    def drafts(self) -> int:
        """Tokens one block can draft."""
        return self.size if self.anchor_predicts else self.size - 1


@dataclass(frozen=True)
class Markov:
    """DSpark's correction of a slot's logits by the token before it, of rank `rank`; `kind` none has no correction.

    `confidence`: no head, a head on the slot's state, or on the state and the previous token's row of w1.
    """

    kind: Literal["none", "vanilla", "gated", "rnn"] = "none"
    rank: int = 0
    confidence: Literal["none", "hidden", "markov"] = "none"


@dataclass(frozen=True)
class Paths:
    """DFlash 2: convolutions along a block's slots, and the choice of a path through each slot's likeliest tokens.

    A convolution reads `taps` slots, its own included, with one coefficient for `group` channels. A path goes through
    the `top_k` highest logits of each slot by scores of rank `rank`. Embeddings are those the target has stored times
    `embed_scale`; logits those of its head, before any cap, times `logit_scale` and then capped at `logit_cap`.
    """

    taps: int
    group: int
    rank: int
    top_k: int
    embed_scale: float = 1.0
    logit_scale: float = 1.0
    logit_cap: float | None = None


@dataclass(frozen=True)
class Heads:
    """Medusa's heads: `count` of them, `blocks` residual blocks each; `own` False: the target's head is shared."""

    count: int
    blocks: int = 1
    own: bool = True


@dataclass(frozen=True)
class Claims:
    """What the file says about the target it was made for; empty or None where it says nothing."""

    target: str = ""
    layers: int | None = None
    draft_tokens: int | None = None


@dataclass(frozen=True)
class Rows:
    """How an EAGLE drafter treats a row. `feedback`: the state fed to the next step, before or after the final norm.

    `logit_norm`: the head reads the normed state. `residual_norm`: the residual starts from the normed feature.
    `offset` is added to a row's rotary position.
    """

    feedback: Literal["pre", "post"] = "pre"
    logit_norm: bool = True
    residual_norm: bool = False
    offset: int = 0


@dataclass(frozen=True)
class DraftConfig:
    """All about a learned drafter but its weights. `layout` is where it was read from; it changes no arithmetic."""

    algorithm: Algorithm
    layout: str
    features: Features
    vocab: Vocab
    body: Body | None = None  # Medusa has none
    rows: Rows = field(default_factory=Rows)  # EAGLE family
    block: Block | None = None  # dflash, dflash2, dspark; peagle uses only its mask_token
    markov: Markov = field(default_factory=Markov)  # dspark
    paths: Paths | None = None  # dflash2
    heads: Heads | None = None  # Medusa
    claims: Claims = field(default_factory=Claims)


@dataclass(frozen=True)
class DraftCheckpoint:
    """A drafter read from disk: its record, its tensors under canonical names, and lines a person should see."""

    config: DraftConfig
    tensors: Mapping[str, Tensor]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Tables:
    """The target's embedding and head, for drafters that share them.

    `embed` maps ids [R] -> [R, Ht] as fed to the target's first layer (any scale applied), for ids below `rows`.
    `head` maps normed states [R, Ht] -> logits [R, V], V = `vocab` real ids, any cap applied. `bare_embed` and
    `bare_head` are the same without scale and cap; None where there are none. Networks that share them compute in
    `dtype`; `maps` makes their linear maps from weights as the file has them, None: torch's, converted to `dtype`.
    """

    embed: Callable[[Tensor], Tensor]
    head: Callable[[Tensor], Tensor]
    vocab: int
    rows: int
    hidden: int
    dtype: torch.dtype
    device: torch.device
    bare_embed: Callable[[Tensor], Tensor] | None = None
    bare_head: Callable[[Tensor], Tensor] | None = None
    maps: MapMaker | None = None
