"""The parts of a decoder's layer around its attention, compiled into few kernels (torch.compile), where asked for.

In: a decoder. Out: one over the same weights whose layers are compiled. What they round along the way differs from the
parts as written. The first passes take a minute or two. Not used for prompts, whose passes are few and large.
"""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from slipstream.nets.decoder import Decoder

COMPILE = "SLIPSTREAM_COMPILE"


def compiled(net: Decoder, **options: Any) -> Decoder:
    """Return a copy of a decoder that shares its weights and compiles its layers; options are torch.compile's."""
    # a few graphs for each decoder; dynamo's own limit counts those of all decoders together
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, 64)
    net = copy.copy(net)
    net.before = Compiled(net.before, options)  # type: ignore[assignment, method-assign]
    net.after = Compiled(net.after, options)  # type: ignore[assignment, method-assign]
    return net


def wanted() -> bool:
    """Say whether the user asked for compiled layers."""
    return os.environ.get(COMPILE) == "1"


class Compiled:
    """A function compiled at its first call; one that cannot be runs as it is written, and says so once."""

    def __init__(self, written: Callable[..., Any], options: dict[str, Any]) -> None:
        # sizes are fixed until a second one is seen, so weights keep theirs and rows do not
        self._run, self._written = torch.compile(written, fullgraph=True, **options), written

    def __call__(self, *args: Any) -> Any:
        """Call it; nothing is written to before compiling has succeeded."""
        try:
            return self._run(*args)
        except torch._dynamo.exc.TorchDynamoException as error:
            if self._run is self._written:
                raise
            self._run = self._written
            line = str(error).strip().splitlines()[0]
            warnings.warn(f"layers cannot be compiled ({line}): they run as written", RuntimeWarning, stacklevel=2)
            return self._written(*args)
