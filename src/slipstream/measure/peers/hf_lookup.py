"""transformers `generate` with prompt lookup, ten tokens per guess as ours by default."""

from __future__ import annotations

from slipstream.measure.peers import Generate, Task
from slipstream.measure.peers.hf import generator

DRAFT_TOKENS = 10


def open_peer(task: Task) -> Generate:
    """Return `generate` that guesses from the prompt."""
    return generator(task, prompt_lookup_num_tokens=DRAFT_TOKENS)
