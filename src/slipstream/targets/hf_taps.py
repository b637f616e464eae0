"""Read hidden states out of a transformers model while it runs.

In: the model and the tap numbers of `types.Target`. Out: {tap: [T, H]} of the last forward. It hooks the decoder layers
rather than ask for `output_hidden_states`, whose last entry is normalised and whose first some families leave out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from slipstream.types import RequestError, WorkError


def find_layers(model: Any, count: int) -> nn.ModuleList | None:
    """Return the outermost list of `count` modules: the decoder's layers. None when there is no such list."""
    lists = (m for m in model.base_model.modules() if isinstance(m, nn.ModuleList) and len(m) == count)
    return next(lists, None)


class Taps:
    """Hooks for some taps of a model: `clear` before a forward, `seal` after each pass of it, `take` when done."""

    def __init__(self, model: Any, wanted: tuple[int, ...], layers: int) -> None:
        self.wanted = wanted
        self._seen: dict[int, Tensor] = {}  # the pass now running
        self._done: dict[int, list[Tensor]] = {}
        blocks = find_layers(model, layers) if layers else None
        for tap in wanted:
            self._hook(model, blocks, layers, tap)

    def clear(self) -> None:
        """Forget earlier passes."""
        self._seen.clear()
        self._done.clear()

    def seal(self) -> None:
        """Close one pass of the model: the next one continues the same sequence."""
        for tap, state in self._seen.items():
            self._done.setdefault(tap, []).append(state)
        self._seen.clear()

    def take(self, rows: int, hidden: int) -> Mapping[int, Tensor]:
        """Return {tap: [rows, H]}, the last `rows` positions since `clear`, and forget them."""
        out = {}
        for tap in self.wanted:
            states = self._done.pop(tap, [])
            shape = tuple(states[0].shape) if states else ()
            if len(shape) != 3 or shape[-1] != hidden:
                raise WorkError(
                    f"tap {tap}: the model left {shape or 'nothing'}, not [1, T, {hidden}]; it cannot feed this drafter"
                )
            out[tap] = torch.cat(states, dim=1)[0, -rows:]
        return out

    def _hook(self, model: Any, blocks: nn.ModuleList | None, layers: int, tap: int) -> None:
        kind = getattr(model.config, "model_type", type(model).__name__)
        if not -1 <= tap <= layers:
            raise RequestError(
                f"tap {tap}: model {kind!r} has {layers} layers; taps are -1 (after the final norm) to {layers}"
            )
        if tap == -1 and model.base_model is not model:
            model.base_model.register_forward_hook(lambda _m, _args, out: self._note(-1, out))
        elif tap >= 0 and blocks is not None and tap < layers:
            blocks[tap].register_forward_pre_hook(lambda _m, args, kw: self._note(tap, args, kw), with_kwargs=True)
        elif tap >= 0 and blocks is not None:
            blocks[layers - 1].register_forward_hook(lambda _m, _args, out: self._note(tap, out))
        else:
            raise RequestError(
                f"tap {tap}: the layers of model {kind!r} were not found; use a drafter that needs no taps"
            )

    def _note(self, tap: int, found: Any, named: Mapping[str, Any] | None = None) -> None:
        state: Any = found
        if not isinstance(found, Tensor):
            state = found[0] if len(found) else (named or {}).get("hidden_states")
        if tap in self._seen:
            raise WorkError(
                f"tap {tap}: the model runs that layer more than once per pass; use a drafter that needs no taps"
            )
        self._seen[tap] = state
