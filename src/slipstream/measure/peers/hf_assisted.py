"""transformers `generate` with a draft model (its "assisted" mode), draft length as transformers chooses it."""

from __future__ import annotations

from slipstream.measure.peers import NO_DRAFT, Generate, Task
from slipstream.measure.peers.hf import generator, load
from slipstream.types import RequestError


def open_peer(task: Task) -> Generate:
    """Return `generate` with the task's draft model; without one it is an error."""
    if task.draft_folder is None:
        raise RequestError(NO_DRAFT.format("hf-assisted"))
    if task.draft_folder == task.folder:  # two objects: transformers changes settings of both
        return generator(task, assistant_model=load.__wrapped__(task.draft_folder, task.dtype, task.device))
    return generator(task, assistant_model=load(task.draft_folder, task.dtype, task.device))
