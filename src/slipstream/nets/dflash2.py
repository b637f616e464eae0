"""DFlash 2 (Inco AI and Z Lab, 2026): a DFlash body with convolutions along its block, and scores of token pairs.

In: as for DFlash. Out: the states of a block's slots, the likeliest tokens of each, and how well each of them follows
the token chosen before it: S(a, b) = U(b) + <A(a) * h, B(b)> with the slot's logits U, its projected state h and two
tables A and B. Which token is chosen is not decided here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from slipstream.nets.dflash import DFlashNet, Sublayer
from slipstream.nets.draft_config import DraftConfig, Paths, Tables
from slipstream.nets.draft_layers import Cast
from slipstream.types import RequestError


class Convolutions:
    """The two convolutions around a sublayer: before it and behind it, both steered by its normed input.

    The coefficient of a tap is a fixed one for each channel plus one for each group of channels that the row gives.
    """

    def __init__(self, cast: Cast, name: str, paths: Paths) -> None:
        self.base = cast(f"{name}.base")  # [2, T, H]
        self.dynamic = cast.map(f"{name}.dynamic")
        self.taps, self.group = paths.taps, paths.group

    def __call__(self, x: Tensor, size: int, run: Callable[[Tensor], Tensor]) -> Tensor:
        """Rows [B * S, H], S = `size` -> the sublayer's output [B * S, H]."""
        kernels = self.dynamic(x).view(-1, size, 2, self.taps, x.shape[1] // self.group, 1)
        kernels = kernels + self.base.unflatten(-1, (-1, self.group))  # [B, S, 2, T, groups, G]
        return self._along(run(self._along(x, kernels[:, :, 0])), kernels[:, :, 1])

    def _along(self, x: Tensor, kernels: Tensor) -> Tensor:
        """Add up each slot's taps; a block has nothing before its first slot."""
        slots = x.view(*kernels.shape[:2], *kernels.shape[3:])  # [B, S, groups, G]
        out = kernels[:, :, 0] * slots
        for tap in range(1, min(self.taps, slots.shape[1])):
            out[:, tap:] += kernels[:, tap:, tap] * slots[:, :-tap]
        return out.view(x.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of memory held."""
        return self.base.nbytes + self.dynamic.nbytes


class DFlash2Net(DFlashNet):
    """A DFlash network that also tells which of a slot's tokens follow which. Token ids are the target's."""

    def __init__(
        self,
        config: DraftConfig,
        tensors: Mapping[str, Tensor],
        tables: Tables,
        *,
        max_rows: int,
        max_len: int,
        max_nodes: int,
    ) -> None:
        bare = replace(tables, embed=tables.bare_embed or tables.embed, head=tables.bare_head or tables.head)
        super().__init__(config, tensors, bare, max_rows=max_rows, max_len=max_len, max_nodes=max_nodes)
        self.paths = _checked(config, self.body.hidden)
        cast = Cast.of(tensors, tables)
        places: tuple[Sublayer, ...] = ("attention", "mlp")
        self.convolutions = {
            (place, i): Convolutions(cast, f"layers.{i}.{place}_conv", self.paths)
            for i in range(self.body.layers)
            for place in places
        }
        self._before, self._after = (
            _padded(cast.table(f"paths.{n}.weight"), tables.vocab) for n in ("before", "after")
        )
        self._mix = cast.map("paths.mix")

    def around(self, which: Sublayer, index: int, x: Tensor, size: int, run: Callable[[Tensor], Tensor]) -> Tensor:
        """Run a sublayer between its two convolutions."""
        return self.convolutions[which, index](x, size, run)

    def embed(self, tokens: Tensor) -> Tensor:
        """Ids [R] -> [R, H]: the target's rows as stored, times the drafter's own scale."""
        rows, scale = self.tables.embed(tokens), self.paths.embed_scale
        return rows if scale == 1.0 else rows * scale

    @torch.no_grad()
    def logits(self, states: Tensor) -> Tensor:
        """States after the final norm [R, H] -> logits [R, Vd], with the drafter's own scale and cap."""
        logits, cap = self.tables.head(states), self.paths.logit_cap
        if self.paths.logit_scale != 1.0:
            logits = logits * self.paths.logit_scale
        return logits if cap is None else torch.tanh(logits / cap) * cap

    @torch.no_grad()
    def mixed(self, states: Tensor) -> Tensor:
        """States after the final norm [R, H] -> what `scores` needs of them [R, r]."""
        return self._mix(states)

    @torch.no_grad()
    def scores(self, mixed: Tensor, previous: Tensor, tokens: Tensor, logits: Tensor) -> Tensor:
        """Score tokens [R, K] with these logits [R, K] as followers of the tokens previous [R] -> [R, K]."""
        context = self._before[previous] * mixed  # [R, r]
        edges = (self._after[tokens].to(context.dtype) @ context[:, :, None])[:, :, 0]
        return logits + edges.to(logits.dtype)

    @property
    def nbytes(self) -> int:
        """Bytes of the weights, the target's tables not counted."""
        own = (self._before, self._after, self._mix)
        around = sum(each.nbytes for each in self.convolutions.values())
        return super().nbytes + around + sum(part.nbytes for part in own)


def _checked(config: DraftConfig, hidden: int) -> Paths:
    paths = config.paths
    if paths is None:
        raise RequestError(f"a {config.algorithm} drafter without its convolutions and tables cannot choose paths")
    if paths.taps < 1 or paths.group < 1 or hidden % paths.group:
        raise RequestError(
            f"convolutions of {paths.taps} taps in groups of {paths.group}: at least 1 tap, and groups that divide the "
            f"width {hidden}, are needed"
        )
    if paths.top_k < 1:
        raise RequestError(f"top_k={paths.top_k!r} must be at least 1")
    return paths


def _padded(table: Tensor, ids: int) -> Tensor:
    """Give ids the file has no row for (a target padded further) a row of zeros: no preference."""
    return torch.nn.functional.pad(table, (0, 0, 0, max(0, ids - table.shape[0])))
