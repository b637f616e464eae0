"""A block drafter's forward written once more, without a cache and differentiable: the check, and what training needs.

One dense attention over [context | all blocks] for many anchors at once, float32 or float64, straight from the formulas
(design notes 7.1). It shares no code with `nets`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from slipstream.nets.draft_config import Block, Body, DraftConfig, Tables


def states(
    config: DraftConfig,
    tensors: Mapping[str, Tensor],
    tables: Tables,
    taps: Mapping[int, Tensor],
    anchors: list[tuple[int, int]],
) -> Tensor:
    """Return the states [A, S, H] of the blocks of anchors (position, token); context is what lies before each.

    `taps` {tap: [T, Ht]} holds the features of positions 0..T-1; an anchor at position a sees those below a.
    """
    body, block = config.body, config.block
    assert body is not None
    assert block is not None
    parts = [taps[tap] for tap in config.features.taps]
    if config.features.norm == "each":
        parts = [norm(x, tensors[f"fc_norm.{c}.weight"], body.eps) for c, x in enumerate(parts)]
    x = torch.cat(parts, -1)
    if config.features.norm == "whole":
        x = norm(x, tensors["input_norm.weight"], body.eps)
    ctx = norm(x @ tensors["fc.weight"].T, tensors["hidden_norm.weight"], body.eps)
    ids = torch.tensor([[token] + [block.mask_token] * (block.size - 1) for _, token in anchors])
    h = tensors["embed.weight"][ids] if config.vocab.own_embed else tables.embed(ids)
    h = h.flatten(0, 1)
    starts = torch.tensor([position for position, _ in anchors])
    slots = (starts[:, None] + torch.arange(block.size)).flatten()
    at = torch.cat([torch.arange(len(ctx)), slots])
    for i in range(body.layers):
        seen = sight(starts, len(ctx), block, body.windows[i], block.causal[i])
        h = layer(config, tensors, i, h, ctx, at, seen)
    return norm(h, tensors["norm.weight"], body.eps).view(len(anchors), block.size, -1)


def sight(starts: Tensor, length: int, block: Block, window: int | None, causal: bool) -> Tensor:
    """Which of [context | blocks] each slot sees: bool [A * S, T + A * S]."""
    size, count = block.size, len(starts)
    own = torch.arange(count).repeat_interleave(size)
    place = (starts[:, None] + torch.arange(size)).flatten()
    before = torch.arange(length)[None] < starts[own][:, None]
    inside = own[:, None] == own[None]
    if causal:
        inside = inside & (place[None] <= place[:, None])
    seen = torch.cat([before, inside], 1)
    if window is not None:
        at = torch.cat([torch.arange(length), place])
        seen = seen & ((at[None] - place[:, None]).abs() < window)
    return seen


def layer(
    config: DraftConfig, tensors: Mapping[str, Tensor], i: int, h: Tensor, ctx: Tensor, at: Tensor, seen: Tensor
) -> Tensor:
    """One layer over the block rows h [R, H], with the context's keys and values before its own."""
    name, body = f"layers.{i}", config.body
    assert body is not None
    w = {key[len(name) + 1 :]: value for key, value in tensors.items() if key.startswith(name + ".")}
    u, behind = convolved(config, w, "attention_conv", norm(h, w["input_layernorm.weight"], body.eps))
    both = torch.cat([ctx, u])

    def heads(x: Tensor, which: str, count: int) -> Tensor:
        out = x @ w[f"self_attn.{which}_proj.weight"].T
        if f"self_attn.{which}_proj.bias" in w:
            out = out + w[f"self_attn.{which}_proj.bias"]
        out = out.view(len(x), count, body.head_dim)
        gain = w.get(f"self_attn.{which}_norm.weight")
        return out if gain is None else norm(out, gain, body.eps)

    q = turn(heads(u, "q", body.heads), at[len(ctx) :], body)
    k = turn(heads(both, "k", body.kv_heads), at, body)
    v = heads(both, "v", body.kv_heads)
    groups = body.heads // body.kv_heads
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    scores = torch.einsum("qhd,khd->hqk", q, k) / body.head_dim**0.5
    weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
    out = torch.einsum("hqk,khd->qhd", weights, v).flatten(1) @ w["self_attn.o_proj.weight"].T
    h = h + behind(out + w.get("self_attn.o_proj.bias", 0.0))
    u, behind = convolved(config, w, "mlp_conv", norm(h, w["post_attention_layernorm.weight"], body.eps))
    gate, up = u @ w["mlp.gate_proj.weight"].T, u @ w["mlp.up_proj.weight"].T
    return h + behind((torch.nn.functional.silu(gate) * up) @ w["mlp.down_proj.weight"].T)


def convolved(
    config: DraftConfig, w: Mapping[str, Tensor], name: str, u: Tensor
) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """What a sublayer gets of its normed input u [R, H], and what becomes of its output: DFlash 2's convolutions.

    out[slot] = sum over taps t of (fixed[t] + given[slot, t, group of the channel]) * in[slot - t], as a sum of
    products with shifted slots of the block; nothing is before a block.
    """
    paths, block = config.paths, config.block
    if paths is None or block is None:
        return u, lambda x: x
    given = (u @ w[f"{name}.dynamic.weight"].T).view(-1, block.size, 2, paths.taps, u.shape[1] // paths.group)
    given = given.repeat_interleave(paths.group, -1)  # [A, S, 2, T, H]

    def along(x: Tensor, side: int) -> Tensor:
        slots = x.view(-1, block.size, x.shape[1])
        total = torch.zeros_like(slots)
        for t in range(min(paths.taps, block.size)):
            before = torch.cat([torch.zeros_like(slots[:, :t]), slots[:, : block.size - t]], 1)
            total = total + (w[f"{name}.base"][side, t] + given[:, :, side, t]) * before
        return total.view_as(x)

    return along(u, 0), lambda x: along(x, 1)


def norm(x: Tensor, gain: Tensor, eps: float) -> Tensor:
    """Root mean square norm."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * gain


def turn(x: Tensor, at: Tensor, body: Body) -> Tensor:
    """Rotate heads [R, heads, D] to positions `at` [R]."""
    half = body.head_dim // 2
    angles = at[:, None].float() * body.rope.theta ** (-torch.arange(half).float() / half)
    cos, sin = angles.cos()[:, None].to(x.dtype), angles.sin()[:, None].to(x.dtype)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)
