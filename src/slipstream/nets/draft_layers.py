"""The layers of a draft network over ragged rows, with one cache slot per row: shared by the EAGLE and DFlash families.

In: rows [R, in], R = the rows of all segments one after the other, and a plan of who sees what. Out: rows [R, H]. Keys
and values are written behind what a slot has committed; only `keep` commits. What feeds a layer, which norms it has
and what its output means is the network's business.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass

import torch
from torch import Tensor

from slipstream.nets.attention import Sight, attend
from slipstream.nets.draft_config import Body, Tables
from slipstream.nets.kv_cache import CacheShape, KVCache
from slipstream.nets.layers import Map, MapMaker, RopeTable, gated, linear, rms_norm, rotate
from slipstream.types import RequestError

_FOLD_LIMIT = 32


@dataclass(frozen=True)
class Segment:
    """The rows of one slot in a pass, written at cache places `at`, `at` + 1, ...

    `positions` are theirs; committed place p holds position p. `seen` [rows, columns] bool says which of the places
    `base`, base + 1, ... up to the last one written each row sees; what is before `base` is seen by all, less what lies
    outside a layer's window. `behind` are the positions of the places from `base` to `at`, written by earlier passes
    over the same scratch. `seen` None: a chain, each row sees what is written before it, and itself.
    """

    slot: int
    at: int
    positions: Seq[int]
    base: int = 0
    seen: Tensor | None = None
    behind: Seq[int] = ()

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.positions)


@dataclass(frozen=True)
class Plan:
    """One pass: its segments, rotations [R, 1, D], and per window what each segment sees."""

    segments: Seq[Segment]
    cos: Tensor
    sin: Tensor
    sights: Mapping[int | None, list[Sight]]


@dataclass
class DraftLayer:
    """One layer's weights; norms it does not have are None."""

    q: Map
    kv: Map
    out: Map
    gate_up: Map
    down: Map
    mlp_in: Tensor
    attn_in: Tensor | None = None
    hidden_norm: Tensor | None = None
    q_norm: Tensor | None = None
    k_norm: Tensor | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of memory held."""
        return sum(part.nbytes for part in vars(self).values() if part is not None)


class Cast:
    """Tensors by canonical name, converted to one dtype on one device when taken; `maps` makes the linear maps."""

    def __init__(
        self,
        tensors: Mapping[str, Tensor],
        dtype: torch.dtype,
        device: torch.device,
        maps: MapMaker | None = None,
    ) -> None:
        self.tensors, self.dtype, self.device, self.maps = tensors, dtype, device, maps

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor], tables: Tables) -> Cast:
        """Return the tensors of a drafter as a network that shares these tables takes them."""
        return cls(tensors, tables.dtype, tables.device, tables.maps)

    def __call__(self, name: str) -> Tensor:
        """Return a tensor that must be there."""
        return self.tensors[name].to(self.device, self.dtype)

    def get(self, name: str) -> Tensor | None:
        """Return a tensor, or None when the drafter has none of that name."""
        return self(name) if name in self.tensors else None

    def map(self, *names: str, last: bool = False) -> Map:
        """Return the maps of these names (without ".weight") fused into one: outputs side by side."""
        bias = self._joined([f"{name}.bias" for name in names]) if f"{names[0]}.bias" in self.tensors else None
        weights = [f"{name}.weight" for name in names]
        if self.maps is None:
            return linear(self._joined(weights), bias, last=last)
        stored = [self.tensors[weight] for weight in weights]
        return self.maps(stored[0] if len(stored) == 1 else torch.cat(stored), bias, last=last)

    def table(self, name: str) -> Tensor:
        """Return a table of which rows are taken and then converted: as the file has it where that is narrower."""
        stored = self.tensors[name].to(self.device)
        return stored if stored.dtype.itemsize < self.dtype.itemsize else stored.to(self.dtype)

    def _joined(self, names: list[str]) -> Tensor:
        return torch.cat([self(name) for name in names])

    def layer(self, index: int) -> DraftLayer:
        """Return one layer."""
        at = f"layers.{index}"
        attn = f"{at}.self_attn"
        return DraftLayer(
            q=self.map(f"{attn}.q_proj"),
            kv=self.map(f"{attn}.k_proj", f"{attn}.v_proj"),
            out=self.map(f"{attn}.o_proj"),
            gate_up=self.map(f"{at}.mlp.gate_proj", f"{at}.mlp.up_proj"),
            down=self.map(f"{at}.mlp.down_proj"),
            mlp_in=self(f"{at}.post_attention_layernorm.weight"),
            attn_in=self.get(f"{at}.input_layernorm.weight"),
            hidden_norm=self.get(f"{at}.hidden_norm.weight"),
            q_norm=self.get(f"{attn}.q_norm.weight"),
            k_norm=self.get(f"{attn}.k_norm.weight"),
        )


class DraftLayers:
    """The layers and their cache: `max_rows` slots of `max_len` committed places and `scratch` places behind them."""

    def __init__(self, body: Body, cast: Cast, *, max_rows: int, max_len: int, scratch: int, offset: int = 0) -> None:
        self.offset = offset  # added to every rotary position
        self.body, self.layers = body, [cast.layer(i) for i in range(body.layers)]
        self.dtype, self.device = cast.dtype, cast.device
        self.rope = RopeTable(body.rope, body.head_dim, cast.dtype, cast.device)
        shape = CacheShape(body.layers, max_rows, body.kv_heads, body.head_dim, max_len, scratch)
        self.cache = KVCache(shape, cast.dtype, cast.device)

    def plan(self, segments: Seq[Segment], *, sights: bool = True) -> Plan:
        """Work out rotations and masks once, for all layers; `sights` False: for writing only, no masks."""
        shape = self.cache.shape
        for s in segments:
            if not 0 <= s.slot < shape.rows or s.at + s.rows > shape.max_len + shape.scratch:
                raise RequestError(f"slot {s.slot}: places {s.at}..{s.at + s.rows} are outside the drafter's cache")
        positions = [p + self.offset for s in segments for p in s.positions]
        cos, sin = self.rope.rows(torch.tensor(positions, device=self.device), max(positions))
        windows = set(self.body.windows) if sights else ()
        return Plan(segments, cos, sin, {w: [self._sight(s, w) for s in segments] for w in windows})

    def attention(self, index: int, x: Tensor, plan: Plan) -> Tensor:
        """Attend rows x [R, in] to their slots and to themselves -> [R, H]; writes their keys and values."""
        b, w = self.body, self.layers[index]
        q = w.q(x).view(x.shape[0], b.heads, b.head_dim)
        q = rotate(q if w.q_norm is None else rms_norm(q, w.q_norm, b.eps), plan.cos, plan.sin)
        self.write(index, x, plan)
        out, at = [], 0
        for s, sight in zip(plan.segments, plan.sights[b.windows[index]], strict=True):
            kv = self.cache.read(index, s.slot, sight.begin, sight.end)
            out.append(attend(q[at : at + s.rows], kv, sight, b.head_dim**-0.5))
            at += s.rows
        return w.out(out[0] if len(out) == 1 else torch.cat(out))

    def write(self, index: int, x: Tensor, plan: Plan) -> None:
        """Write the keys and values of rows x [R, in] at their places."""
        b, w = self.body, self.layers[index]
        k, v = w.kv(x).view(x.shape[0], 2 * b.kv_heads, b.head_dim).chunk(2, dim=1)
        k = rotate(k if w.k_norm is None else rms_norm(k, w.k_norm, b.eps), plan.cos, plan.sin)
        at = 0
        for s in plan.segments:
            self.cache.write(index, s.slot, s.at, k[at : at + s.rows], v[at : at + s.rows])
            at += s.rows

    def attn_norm(self, index: int, x: Tensor) -> Tensor:
        """The norm before a layer's attention, where it has one: [R, H] -> [R, H]."""
        weight = self.layers[index].attn_in
        return x if weight is None else rms_norm(x, weight, self.body.eps)

    def mlp(self, index: int, x: Tensor) -> Tensor:
        """The gated MLP of a layer, with its norm: [R, H] -> [R, H], without the residual."""
        return self.bare_mlp(index, self.mlp_norm(index, x))

    def mlp_norm(self, index: int, x: Tensor) -> Tensor:
        """The norm before a layer's MLP: [R, H] -> [R, H]."""
        return rms_norm(x, self.layers[index].mlp_in, self.body.eps)

    def bare_mlp(self, index: int, x: Tensor) -> Tensor:
        """The gated MLP of a layer over normed rows: [R, H] -> [R, H]."""
        w = self.layers[index]
        return w.down(gated(w.gate_up(x), self.body.activation))

    def length(self, slot: int) -> int:
        """Return the committed places of a slot."""
        return self.cache.lengths[slot]

    def keep(self, slot: int, length: int) -> None:
        """Commit places up to `length` (written before), or forget those from it on; 0 empties the slot."""
        self.cache.lengths[slot] = length

    @property
    def nbytes(self) -> int:
        """Bytes of the weights."""
        return sum(layer.nbytes for layer in self.layers)

    @property
    def row_bytes(self) -> int:
        """Bytes one token of one row takes in the cache."""
        b = self.body
        return 2 * b.layers * b.kv_heads * b.head_dim * self.dtype.itemsize

    def _sight(self, s: Segment, window: int | None) -> Sight:
        end = s.at + s.rows
        seen = torch.ones(s.rows, end, dtype=torch.bool)
        if s.seen is None:
            seen &= torch.arange(end)[None] <= torch.arange(s.at, end)[:, None]
        else:
            seen[:, s.base :] = s.seen
        begin = 0
        if window is not None:
            own = torch.tensor(list(s.positions))
            at = torch.arange(end)  # the position of each place
            at[s.at :] = own
            if s.behind:
                at[s.base : s.at] = torch.tensor(list(s.behind))
            seen &= at[None] > own[:, None] - window
            begin = int(seen.any(0).int().argmax())
            seen = seen[:, begin:]
        folded, mask = s.rows <= _FOLD_LIMIT, None
        if not bool(seen.all()):
            groups = self.body.heads // self.body.kv_heads if folded else 1
            mask = torch.zeros(seen.shape, dtype=self.dtype).masked_fill_(~seen, float("-inf"))
            mask = mask.repeat(groups, 1).to(self.device)
        return Sight(begin, end, mask, folded)
