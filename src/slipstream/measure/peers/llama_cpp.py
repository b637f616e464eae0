"""llama-cpp-python on the .gguf that the target came from: its own quantised arithmetic, so texts are not compared.

Needs `--model FILE.gguf`, or a pulled model that keeps its file. The cache is emptied before each prompt, so that none
profits from the one before.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from slipstream.measure.peers import NO_GGUF, Generate, Task
from slipstream.measure.peers.hf import ended
from slipstream.models import KEPT
from slipstream.types import RequestError


def open_peer(task: Task) -> Generate:
    """Return plain decoding."""
    return generator(task)


def generator(task: Task, **extra: Any) -> Generate:
    """Return a loop over `Llama.generate` with additional arguments for `Llama`."""
    from llama_cpp import Llama

    path = Path(task.name).expanduser()
    if path.suffix.lower() != ".gguf":
        path = task.folder / KEPT
        if not path.is_file():
            raise RequestError(NO_GGUF.format("llama-cpp", task.name))
    threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    gpu = -1 if task.device.startswith("cuda") else 0
    llama = Llama(
        str(path),
        n_ctx=task.max_len,
        n_threads=threads,
        n_threads_batch=threads,
        n_gpu_layers=gpu,
        logits_all=bool(extra),
        verbose=False,
        **extra,
    )
    sampling = {"temp": task.temperature, "top_k": task.top_k, "top_p": task.top_p, "min_p": task.min_p}

    def run(prompts: list[list[int]], seeds: list[int], max_tokens: int) -> list[list[int]]:
        return [
            _one(llama, prompt, seed, max_tokens, task, sampling) for prompt, seed in zip(prompts, seeds, strict=True)
        ]

    return run


def _one(llama: Any, prompt: list[int], seed: int, max_tokens: int, task: Task, sampling: dict[str, Any]) -> list[int]:
    llama.reset()
    llama.set_seed(seed % 2**32)
    found: list[int] = []
    for token in llama.generate(prompt, repeat_penalty=1.0, **sampling):
        found.append(int(token))
        if task.first is not None:
            task.first.mark(1)
        if len(found) >= max_tokens or token in task.eos_ids:
            break
    return ended(found, task.eos_ids)
