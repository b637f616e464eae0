"""The tensors a canonical record asks for, and their shapes: what a reader must find and a writer must write.

In: a `DraftConfig`. Out: canonical name -> shape. `vocab_map` is in it where the drafter's vocabulary is reduced.
"""

from __future__ import annotations

from slipstream.nets.draft_config import Body, DraftConfig

Shapes = dict[str, tuple[int, ...]]


def expected_shapes(config: DraftConfig) -> Shapes:
    """Return every tensor the drafter has, with its shape."""
    hidden = config.features.width if config.body is None else config.body.hidden
    out: Shapes = {}
    v = config.vocab
    if v.own_embed:
        out["embed.weight"] = (v.target, hidden)
    if v.own_head:
        out["head.weight"] = (v.draft, hidden)
    if v.reduced:
        out["vocab_map"] = (v.draft,)
    if config.body is None:
        return out | _medusa(config)
    out |= _entry(config, config.body)
    for index in range(config.body.layers):
        out |= _layer(config, config.body, index)
    return out | _dspark(config, hidden) | _dflash2(config, config.body)


def feature_width(config: DraftConfig) -> int:
    """Return the width of all taps side by side."""
    return len(config.features.taps) * config.features.width


def _entry(config: DraftConfig, body: Body) -> Shapes:
    f, wide = config.features, feature_width(config)
    out: Shapes = {}
    if f.fused:
        out["fc.weight"] = (body.hidden, 2 * body.hidden if config.algorithm == "eagle" else wide)
        if f.bias:
            out["fc.bias"] = (body.hidden,)
    if f.norm == "each":
        out |= {f"fc_norm.{c}.weight": (f.width,) for c in range(len(f.taps))}
    if f.norm == "whole":
        out["input_norm.weight"] = (wide,)
    if config.algorithm != "eagle":
        out["norm.weight"] = (body.hidden,)
    if config.algorithm in ("dflash", "dflash2", "dspark"):
        out["hidden_norm.weight"] = (body.hidden,)
    if config.algorithm == "peagle":
        out["mask_hidden"] = (wide,)
    return out


def _layer(config: DraftConfig, b: Body, index: int) -> Shapes:
    at = f"layers.{index}"
    doubled = index == 0 and config.algorithm in ("eagle3", "peagle")  # embedding beside feature
    wide, queries, keys = b.hidden * (2 if doubled else 1), b.heads * b.head_dim, b.kv_heads * b.head_dim
    out: Shapes = {
        f"{at}.self_attn.q_proj.weight": (queries, wide),
        f"{at}.self_attn.k_proj.weight": (keys, wide),
        f"{at}.self_attn.v_proj.weight": (keys, wide),
        f"{at}.self_attn.o_proj.weight": (b.hidden, queries),
    }
    if "qkv" in b.biases:
        out |= {f"{at}.self_attn.{n}_proj.bias": (queries if n == "q" else keys,) for n in "qkv"}
    if "out" in b.biases:
        out[f"{at}.self_attn.o_proj.bias"] = (b.hidden,)
    if b.qk_norm:
        out |= {f"{at}.self_attn.{n}_norm.weight": (b.head_dim,) for n in "qk"}
    out |= {f"{at}.mlp.{n}_proj.weight": (b.mlp, b.hidden) for n in ("gate", "up")}
    out[f"{at}.mlp.down_proj.weight"] = (b.hidden, b.mlp)
    out[f"{at}.post_attention_layernorm.weight"] = (b.hidden,)
    if config.algorithm != "eagle" or index > 0:
        out[f"{at}.input_layernorm.weight"] = (b.hidden,)
    if doubled:
        out[f"{at}.hidden_norm.weight"] = (b.hidden,)
    return out


def _dspark(config: DraftConfig, hidden: int) -> Shapes:
    m, out = config.markov, Shapes()
    if m.kind != "none":
        out["markov.w1.weight"] = (config.vocab.target, m.rank)
        out["markov.w2.weight"] = (config.vocab.draft, m.rank)
    if m.kind == "gated":
        out |= {"markov.gate.weight": (m.rank, hidden + m.rank), "markov.gate.bias": (m.rank,)}
    if m.kind == "rnn":
        out |= {"markov.joint.weight": (3 * m.rank, 2 * m.rank + hidden), "markov.joint.bias": (3 * m.rank,)}
    if m.confidence != "none":
        out["confidence.weight"] = (1, hidden + (m.rank if m.confidence == "markov" else 0))
        out["confidence.bias"] = (1,)
    return out


def _dflash2(config: DraftConfig, b: Body) -> Shapes:
    p, out = config.paths, Shapes()
    if p is None:
        return out
    for i in range(b.layers):
        for name in ("attention", "mlp"):
            out[f"layers.{i}.{name}_conv.base"] = (2, p.taps, b.hidden)
            out[f"layers.{i}.{name}_conv.dynamic.weight"] = (2 * p.taps * (b.hidden // p.group), b.hidden)
    table = (config.vocab.target, p.rank)
    return out | {"paths.before.weight": table, "paths.after.weight": table, "paths.mix.weight": (p.rank, b.hidden)}


def _medusa(config: DraftConfig) -> Shapes:
    h, width = config.heads, config.features.width
    assert h is not None
    out: Shapes = {}
    for i in range(h.count):
        for j in range(h.blocks):
            out |= {f"heads.{i}.blocks.{j}.weight": (width, width), f"heads.{i}.blocks.{j}.bias": (width,)}
        if h.own:
            out[f"heads.{i}.head.weight"] = (config.vocab.target, width)
    return out
