"""transformers `generate`: plain, and the loop that its two speculative modes share.

Weights are loaded once per folder and kept. Prompts of a batch are padded on the left, as transformers wants it. Output
ends with the end-of-text id, as ours does; padding after it is dropped.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from slipstream.measure.peers import First, Generate, Task
from slipstream.types import WorkError


def open_peer(task: Task) -> Generate:
    """Return plain `generate`."""
    return generator(task)


def generator(task: Task, **extra: Any) -> Generate:
    """Return `generate` with additional keyword arguments, greedy or sampling as the task says."""
    model = load(task.folder, task.dtype, task.device)
    model.generation_config.eos_token_id = list(task.eos_ids) or None
    model.generation_config.pad_token_id = pad = task.eos_ids[0] if task.eos_ids else 0
    options = {**_sampling(task), **extra}
    if task.first is not None:
        options["streamer"] = _Streamer(task.first)

    def run(prompts: list[list[int]], seeds: list[int], max_tokens: int) -> list[list[int]]:
        import torch

        width = max(map(len, prompts))
        ids = torch.tensor([[pad] * (width - len(p)) + p for p in prompts], device=model.device)  # [B, T]
        mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts], device=model.device)
        with torch.random.fork_rng(enabled=task.temperature > 0), torch.inference_mode():
            torch.manual_seed(seeds[0])
            found = model.generate(ids, attention_mask=mask, max_new_tokens=max_tokens, **options)
        return [ended(row, task.eos_ids) for row in found[:, width:].tolist()]

    return run


class _Streamer:
    """What `generate` tells its tokens: the prompt, then every new piece."""

    def __init__(self, first: First) -> None:
        self._first, self._prompt = first, True

    def put(self, value: Any) -> None:
        if not self._prompt:
            self._first.mark(int(value.numel()))
        self._prompt = False

    def end(self) -> None:
        self._prompt = True


@cache
def load(folder: Path, dtype: Any, device: str) -> Any:
    """Return transformers' own model of a folder, on its device, ready to run."""
    from transformers import AutoModelForCausalLM
    from transformers.utils.logging import disable_progress_bar, set_verbosity_error

    disable_progress_bar()  # one bar at a time
    set_verbosity_error()  # its assisted mode warns of its own calls
    try:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    except OSError as e:
        raise WorkError(f"transformers cannot load {folder}: {e}") from e
    model.to(device=device)  # type: ignore[call-arg]
    return model.eval()


def ended(tokens: list[int], eos_ids: tuple[int, ...]) -> list[int]:
    """Cut an output after its first end-of-text id."""
    for place, token in enumerate(tokens):
        if token in eos_ids:
            return tokens[: place + 1]
    return tokens


def _sampling(task: Task) -> dict[str, Any]:
    if task.temperature == 0.0:
        return {"do_sample": False}
    found: dict[str, Any] = {"do_sample": True, "temperature": task.temperature, "top_k": task.top_k}
    found["top_p"] = task.top_p
    return found | ({"min_p": task.min_p} if task.min_p else {})
