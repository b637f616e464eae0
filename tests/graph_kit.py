"""A recorder of passes for CPUs: operations are written down once and replayed as they were, as CUDA graphs do.

What the host computed while recording is frozen: a pass that depends on a value of the host, or on a tensor made anew
for each pass, replays the old one and gives a wrong result. `replays` counts.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from slipstream.nets.graphs import Recording, Run


class _Log(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.steps: list[tuple[Any, Any, Any, Any, list[Any]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        read = tensors((args, kwargs))
        shapes = [(x.shape, x.data_ptr()) for x in read]
        self.steps.append((func, args, kwargs or {}, out, shapes))
        return out


class ReplayRecorder:
    """Stand in for `CudaRecorder`; `poison` overwrites outputs after recording, since only a replay gives them."""

    def __init__(self) -> None:
        self.recorded = self.replays = 0

    def record(self, run: Run) -> Recording:
        """Write down every operation of one call."""
        run()
        with _Log() as log:
            outputs = run()
        for x in outputs:
            x.fill_(float("nan"))
        self.recorded += 1
        return Recording(outputs, lambda: self._replay(log))

    def _replay(self, log: _Log) -> None:
        self.replays += 1
        for func, args, kwargs, out, shapes in log.steps:
            read = tensors((args, kwargs))
            assert [(x.shape, x.data_ptr()) for x in read] == shapes, f"{func}: a shape or a storage changed"
            again = func(*args, **kwargs)
            memory = {x.untyped_storage().data_ptr() for x in read}
            for old, new in zip(tensors(out), tensors(again), strict=True):
                # views and operations in place have written where they should
                if old.untyped_storage().data_ptr() not in memory:
                    old.copy_(new)


def tensors(tree: Any) -> list[Tensor]:
    """All tensors of nested arguments."""
    return [x for x in tree_flatten(tree)[0] if isinstance(x, Tensor)]
