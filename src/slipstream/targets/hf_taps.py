"""Read hidden states out of a transformers model while it runs.

In: the model and the tap numbers of `types.Target`. Out: {tap: [T, H]} of the last forward. It hooks the decoder layers
rather than ask for `output_hidden_states`, whose last entry is normalised and whose first some families leave out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from slipstream.types import RequestError, WorkError


def find_layers(model: Any, count: int) -> nn.ModuleList | None:
    """Return the outermost list of `count` modules: the decoder's layers. None when there is no such list."""
    lists = (m for m in model.base_model.modules() if isinstance(m, nn.ModuleList) and len(m) == count)
    return next(lists, None)


class Taps:
    """Some taps of a model: `clear` before a forward, each pass of it within `listen`, `take` when done.

    Hooks stay on the model only within `listen`: it may be shared, and is the caller's own outside.
    """

    def __init__(self, model: Any, wanted: tuple[int, ...], layers: int) -> None:
        self.wanted = wanted
        self._done: dict[int, list[Tensor]] = {tap: [] for tap in wanted}
        blocks = find_layers(model, layers) if layers else None
        self._places = [_place(model, blocks, layers, tap) for tap in wanted]

    def clear(self) -> None:
        """Forget earlier passes."""
        for states in self._done.values():
            states.clear()

    @contextmanager
    def listen(self) -> Iterator[None]:
        """Note the taps of one pass; a further pass continues the same tokens."""
        seen: dict[int, Tensor] = {}
        handles = [
            _hook(module, before, tap, seen) for tap, (module, before) in zip(self.wanted, self._places, strict=True)
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
        for tap, state in seen.items():
            self._done[tap].append(state)

    def take(self, rows: int, hidden: int) -> Mapping[int, Tensor]:
        """Return {tap: [rows, H]}, the last `rows` positions since `clear`, and forget them."""
        out = {}
        for tap in self.wanted:
            states = self._done[tap]
            shape = tuple(states[0].shape) if states else ()
            if len(shape) != 3 or shape[-1] != hidden:
                raise WorkError(
                    f"tap {tap}: the model left {shape or 'nothing'}, not [1, T, {hidden}]; it cannot feed this drafter"
                )
            out[tap] = torch.cat(states, dim=1)[0, -rows:]
        self.clear()
        return out


def _place(model: Any, blocks: nn.ModuleList | None, layers: int, tap: int) -> tuple[nn.Module, bool]:
    kind = getattr(model.config, "model_type", type(model).__name__)
    if blocks is not None and not -1 <= tap <= layers:
        raise RequestError(f"tap {tap}: model {kind!r} has {layers} layers; use -1 (after the final norm) to {layers}")
    if tap == -1 and model.base_model is not model:
        return model.base_model, False
    if tap == -1 or blocks is None:
        raise RequestError(f"tap {tap}: its place in model {kind!r} was not found; use a drafter that needs no taps")
    return (blocks[tap], True) if tap < layers else (blocks[layers - 1], False)


def _hook(module: nn.Module, before: bool, tap: int, seen: dict[int, Tensor]) -> RemovableHandle:
    def note(found: Any, named: Mapping[str, Any]) -> None:
        state: Any = found
        if not isinstance(found, Tensor):
            state = found[0] if len(found) else named.get("hidden_states")
        if tap in seen:
            raise WorkError(f"tap {tap}: the model runs that layer twice per pass; use a drafter that needs no taps")
        seen[tap] = state

    if before:
        return module.register_forward_pre_hook(lambda _module, args, named: note(args, named), with_kwargs=True)
    return module.register_forward_hook(lambda _module, _args, out: note(out, {}))
