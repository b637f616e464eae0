"""llama-cpp-python with its prompt lookup, ten tokens per guess as ours by default."""

from __future__ import annotations

from slipstream.measure.peers import Generate, Task
from slipstream.measure.peers.hf_lookup import DRAFT_TOKENS
from slipstream.measure.peers.llama_cpp import generator


def open_peer(task: Task) -> Generate:
    """Return decoding that guesses from the prompt."""
    from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

    return generator(task, draft_model=LlamaPromptLookupDecoding(num_pred_tokens=DRAFT_TOKENS))
