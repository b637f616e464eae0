"""EAGLE-1/2/3 and P-EAGLE written down from their formulas: one uncached pass over explicit rows, head by head."""

from __future__ import annotations

import torch
from torch import Tensor

from slipstream.nets.draft_config import DraftCheckpoint, Tables


def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps) * weight


def fuse(found: DraftCheckpoint, taps: dict[int, Tensor]) -> Tensor:
    """Taps {k: [T, Ht]} -> features [T, H]."""
    c, w = found.config, found.tensors
    parts = [taps[k] for k in c.features.taps]
    if c.algorithm == "eagle" or not c.features.fused:
        return parts[0]
    eps = c.body.eps
    if c.features.norm == "each":
        parts = [norm(x, w[f"fc_norm.{i}.weight"], eps) for i, x in enumerate(parts)]
    x = torch.cat(parts, -1)
    if c.features.norm == "whole":
        x = norm(x, w["input_norm.weight"], eps)
    return x @ w["fc.weight"].T + w.get("fc.bias", 0)


def states(
    found: DraftCheckpoint, tables: Tables, tokens: Tensor, features: Tensor, positions: Tensor, seen: Tensor
) -> Tensor:
    """Rows (tokens [T], features [T, H]) at positions [T] seeing seen [T, T] -> fed-back states [T, H]."""
    c, w, b = found.config, found.tensors, found.config.body
    e = w["embed.weight"][tokens] if c.vocab.own_embed else tables.embed(tokens)
    if c.algorithm == "eagle":
        h = torch.cat([e, features], -1) @ w["fc.weight"].T + w.get("fc.bias", 0)
    for i in range(b.layers):
        at = f"layers.{i}"
        if i == 0 and c.algorithm == "eagle":
            x = h
        elif i == 0:
            g = norm(features, w[f"{at}.hidden_norm.weight"], b.eps)
            x = torch.cat([norm(e, w[f"{at}.input_layernorm.weight"], b.eps), g], -1)
            h = g if c.rows.residual_norm else features
        else:
            x = norm(h, w[f"{at}.input_layernorm.weight"], b.eps)
        h = h + attention(found, i, x, positions + c.rows.offset, seen)
        x = norm(h, w[f"{at}.post_attention_layernorm.weight"], b.eps)
        gate, up = x @ w[f"{at}.mlp.gate_proj.weight"].T, x @ w[f"{at}.mlp.up_proj.weight"].T
        h = h + (gate * torch.sigmoid(gate) * up) @ w[f"{at}.mlp.down_proj.weight"].T
    return norm(h, w["norm.weight"], b.eps) if c.rows.feedback == "post" else h


def logits(found: DraftCheckpoint, tables: Tables, state: Tensor) -> Tensor:
    """Fed-back states [T, H] -> logits [T, Vd]."""
    c, w = found.config, found.tensors
    if c.rows.feedback == "pre" and c.rows.logit_norm and "norm.weight" in w:
        state = norm(state, w["norm.weight"], c.body.eps)
    return state @ w["head.weight"].T if c.vocab.own_head else tables.head(state)


def attention(found: DraftCheckpoint, i: int, x: Tensor, positions: Tensor, seen: Tensor) -> Tensor:
    w, b = found.tensors, found.config.body
    at = f"layers.{i}.self_attn"

    def project(name: str, heads: int) -> Tensor:
        y = x @ w[f"{at}.{name}_proj.weight"].T + w.get(f"{at}.{name}_proj.bias", 0)
        y = y.view(len(x), heads, b.head_dim)
        if b.qk_norm and name != "v":
            y = norm(y, w[f"{at}.{name}_norm.weight"], b.eps)
        return y

    q, k, v = rotated(project("q", b.heads), positions, b), rotated(project("k", b.kv_heads), positions, b), None
    v = project("v", b.kv_heads)
    if b.windows[i] is not None:
        seen = seen & (positions[None] > positions[:, None] - b.windows[i])
    out = []
    for head in range(b.heads):
        group = head // (b.heads // b.kv_heads)
        scores = q[:, head] @ k[:, group].T / b.head_dim**0.5
        out.append(scores.masked_fill(~seen, float("-inf")).softmax(-1) @ v[:, group])
    return torch.cat(out, -1) @ w[f"{at}.o_proj.weight"].T + w.get(f"{at}.o_proj.bias", 0)


def rotated(x: Tensor, positions: Tensor, b) -> Tensor:
    """Half-split rotation of x [T, heads, D]; angles in float32, as tables are made."""
    half = b.head_dim // 2
    inverse = 1.0 / b.rope.theta ** (torch.arange(0, b.head_dim, 2, dtype=torch.float32) / b.head_dim)
    angles = positions.float()[:, None] * inverse
    cos, sin = angles.cos().to(x.dtype)[:, None], angles.sin().to(x.dtype)[:, None]
    a, c = x[..., :half], x[..., half:]
    return torch.cat([a * cos - c * sin, c * cos + a * sin], -1)


def causal(n: int) -> Tensor:
    return torch.ones(n, n, dtype=torch.bool).tril()
