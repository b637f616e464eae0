"""Pack a model's weights for the kernels, once, and make the decoder.

In: a source of weights and a weight format. Out: a `KernelDecoder`. Every tensor must be there and none left over.
Formats: `none` bfloat16; `int4` groups of 32 in four bits, 8 bits for the output layer and for what its file keeps
finer, activations rounded to 8 bits; `int8` groups of 32 in eight bits; `w8a8` the same with 8-bit activations.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from slipstream.kernels.decoder import KernelDecoder, KernelNet, PackedWeights, rope_tables, rounded_scale
from slipstream.kernels.linear import Linear, Table
from slipstream.kernels.rows import Rows, Source
from slipstream.nets.decoder import sizes_of
from slipstream.nets.weights import as_dtype
from slipstream.types import RequestError

# format -> kind of a layer's weights, kind of embedding, output layer and weights marked fine
FORMATS = {"none": ("bf16", "bf16"), "int4": ("q4a8", "w8a8"), "int8": ("q8", "q8"), "w8a8": ("w8a8", "w8a8")}


@dataclass(frozen=True)
class Kinds:
    """What a model's weights are held as: `head` stands for what a file keeps finer than four bits too."""

    layer: str
    head: str
    embedding: str

    @classmethod
    def of(cls, quantize: str, *, coarse: bool = False) -> Kinds:
        """Return those of a format; `coarse`: a head as coarse as the layers, for a model that only guesses."""
        if quantize not in FORMATS:
            raise RequestError(f"quantize {quantize!r} is not one of {', '.join(FORMATS)}")
        layer, fine = FORMATS[quantize]
        return cls(layer, layer if coarse else fine, fine)


def load_kernel_decoder(
    source: Source,
    quantize: str | Kinds = "none",
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
    vocab, sizes = sizes_of(source.config, vocab, max_rows=max_rows, max_len=max_len, max_nodes=max_nodes)
    kinds = Kinds.of(quantize) if isinstance(quantize, str) else quantize
    net = _Builder(source, kinds, as_dtype(dtype, source.config.dtype), vocab).build()
    source.finish()
    return KernelDecoder(net, vocab=vocab, kv=kv, **sizes)


class _Builder:
    """Builds the network of one source."""

    def __init__(self, source: Source, kinds: Kinds, dtype: torch.dtype, vocab: int) -> None:
        from slipstream.kernels import _native

        self.native, self.source, self.config = _native, source, source.config
        self.kinds = {part: getattr(_native.Kind, kind) for part, kind in vars(kinds).items()}
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
        decoder = self.native.Decoder(
            [c.hidden, c.heads, c.kv_heads, c.head_dim, c.mlp, self.vocab],
            [c.scale, c.eps, rounded_scale(c, self.dtype), c.logit_cap or 0.0],
            c.activation == "gelu_tanh",
            0,
        )
        tables = {rope: index for index, rope in enumerate(rope_tables(c))}
        for index, rope in enumerate(c.ropes):
            self._layer(decoder, index, -1 if rope is None else tables[rope])
        embedding, head = self._tables()
        decoder.set_embedding(embedding)
        decoder.set_head(self._norm("model.norm.weight", c.hidden), head)
        weights = PackedWeights(Table(embedding), self.matrices, [Linear.of(part) for part in head])
        net = KernelNet(c, decoder, weights, self.dtype)
        net.vocab = self.vocab
        return net

    def _tables(self) -> tuple[list[Any], list[Any]]:
        """Return the embedding's matrices and the head's; a tied embedding is the head, and the rows it lacks."""
        size = (self.config.vocab, self.config.hidden)
        rows = self.source.rows("model.embed_tokens.weight", size)
        own = rows if self.config.tied else self.source.rows("lm_head.weight", size)
        head = self._pack([own.first(self.vocab)], [], "head")
        if not self.config.tied or self.kinds["head"] != self.kinds["embedding"]:
            return self._pack([rows], [], "embedding"), head
        rest = rows.after(self.vocab)
        return (head + self._pack([rest], [], "embedding") if rest.count else head), head

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

    def _pack(self, parts: list[Rows], biases: list[Tensor], what: str = "layer") -> list[Any]:
        """Pack weights that share their input; neighbours of one format become one matrix."""
        made, at = [], 0
        for (kind, form), group in groupby(parts, lambda part: (self._kind(part, what), part.format)):
            members = list(group)
            bias = torch.cat(biases[at : at + len(members)]).float().contiguous() if biases else None
            at += len(members)
            made.append(self._matrix(kind, form, members, bias))
        self.matrices += made
        return made

    def _kind(self, part: Rows, what: str) -> Any:
        if part.format.startswith("q4"):
            return self.kinds["layer"]  # 4-bit codes stay what they are
        return self.kinds["head" if part.fine and what == "layer" else what]

    def _matrix(self, kind: Any, form: str, parts: list[Rows], bias: Tensor | None) -> Any:
        source = getattr(self.native.Source, form)
        out = sum(part.count for part in parts)
        matrix = self.native.matrix(kind, source, out, parts[0].cols, 0 if bias is None else bias.data_ptr())
        first = 0
        for block in (block for part in parts for block in part.blocks()):
            matrix.pack(source, block.address, first, block.count)
            first += block.count
            self.source.drop_pages()
        return matrix
