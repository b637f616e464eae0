"""An accelerator for machines that have none: tensors on the CPU that say they are on "cuda", and tell when one waits.

Everything an accelerator would make its host wait for is counted by name in `waits`: a value read, a size that depends
on values, a mask as an index, a copy from or to ordinary memory. Mixing its tensors with those of the host, which a
real one refuses, is an error. `with FakeDevice() as fake:` it exists; `fake.put(x)` moves a tensor there, uncounted.
"""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map_only

CUDA = torch.device("cuda", 0)
ASKS = {"_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero", "unique_dim", "_unique2", "item"}


class Far(Tensor):
    """A tensor that says it is on the accelerator; `near` is where its values are."""

    near: Tensor

    @staticmethod
    def __new__(cls, near: Tensor) -> Far:
        """Wrap a tensor of the host."""
        far: Far = torch.Tensor._make_wrapper_subclass(
            cls, near.size(), near.stride(), near.storage_offset(), dtype=near.dtype
        )
        far.near = near
        return far

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """Where it says it is: to torch itself it is on the CPU, which would look for a device otherwise."""
        return CUDA

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        """As `device`."""
        return True

    @property
    def is_cpu(self) -> bool:  # type: ignore[override]
        """As `device`."""
        return False

    def __repr__(self) -> str:  # type: ignore[override]
        return f"Far({self.near!r})"

    def tolist(self) -> Any:  # type: ignore[override]
        """Read the values, which waits."""
        FakeDevice.now.waits["tolist"] += 1
        return self.near.tolist()

    def data_ptr(self) -> int:  # type: ignore[override]
        """Where the values are."""
        return self.near.data_ptr()

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return FakeDevice.now.run(func, args, kwargs or {})


class FakeDevice(TorchDispatchMode):
    """The device, there while the context is open."""

    now: FakeDevice

    def __init__(self) -> None:
        super().__init__()
        self.waits: Counter[str] = Counter()
        self._stack = ExitStack()

    def put(self, x: Tensor) -> Tensor:
        """Move a tensor there."""
        return x if isinstance(x, Far) else Far(x)

    def __enter__(self) -> FakeDevice:
        FakeDevice.now = self
        self._stack.enter_context(_Python(self))
        # tensors of a class of one's own cannot be detached under inference mode
        self._stack.enter_context(
            mock.patch.object(torch, "inference_mode", side_effect=lambda mode=True: torch.no_grad())
        )
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._stack.close()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.run(func, args, kwargs or {})

    def run(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Do an operation where its tensors are."""
        name = func.overloadpacket.__name__
        tensors = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, Tensor)]
        far = [x for x in tensors if isinstance(x, Far)]
        if not far:
            return func(*args, **kwargs)
        asked = self._asked(name, args, tensors)
        if asked:
            self.waits[asked] += 1
        if name != "copy_":
            wrong = [x for x in tensors if not isinstance(x, Far) and x.dim()]
            assert not wrong, f"{func}: tensors of the host {[tuple(x.shape) for x in wrong]} among the device's"
        out = func(*tree_map_only(Far, _near, args), **tree_map_only(Far, _near, kwargs))
        if func._schema.is_mutable and isinstance(out, Tensor):
            return args[0]
        return tree_map_only(Tensor, Far, out)

    def _asked(self, name: str, args: Any, tensors: list[Tensor]) -> str | None:
        if name in ASKS:
            return name
        if name == "copy_" and len({isinstance(x, Far) for x in tensors}) == 2:
            return None if isinstance(args[0], Far) and len(args) > 2 and args[2] else "copy_"
        if name in {"index", "index_put", "index_put_"}:
            masks = [x for x in args[1] if x is not None and x.dtype in {torch.bool, torch.uint8}]
            return f"{name} by a mask" if masks else None
        return None


class _Python(TorchFunctionMode):
    """Data of Python that is made a tensor of the device is a copy from ordinary memory; some calls never dispatch."""

    def __init__(self, device: FakeDevice) -> None:
        super().__init__()
        self.device = device

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is Tensor.numpy and isinstance(args[0], Far):
            raise TypeError("can't convert a tensor of the device to numpy")
        if func is Tensor.cpu or (func is Tensor.to and any(_is_cpu(x) for x in (*args[1:], *kwargs.values()))):
            if not isinstance(args[0], Far):
                return func(*args, **kwargs)
            self.device.waits["to the host"] += 1
            return args[0].near
        if func is torch.device or not any(_is_far(x) for x in (*args, *kwargs.values())):
            return func(*args, **kwargs)
        args = tuple(x for x in args if not _is_far(x))
        kwargs = {key: x for key, x in kwargs.items() if not _is_far(x)}
        waits = func in {torch.tensor, torch.as_tensor}
        if func is Tensor.to:
            waits = not kwargs.pop("non_blocking", False) and not isinstance(args[0], Far)
        if waits:
            self.device.waits[func.__name__] += 1
        out = args[0] if func is Tensor.to and len(args) == 1 and not kwargs else func(*args, **kwargs)
        return out if isinstance(out, Far) else Far(out)


def _is_far(device: Any) -> bool:
    return isinstance(device, str | torch.device) and str(device).startswith("cuda")


def _is_cpu(device: Any) -> bool:
    return isinstance(device, str | torch.device) and str(device) == "cpu"


def _near(x: Far) -> Tensor:
    return x.near
