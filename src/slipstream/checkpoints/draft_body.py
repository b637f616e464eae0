"""Read the transformer body, taps and vocabulary of a drafter, for every layout that has them.

In: a `Reading` and the part of config.json that describes the layers. Out: `Body`, `Features`, `Vocab`. Dimensions come
from the tensors and must agree with config.json; a key that changes the arithmetic in a way the nets lack is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from slipstream.checkpoints.draft_names import numbered
from slipstream.checkpoints.draft_reading import Reading
from slipstream.nets.draft_config import Body, Features, Vocab
from slipstream.nets.families import ACTIVATIONS, Rope, read_rope

Raw = Mapping[str, Any]
_FULL, _SLIDING = "full_attention", "sliding_attention"
_NO_REMEDY = "no drafter here has it"


def read_body(
    r: Reading,
    cfg: Raw,
    *,
    head_dim: bool = True,
    bias_keys: Mapping[str, str] | None = None,
    windows: tuple[int | None, ...] | None = None,
    scaled_rope: bool = True,
) -> Body:
    """Return the layers. `bias_keys`: map -> the key that switches its bias on; absent, the tensors decide.

    `head_dim` False: the layout has no such key and takes hidden_size / heads. `scaled_rope` False: scalings are
    not applied by the layout's training.
    """
    _refuse(r, cfg)
    hidden, heads = r.need("hidden_size", cfg), r.need("num_attention_heads", cfg)
    kv_heads = r.integer("num_key_value_heads", cfg) or heads
    if heads % kv_heads:
        raise r.wrong(f"num_attention_heads {heads} is not a multiple of num_key_value_heads {kv_heads}")
    layers = count_layers(r, cfg)
    return Body(
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=_head_dim(r, cfg, (hidden, heads, kv_heads), head_dim),
        mlp=r.need("intermediate_size", cfg),
        windows=layer_windows(r, cfg, layers) if windows is None else windows,
        eps=_number(r, cfg, "rms_norm_eps", 1e-6),
        rope=read_draft_rope(r, cfg, scaled=scaled_rope),
        activation=_activation(r, cfg),
        qk_norm="layers.0.self_attn.q_norm.weight" in r.shapes,
        biases=_biases(r, cfg, bias_keys),
    )


def count_layers(r: Reading, cfg: Raw) -> int:
    """Count the layers in the tensors; EAGLE configs copied from a target may claim others, elsewhere that is wrong."""
    layers = len(numbered(r.shapes, "layers.{i}.self_attn.q_proj.weight"))
    if layers == 0:
        raise r.damaged(f"tensor {r.own('layers.0.self_attn.q_proj.weight')} is missing")
    claimed = r.integer("num_hidden_layers", cfg)
    if claimed is not None and claimed != layers:
        text = f"num_hidden_layers is {claimed}; the tensors have {layers} layer{'s' if layers > 1 else ''}"
        if r.layout.algorithm not in ("eagle", "eagle3"):
            raise r.wrong(text)
        r.notes.append(f"{text}: the tensors are right")
    return layers


def layer_windows(r: Reading, cfg: Raw, layers: int) -> tuple[int | None, ...]:
    """Return each layer's window, None for full attention."""
    kinds = cfg.get("layer_types")
    if kinds is None:
        on = cfg.get("use_sliding_window") and cfg.get("sliding_window")
        first = cfg.get("max_window_layers", 28) if on else layers
        return tuple(r.need("sliding_window", cfg) if i >= first else None for i in range(layers))
    if not isinstance(kinds, list) or len(kinds) != layers:
        raise r.wrong(f"layer_types is {kinds!r}; one entry for each of the {layers} layers is needed")
    odd = [k for k in kinds if k not in (_FULL, _SLIDING)]
    if odd:
        raise r.wrong(f"layer_types has {odd[0]!r}; {_FULL!r} or {_SLIDING!r} is needed")
    return tuple(r.need("sliding_window", cfg) if k == _SLIDING else None for k in kinds)


def read_draft_rope(r: Reading, cfg: Raw, *, scaled: bool = True) -> Rope:
    """Return the drafter's own rotary table: v5 keys before v4 ones, base 10000 where the file has none."""
    params = dict(cfg.get("rope_parameters") or cfg.get("rope_scaling") or {})
    stated = params.get("rope_theta") or cfg.get("rope_theta")
    if not scaled and params:
        if (params.get("rope_type") or params.get("type") or "default") != "default":
            r.notes.append("rope scaling is ignored: this layout's training does not apply it")
        params = {}
    partial = cfg.get("partial_rotary_factor") or params.get("partial_rotary_factor") or 1.0
    if partial != 1.0:
        raise r.wrong(f"partial_rotary_factor is {partial!r}; 1 is needed, {_NO_REMEDY}")
    known = {"max_position_embeddings": 2048, **{k: v for k, v in cfg.items() if v is not None}}
    try:
        rope = read_rope(params, known, float(stated or 10000.0), _NO_REMEDY)
    except ValueError as error:
        raise r.wrong(str(error).removeprefix("config.json: ")) from None
    theirs = r.facts.rope_theta if r.facts else None
    if theirs is not None and theirs != rope.theta:
        where = "rope_theta" if stated else "rope_theta is missing: base"
        r.notes.append(
            f"{where} {rope.theta:g} differs from the target's {theirs:g}; `slipstream doctor` compares both"
        )
    return rope


def concat_features(
    r: Reading, taps: Sequence[int], width: int, norm: Literal["none", "each", "whole"] = "none"
) -> Features:
    """Return features of which fc takes all side by side; its width must be their number times `width`."""
    shape = r.shapes.get("fc.weight")
    if shape is None:
        raise r.damaged(f"tensor {r.own('fc.weight')} is missing")
    wide = shape[-1]
    if wide != len(taps) * width:
        fits = (
            f"{wide // width} layers of width {width}" if wide % width == 0 else f"no number of layers of width {width}"
        )
        raise r.damaged(
            f"tensor {r.own('fc.weight')} is {list(shape)}: it reads {fits}, not the {len(taps)} of {r.layout.title}"
            f"{_hint(wide, width)}"
        )
    bias = "fc.bias" in r.shapes
    return Features(taps=tuple(taps), width=width, norm=norm, bias=bias)


def tap_norm(r: Reading) -> Literal["none", "each", "whole"]:
    """Say which norm the taps get; the flags and the tensors must agree."""
    each, whole = r.flag("fc_norm", False), r.flag("norm_before_fc", False)
    if each and whole:
        raise r.wrong("fc_norm and norm_before_fc are both true; one of them at most is possible")
    for on, key, tensor in ((each, "fc_norm", "fc_norm.0.weight"), (whole, "norm_before_fc", "input_norm.weight")):
        if on != (tensor in r.shapes):
            state = "missing" if on else "there"
            raise r.wrong(f"{key} is {str(on).lower()} but tensor {r.own(tensor)} is {state}")
    return "each" if each else "whole" if whole else "none"


def read_taps(r: Reading, key: str, ids: object, shift: int, lowest: int = 0) -> tuple[int, ...]:
    """Turn the file's layer numbers, from `lowest` on, into ours, `shift` higher: they rise and are the target's."""
    if "taps" in r.given:
        return tuple(r.given["taps"])
    listed = r.ids(key, ids)
    taps = [i + shift for i in listed]
    for at, (tap, number) in enumerate(zip(taps, listed, strict=True)):
        if at and tap <= taps[at - 1]:
            raise r.wrong(f"{key} is {listed}; the numbers must rise and none may come twice ({number})")
    layers = r.target_layers()
    if listed[0] < lowest or (layers is not None and taps[-1] > layers):
        number = listed[0] if listed[0] < lowest else listed[-1]
        bounds = f"{lowest} to {layers - shift}" if layers is not None else f"{lowest} on"
        raise r.wrong(f"{key} has {number}; the target's layers go from {bounds}")
    if taps[-1] == layers and not r.given.get("final_layer"):
        raise r.wrong(
            f"{key} has {listed[-1]}, the target's last layer: whether its state before or after the final norm is "
            "meant differs between trainers; final_layer=True reads the one before the norm"
        )
    return tuple(taps)


def read_vocab(r: Reading, cfg: Raw) -> Vocab:
    """Return both vocabulary sizes and which tables the file brings."""
    shapes = r.shapes
    embed, head = shapes.get("embed.weight"), shapes.get("head.weight")
    target = r.integer("vocab_size", cfg)
    if target is None:
        target = shapes["t2d"][0] if "t2d" in shapes else embed[0] if embed else r.facts.vocab if r.facts else None
    if target is None:
        raise r.wrong("vocab_size is missing; the number of the target's ids is needed")
    draft = r.integer("draft_vocab_size") or (head[0] if head else target)
    if head is None and draft != target:
        raise r.damaged(
            f"tensor {r.own('head.weight')} is missing: the target's head has {target} rows, the drafter's "
            f"vocabulary draft_vocab_size {draft}"
        )
    return Vocab(target, draft, own_embed=embed is not None, own_head=head is not None)


def mask_token(r: Reading, *places: tuple[str, Raw]) -> int:
    """Return the mask token's id, from the caller or the first place that has it."""
    if "mask_token" in r.given:
        return int(r.given["mask_token"])
    for key, cfg in places:
        found = r.integer(key.rpartition(".")[2], cfg, least=0)
        if found is not None:
            return found
    raise r.wrong(f"{places[0][0]} is missing; the id that the drafter was trained with must be given (mask_token)")


def target_width(r: Reading, hidden: int) -> int:
    """Return the width of a tap: the file's word for it, else the drafter's own width."""
    return r.integer("target_hidden_size") or hidden


def _hint(wide: int, width: int) -> str:
    if wide == 5 * width:
        return "; five is what DeepSpec's EAGLE-3 and DFlash drafters for it have"
    if wide == 2 * width:
        return "; two is what EAGLE-1 (embedding and feature) has"
    if wide == 3 * width:
        return "; three is what EAGLE-3 of SafeAILab, SpecForge or speculators has"
    return ""


def _head_dim(r: Reading, cfg: Raw, sizes: tuple[int, int, int], explicit: bool) -> int:
    hidden, heads, kv_heads = sizes
    stated = r.integer("head_dim", cfg) if explicit else None
    if stated is None and hidden % heads:
        raise r.wrong(f"hidden_size {hidden} is not a multiple of num_attention_heads {heads} and head_dim is missing")
    found = stated or hidden // heads
    for name, count in (("q", heads), ("k", kv_heads), ("v", kv_heads)):
        shape = r.shapes.get(f"layers.0.self_attn.{name}_proj.weight")
        if shape and shape[0] != count * found:
            key = "head_dim" if stated else "hidden_size / num_attention_heads"
            raise r.damaged(
                f"tensor {r.own(f'layers.0.self_attn.{name}_proj.weight')} has {shape[0]} rows; {count} heads of {key} "
                f"{found} ask for {count * found}"
            )
    norm = r.shapes.get("layers.0.self_attn.q_norm.weight")
    if norm and norm != (found,):
        raise r.damaged(f"tensor {r.own('layers.0.self_attn.q_norm.weight')} is {list(norm)}; head_dim is {found}")
    return found


def _biases(r: Reading, cfg: Raw, keys: Mapping[str, str] | None) -> tuple[str, ...]:
    found = []
    for part, name in (("qkv", "q_proj"), ("out", "o_proj")):
        tensor = f"layers.0.self_attn.{name}.bias"
        there = tensor in r.shapes
        key = None if keys is None else keys.get(part)
        asked = r.flag(key, False, cfg) if key else there
        if asked != there:
            state = "missing" if asked else "there"
            raise r.wrong(f"{key} is {str(asked).lower()} but tensor {r.own(tensor)} is {state}")
        if there:
            found.append(part)
    return tuple(found)


def _activation(r: Reading, cfg: Raw) -> str:
    name = cfg.get("hidden_act") or "silu"
    if name not in ACTIVATIONS:
        raise r.wrong(f"hidden_act {name!r} is not one of {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]


def _number(r: Reading, cfg: Raw, key: str, default: float) -> float:
    value = cfg.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        raise r.wrong(f"{key} is {value!r}; a positive number is needed")
    return float(value)


def _refuse(r: Reading, cfg: Raw) -> None:
    for key in ("quantization_config", "mlp_bias", "attn_logit_softcapping"):
        if cfg.get(key):
            raise r.wrong(f"{key} is {cfg[key]!r}; {_NO_REMEDY}")
