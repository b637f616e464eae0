"""Pack a model's weights for the kernels, once, and make the decoder.

In: a source of weights and a weight format. Out: a `KernelDecoder`. Every tensor must be there and none left over.
Formats: `none` bfloat16; `int4` groups of 32 in four bits, 8 bits for the output layer and for what its file keeps
finer, activations rounded to 8 bits; `int8` groups of 32 in eight bits; `w8a8` the same with 8-bit activations.
"""

from __future__ import annotations

from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from slipstream.kernels.decoder import KernelDecoder, KernelNet, PackedWeights, rope_tables, rounded_scale
from slipstream.kernels.linear import Linear
from slipstream.kernels.rows import Rows, Source
from slipstream.nets.weights import as_dtype
from slipstream.types import RequestError

# format -> kind of a layer's weights, kind of the output layer and of weights marked fine
FORMATS = {"none": ("bf16", "bf16"), "int4": ("q4a8", "w8a8"), "int8": ("q8", "q8"), "w8a8": ("w8a8", "w8a8")}


def load_kernel_decoder(
    source: Source,
    quantize: str = "none",
    dtype: str | torch.dtype = "auto",
    *,
    vocab: int | None = None,
    max_rows: int = 1,
    max_len: int | None = None,
    max_nodes: int = 64,
    kv: torch.dtype = torch.bfloat16,
) -> KernelDecoder:
    """Load a decoder with `max_rows` cache slots; sizes as in `nets.decoder.load_decoder`.

    `dtype` is what hidden states are handed out in, `kv` what keys and values are kept in.
    """
    config = source.config
    vocab = config.vocab if vocab is None else vocab
    max_len = config.max_len if max_len is None else max_len
    if not 1 <= vocab <= config.vocab:
        raise RequestError(f"vocab {vocab} is not in 1..{config.vocab}, the rows of the model's embedding")
    for name, value in (("max_rows", max_rows), ("max_len", max_len), ("max_nodes", max_nodes)):
        if value < 1:
            raise RequestError(f"{name} {value} must be at least 1")
    if quantize not in FORMATS:
        raise RequestError(f"quantize {quantize!r} is not one of {', '.join(FORMATS)}")
    net = _Builder(source, quantize, as_dtype(dtype, config.dtype), vocab).build()
    source.finish()
    return KernelDecoder(net, vocab=vocab, max_rows=max_rows, max_len=max_len, max_nodes=max_nodes, kv=kv)


class _Builder:
    """Builds the network of one source."""

    def __init__(self, source: Source, quantize: str, dtype: torch.dtype, vocab: int) -> None:
        from slipstream.kernels import _native

        self.native, self.source, self.config = _native, source, source.config
        self.kinds = [getattr(_native.Kind, kind) for kind in FORMATS[quantize]]
        self.dtype, self.vocab = dtype, vocab
        self.matrices: list[Any] = []
        c = self.config
        queries, keys = c.heads * c.head_dim, c.kv_heads * c.head_dim
        self.shapes: dict[str, tuple[tuple[int, int], ...]] = {
            "qkv": ((queries, c.hidden), (keys, c.hidden), (keys, c.hidden)),
            "out": ((c.hidden, queries),),
            "gate_up": ((c.mlp, c.hidden), (c.mlp, c.hidden)),
            "down": ((c.hidden, c.mlp),),
        }

    def build(self) -> KernelNet:
        c = self.config
        table = self.source.values("model.embed_tokens.weight", (c.vocab, c.hidden))
        embed = table.to(torch.bfloat16, copy=True).contiguous()
        del table
        decoder = self.native.Decoder(
            [c.hidden, c.heads, c.kv_heads, c.head_dim, c.mlp, self.vocab],
            [c.scale, c.eps, rounded_scale(c, self.dtype), c.logit_cap or 0.0],
            c.activation == "gelu_tanh",
            embed.data_ptr(),
        )
        tables = {rope: index for index, rope in enumerate(rope_tables(c))}
        for index, rope in enumerate(c.ropes):
            self._layer(decoder, index, -1 if rope is None else tables[rope])
        head = "model.embed_tokens.weight" if c.tied else "lm_head.weight"
        rows = self.source.rows(head, (c.vocab, c.hidden)).first(self.vocab)
        parts = self._pack([rows], [], head=True)
        decoder.set_head(self._norm("model.norm.weight", c.hidden), parts)
        weights = PackedWeights(embed, self.matrices, [Linear.of(part) for part in parts])
        net = KernelNet(c, decoder, weights, self.dtype)
        net.vocab = self.vocab
        return net

    def _layer(self, decoder: Any, index: int, rope: int) -> None:
        norms: dict[str, list[float]] = {}
        maps: dict[str, list[Any]] = {}
        for part, names in self.config.names.items():
            prefixed = [f"model.layers.{index}.{name}" for name in names]
            if part not in self.shapes:
                size = self.config.head_dim if part in ("q_norm", "k_norm") else self.config.hidden
                norms[part] = self._norm(f"{prefixed[0]}.weight", size)
                continue
            shapes = self.shapes[part]
            rows = [self.source.rows(f"{n}.weight", s) for n, s in zip(prefixed, shapes, strict=True)]
            biases = []
            if part in self.config.biases:
                biases = [self.source.values(f"{n}.bias", s[:1]) for n, s in zip(prefixed, shapes, strict=True)]
            maps[part] = self._pack(rows, biases)
        window = self.config.windows[index] or 0
        decoder.add_layer(norms, maps["qkv"], maps["out"], maps["gate_up"], maps["down"], window, rope)

    def _norm(self, name: str, size: int) -> list[float]:
        weight: list[float] = (self.source.values(name, (size,)).float() + self.config.norm_offset).tolist()
        return weight

    def _pack(self, parts: list[Rows], biases: list[Tensor], head: bool = False) -> list[Any]:
        """Pack weights that share their input; neighbours of one format become one matrix."""
        made, at = [], 0
        for (kind, form), group in groupby(parts, lambda part: (self._kind(part, head), part.format)):
            members = list(group)
            bias = torch.cat(biases[at : at + len(members)]).float().contiguous() if biases else None
            at += len(members)
            made.append(self._matrix(kind, form, members, bias))
        self.matrices += made
        return made

    def _kind(self, part: Rows, head: bool) -> Any:
        coded = part.format.startswith("q4")  # codes stay as they are, in the output layer too
        return self.kinds[1 if not coded and (head or part.fine) else 0]

    def _matrix(self, kind: Any, form: str, parts: list[Rows], bias: Tensor | None) -> Any:
        source = getattr(self.native.Source, form)
        out = sum(part.count for part in parts)
        matrix = self.native.matrix(kind, source, out, parts[0].cols, 0 if bias is None else bias.data_ptr())
        first = 0
        for block in (block for part in parts for block in part.blocks()):
            matrix.pack(source, block.address, first, block.count)
            first += block.count
        return matrix
