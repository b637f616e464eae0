"""Checkpoint folders in, fused weights out: safetensors, one file or sharded.

Every tensor must be there, of the right shape, and none may be left over: a checkpoint that almost fits is a different
model. Weights are copied out of the files, so a file replaced later cannot change a running model. No arithmetic here.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from slipstream.nets.families import DecoderConfig
from slipstream.nets.layers import Linear, Map, MapMaker, linear
from slipstream.types import RequestError, WorkError

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_DTYPES = {
    **{"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "float64": torch.float64},
    **{"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16},
}


@dataclass
class LayerWeights:
    """One layer. Norms a family does not have are None; names are those of `families.py`."""

    attn_in: Tensor
    qkv: Map
    out: Map
    mlp_in: Tensor
    gate_up: Map
    down: Map
    attn_out: Tensor | None = None
    mlp_out: Tensor | None = None
    q_norm: Tensor | None = None
    k_norm: Tensor | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of memory held."""
        return sum(part.nbytes for part in vars(self).values() if part is not None)


@dataclass
class Weights:
    """All weights of a decoder. `head` yields exactly the real token ids."""

    embed: Tensor  # [V, H]
    layers: list[LayerWeights]
    norm: Tensor  # [H]
    head: Map

    @property
    def nbytes(self) -> int:
        """Bytes of memory held; a tied head counts once unless it is packed."""
        tied = isinstance(self.head, Linear) and self.head.weight.data_ptr() == self.embed.data_ptr()
        layers = sum(layer.nbytes for layer in self.layers)
        return self.embed.nbytes + self.norm.nbytes + layers + (0 if tied else self.head.nbytes)


def as_dtype(name: str | torch.dtype, auto: str = "float32") -> torch.dtype:
    """Turn "float32", "bf16", ... or "auto" (then `auto`) into a torch dtype."""
    if isinstance(name, torch.dtype):
        return name
    chosen = auto if name == "auto" else name
    if chosen not in _DTYPES:
        raise RequestError(f"dtype {chosen!r} is not one of auto, float32, bfloat16, float16")
    return _DTYPES[chosen]


def read_json(path: Path) -> dict[str, Any]:
    """Read one JSON object of a checkpoint folder."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RequestError(
            f"{path}: no such file; a model folder with config.json and *.safetensors is needed"
        ) from None
    except (OSError, ValueError) as error:
        raise WorkError(f"{path}: not readable as JSON ({error})") from None
    if not isinstance(value, dict):
        raise WorkError(f"{path}: holds a {type(value).__name__}, not an object")
    return value


class Checkpoint:
    """The tensors of a folder by name. Remembers which were taken, so that `finish` can name what is left over."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._open: dict[str, Any] = {}
        self._taken: set[str] = set()
        self._files: dict[str, str] = {}
        if (folder / _INDEX).exists():
            self._files = _weight_map(folder / _INDEX)
        elif (folder / _SINGLE).exists():
            self._files = dict.fromkeys(self._file(_SINGLE).keys(), _SINGLE)
        else:
            raise WorkError(f"{folder}: neither {_SINGLE} nor {_INDEX} is there")

    def take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Return one tensor, still in the file's dtype; it must have this shape."""
        if name not in self._files:
            raise WorkError(f"{self.folder}: tensor {name} {list(shape)} is missing")
        file = self._files[name]
        try:
            tensor = self._file(file).get_tensor(name)
        except WorkError:
            raise
        except Exception as error:
            raise WorkError(f"{self.folder / file}: tensor {name} cannot be read ({error})") from None
        if tuple(tensor.shape) != shape:
            raise WorkError(
                f"{self.folder / file}: tensor {name} is {list(tensor.shape)}; config.json asks for {list(shape)}"
            )
        self._taken.add(name)
        return tensor

    def close(self) -> None:
        """Close the files; they are opened again for the next tensor."""
        self._open.clear()

    def finish(self, ignore: tuple[str, ...] = ()) -> None:
        """Raise WorkError if a tensor was never taken, save names that end like one of `ignore`."""
        for name in sorted(set(self._files) - self._taken):
            if not name.endswith(ignore):
                raise WorkError(f"{self.folder / self._files[name]}: tensor {name} is unknown to this model_type")

    def _file(self, name: str) -> Any:
        if name not in self._open:
            from safetensors import safe_open

            try:
                self._open[name] = safe_open(self.folder / name, framework="pt", device="cpu")
            except FileNotFoundError:
                raise WorkError(f"{self.folder / name}: named in {_INDEX} but not there") from None
            except Exception as error:
                raise WorkError(f"{self.folder / name}: damaged or truncated safetensors file ({error})") from None
        return self._open[name]


def _weight_map(index: Path) -> dict[str, str]:
    names = read_json(index).get("weight_map")
    if not isinstance(names, dict):
        raise WorkError(f"{index}: has no weight_map")
    return names


class _Loader:
    """Builds the weights of one decoder from a checkpoint, in one dtype on one device; `make` makes its maps."""

    def __init__(
        self, files: Checkpoint, config: DecoderConfig, dtype: torch.dtype, device: torch.device, make: MapMaker
    ) -> None:
        self.files, self.config, self.dtype, self.device, self.make = files, config, dtype, device, make
        self.norm_dtype = dtype
        if config.norm_offset and dtype.itemsize < 4:
            self.norm_dtype = torch.float32  # 1 + w must not be rounded before it multiplies
        c = config
        queries, keys = c.heads * c.head_dim, c.kv_heads * c.head_dim
        self.shapes: dict[str, tuple[tuple[int, ...], ...]] = {
            "qkv": ((queries, c.hidden), (keys, c.hidden), (keys, c.hidden)),
            "out": ((c.hidden, queries),),
            "gate_up": ((c.mlp, c.hidden), (c.mlp, c.hidden)),
            "down": ((c.hidden, c.mlp),),
            "q_norm": ((c.head_dim,),),
            "k_norm": ((c.head_dim,),),
        }

    def matrix(self, name: str, shape: tuple[int, int]) -> Tensor:
        return self._own([self.files.take(name, shape)])

    def norm(self, name: str, size: int) -> Tensor:
        weight = self.files.take(name, (size,)).to(self.device, self.norm_dtype, copy=True)
        return weight.add_(self.config.norm_offset)

    def layer(self, index: int) -> LayerWeights:
        parts: dict[str, Any] = {}
        for part, names in self.config.names.items():
            prefixed = [f"model.layers.{index}.{name}" for name in names]
            shapes = self.shapes.get(part)
            if shapes is None or part.endswith("_norm"):
                parts[part] = self.norm(f"{prefixed[0]}.weight", shapes[0][0] if shapes else self.config.hidden)
                continue
            weight = self._own([self.files.take(f"{n}.weight", s) for n, s in zip(prefixed, shapes, strict=True)])
            bias = None
            if part in self.config.biases:
                bias = self._own([self.files.take(f"{n}.bias", s[:1]) for n, s in zip(prefixed, shapes, strict=True)])
            parts[part] = self.make(weight, bias)
        return LayerWeights(**parts)

    def _own(self, tensors: list[Tensor]) -> Tensor:
        """Fuse and convert in one copy."""
        shape = (sum(t.shape[0] for t in tensors), *tensors[0].shape[1:])
        out = torch.empty(shape, dtype=self.dtype, device=self.device)
        for part, tensor in zip(out.split([t.shape[0] for t in tensors]), tensors, strict=True):
            part.copy_(tensor)
        return out


def load_weights(
    folder: Path,
    config: DecoderConfig,
    vocab: int,
    dtype: torch.dtype,
    device: torch.device,
    make: MapMaker = linear,
) -> Weights:
    """Load and fuse every weight of a decoder; `vocab` cuts the head to the real token ids, `make` makes the maps."""
    files = Checkpoint(folder)
    load = _Loader(files, config, dtype, device, make)
    size = (config.vocab, config.hidden)
    embed = load.matrix("model.embed_tokens.weight", size)
    head = embed if config.tied else load.matrix("lm_head.weight", size)
    layers = [load.layer(i) for i in range(config.layers)]
    norm = load.norm("model.norm.weight", config.hidden)
    files.finish(ignore=("rotary_emb.inv_freq", *(("lm_head.weight",) if config.tied else ())))
    return Weights(embed, layers, norm, make(head[:vocab], last=True))
