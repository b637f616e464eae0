"""Read config.json into a `DecoderConfig`: one table per model family, and which checkpoint tensor feeds which weight.

In: the parsed config.json. Out: what the decoder needs, every default of the family filled in. A key that would change
the arithmetic in a way the decoder does not have is refused by name, never ignored. Reads no weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from slipstream.types import RequestError

ELSEWHERE = "`--target hf` runs it through transformers"

ACTIVATIONS = {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu_tanh", "gelu_new": "gelu_tanh"}
_ROPE_KEYS = {
    "default": set(),
    "linear": {"factor"},
    "llama3": {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"},
    "yarn": {
        *("factor", "original_max_position_embeddings", "attention_factor", "beta_fast", "beta_slow"),
        *("mscale", "mscale_all_dim", "truncate"),
    },
}
_LAYER = {
    "attn_in": ("input_layernorm",),
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "out": ("self_attn.o_proj",),
    "mlp_in": ("post_attention_layernorm",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}
_QK_NORM = {"q_norm": ("self_attn.q_norm",), "k_norm": ("self_attn.k_norm",)}
_SANDWICH = {
    "attn_out": ("post_attention_layernorm",),
    "mlp_in": ("pre_feedforward_layernorm",),
    "mlp_out": ("post_feedforward_layernorm",),
}


@dataclass(frozen=True)
class Rope:
    """One rotary table: base, kind of scaling and its parameters."""

    theta: float
    kind: str = "default"
    params: Mapping[str, Any] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class Family:
    """What one `model_type` fixes: defaults of config.json, checkpoint names, and its departures from Llama."""

    defaults: Mapping[str, Any]
    names: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: _LAYER)
    bias_keys: Mapping[str, str] = field(default_factory=dict)  # weight -> config key that switches its bias on
    always_bias: tuple[str, ...] = ()
    norm_offset: float = 0.0  # norms multiply by offset + weight
    scaled_embedding: bool = False


_BASE = {"max_position_embeddings": 2048, "rms_norm_eps": 1e-6, "hidden_act": "silu", "tie_word_embeddings": False}
_ATTENTION_BIAS = {"qkv": "attention_bias", "out": "attention_bias"}
_ALL_BIAS = {**_ATTENTION_BIAS, "gate_up": "mlp_bias", "down": "mlp_bias"}
_LONG = {**_BASE, "max_position_embeddings": 32768}

FAMILIES: dict[str, Family] = {
    "llama": Family(_BASE, bias_keys=_ALL_BIAS),
    "smollm3": Family({**_LONG, "tie_word_embeddings": True, "rope_theta": 2e6}, bias_keys=_ALL_BIAS),
    "mistral": Family({**_BASE, "max_position_embeddings": 131072, "sliding_window": 4096}),
    "qwen2": Family({**_LONG, "sliding_window": 4096, "max_window_layers": 28}, always_bias=("qkv",)),
    "qwen3": Family(
        {**_LONG, "head_dim": 128, "sliding_window": 4096, "max_window_layers": 28},
        names={**_LAYER, **_QK_NORM},
        bias_keys=_ATTENTION_BIAS,
    ),
    "gemma3_text": Family(
        {
            **{**_BASE, "max_position_embeddings": 131072, "hidden_act": "gelu_pytorch_tanh", "head_dim": 256},
            **{"tie_word_embeddings": True, "query_pre_attn_scalar": 256, "sliding_window": 4096},
            **{"sliding_window_pattern": 6, "rope_theta": 1e6, "rope_local_base_freq": 1e4},
        },
        names={**_LAYER, **_QK_NORM, **_SANDWICH},
        bias_keys=_ATTENTION_BIAS,
        norm_offset=1.0,
        scaled_embedding=True,
    ),
}


@dataclass(frozen=True)
class DecoderConfig:
    """Everything the decoder needs to know. `windows` and `ropes` have one entry per layer (None: full, no rope)."""

    family: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp: int
    vocab: int  # rows of the embedding; a decoder's own `config.vocab` is the number of real ids
    max_len: int
    windows: tuple[int | None, ...]
    ropes: tuple[Rope | None, ...]
    scale: float
    eps: float = 1e-6
    activation: str = "silu"
    tied: bool = False
    biases: tuple[str, ...] = ()
    names: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: _LAYER, hash=False)
    norm_offset: float = 0.0
    embed_scale: float | None = None
    logit_cap: float | None = None
    dtype: str = "float32"


def read_config(raw: Mapping[str, Any]) -> DecoderConfig:
    """Turn a parsed config.json into a `DecoderConfig`; raise RequestError for anything the decoder does not have."""
    kind = raw.get("model_type")
    if kind not in FAMILIES:
        raise RequestError(f"model_type {kind!r} is not one of {', '.join(FAMILIES)}; {ELSEWHERE}")
    family = FAMILIES[kind]
    cfg = {**family.defaults, **{k: v for k, v in raw.items() if v is not None or k == "sliding_window"}}
    _refuse(kind, cfg)
    layers, heads, hidden = (_need(cfg, k) for k in ("num_hidden_layers", "num_attention_heads", "hidden_size"))
    kinds = _layer_types(kind, cfg, layers)
    head_dim = cfg.get("head_dim") or hidden // heads
    return DecoderConfig(
        family=kind,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=_kv_heads(cfg, heads),
        head_dim=head_dim,
        mlp=_need(cfg, "intermediate_size"),
        vocab=_need(cfg, "vocab_size"),
        max_len=cfg["max_position_embeddings"],
        windows=tuple(_window(cfg) if k == "sliding_attention" else None for k in kinds),
        ropes=_ropes(kind, cfg, kinds),
        scale=cfg.get("query_pre_attn_scalar", head_dim) ** -0.5 if kind == "gemma3_text" else head_dim**-0.5,
        eps=cfg["rms_norm_eps"],
        activation=_activation(cfg),
        tied=bool(cfg["tie_word_embeddings"]),
        biases=(*family.always_bias, *(w for w, key in family.bias_keys.items() if cfg.get(key))),
        names=family.names,
        norm_offset=family.norm_offset,
        embed_scale=hidden**0.5 if family.scaled_embedding else None,
        logit_cap=cfg.get("final_logit_softcapping") if kind == "gemma3_text" else None,
        dtype=str(cfg.get("dtype") or cfg.get("torch_dtype") or "float32").removeprefix("torch."),
    )


def _need(cfg: Mapping[str, Any], key: str) -> int:
    value = cfg.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise RequestError(f"config.json: {key} is {value!r}; a positive integer is needed")
    return value


def _kv_heads(cfg: Mapping[str, Any], heads: int) -> int:
    kv = cfg.get("num_key_value_heads") or heads
    if heads % kv:
        raise RequestError(f"config.json: num_attention_heads {heads} is not a multiple of num_key_value_heads {kv}")
    return kv


def _refuse(kind: str, cfg: Mapping[str, Any]) -> None:
    """Name the keys that change the arithmetic in ways the decoder does not have."""
    for key in ("quantization_config", "use_bidirectional_attention", "attn_logit_softcapping"):
        if cfg.get(key):
            raise RequestError(f"config.json: {key} {cfg[key]!r} is not supported by the native target; {ELSEWHERE}")
    if cfg.get("partial_rotary_factor", 1.0) != 1.0:
        raise RequestError(
            f"config.json: partial_rotary_factor {cfg['partial_rotary_factor']!r} must be 1; {ELSEWHERE}"
        )


def _activation(cfg: Mapping[str, Any]) -> str:
    key = "hidden_activation" if "hidden_activation" in cfg else "hidden_act"
    if cfg[key] not in ACTIVATIONS:
        raise RequestError(f"config.json: {key} {cfg[key]!r} is not one of {', '.join(ACTIVATIONS)}; {ELSEWHERE}")
    return ACTIVATIONS[cfg[key]]


def _window(cfg: Mapping[str, Any]) -> int:
    return _need(cfg, "sliding_window")


def _layer_types(kind: str, cfg: Mapping[str, Any], layers: int) -> list[str]:
    """Say "full_attention" or "sliding_attention" for each layer, by the family's own rule when the file does not."""
    full, sliding = "full_attention", "sliding_attention"
    window = cfg.get("sliding_window")
    if kind == "llama":
        return [full] * layers
    if kind == "mistral":
        return [full if window is None else sliding] * layers
    given = cfg.get("layer_types")
    if given is not None:
        if len(given) != layers or not set(given) <= {full, sliding}:
            raise RequestError(f"config.json: layer_types {given!r} must be {layers} of {full!r} or {sliding!r}")
        off = kind != "gemma3_text" and not cfg.get("use_sliding_window")
        if off and sliding in given:
            raise RequestError("config.json: layer_types has 'sliding_attention' but use_sliding_window is not true")
        return list(given)
    if kind == "gemma3_text":
        return [sliding if (i + 1) % cfg["sliding_window_pattern"] else full for i in range(layers)]
    if not cfg.get("use_sliding_window") or window is None:
        return [full] * layers
    if kind == "smollm3":
        return [full if rope else sliding for rope in _with_rope(cfg, layers)]
    return [sliding if i >= cfg["max_window_layers"] else full for i in range(layers)]


def _with_rope(cfg: Mapping[str, Any], layers: int) -> list[bool]:
    given = cfg.get("no_rope_layers")  # despite its name, 1 marks a layer WITH rope
    if given is None:
        every = cfg.get("no_rope_layer_interval", 4)
        return [(i + 1) % every != 0 for i in range(layers)]
    if len(given) < layers:
        raise RequestError(f"config.json: no_rope_layers has {len(given)} entries for {layers} layers")
    return [bool(x) for x in given[:layers]]


def _ropes(kind: str, cfg: Mapping[str, Any], kinds: list[str]) -> tuple[Rope | None, ...]:
    params = cfg.get("rope_scaling") or cfg.get("rope_parameters") or {}
    if kind == "gemma3_text":
        tables = _gemma_ropes(cfg)
        return tuple(tables[k] for k in kinds)
    rope = read_rope(params, cfg, cfg.get("rope_theta", 10000.0))
    if kind == "smollm3":
        return tuple(rope if on else None for on in _with_rope(cfg, len(kinds)))
    return tuple(rope for _ in kinds)


def _gemma_ropes(cfg: Mapping[str, Any]) -> dict[str, Rope]:
    nested = cfg.get("rope_parameters") or {}
    unknown = set(nested) - {"full_attention", "sliding_attention"}
    if unknown:
        raise RequestError(f"config.json: rope_parameters has unknown key {sorted(unknown)[0]!r}; {ELSEWHERE}")
    far = {**(nested.get("full_attention") or {}), **(cfg.get("rope_scaling") or {})}
    near = nested.get("sliding_attention") or {}
    return {
        "full_attention": read_rope(far, cfg, cfg["rope_theta"]),
        "sliding_attention": read_rope(near, cfg, cfg["rope_local_base_freq"]),
    }


def read_rope(params: Mapping[str, Any], cfg: Mapping[str, Any], theta: float, remedy: str = ELSEWHERE) -> Rope:
    """Check one rope dictionary: its kind and every key in it must be known; `remedy` says what would work instead."""
    kind = params.get("rope_type") or params.get("type") or "default"
    if kind not in _ROPE_KEYS:
        raise RequestError(f"config.json: rope_type {kind!r} is not one of {', '.join(_ROPE_KEYS)}; {remedy}")
    rest = {k: v for k, v in params.items() if k not in {"rope_type", "type", "rope_theta"}}
    if rest.pop("partial_rotary_factor", 1.0) != 1.0:
        raise RequestError(
            f"config.json: partial_rotary_factor {params['partial_rotary_factor']!r} must be 1; {remedy}"
        )
    for key in rest:
        if key not in _ROPE_KEYS[kind]:
            raise RequestError(f"config.json: rope parameter {key!r} is not known for rope_type {kind!r}; {remedy}")
    if kind in {"llama3", "yarn"}:
        length = rest.get("original_max_position_embeddings") or cfg["max_position_embeddings"]
        rest["original_max_position_embeddings"] = cfg.get("original_max_position_embeddings") or length
    required = {"linear": ("factor",), "llama3": ("factor", "low_freq_factor", "high_freq_factor"), "yarn": ("factor",)}
    for key in required.get(kind, ()):
        if not isinstance(rest.get(key), int | float):
            raise RequestError(f"config.json: rope_type {kind!r} needs a number for {key!r}, not {rest.get(key)!r}")
    return Rope(float(params.get("rope_theta") or theta), kind, rest)
