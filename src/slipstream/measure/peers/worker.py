"""An engine in a process of its own: its threads and its memory are nobody else's, and it sleeps while others run.

`Worker` is the parent's side, `main` the child's. One JSON line each way: a job in, what came of it out. The child ends
when its input does. Whatever an engine prints goes to stderr.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slipstream.types import WorkError

if TYPE_CHECKING:
    import torch

OURS = ("plain", "auto")
Run = Callable[[list[int], int], "Timed"]


@dataclass(frozen=True)
class Timed:
    """One call: its tokens, seconds from call to return, and tokens and seconds of decoding, the prompt apart."""

    tokens: list[int]
    wall: float
    decoded: int
    decode: float


@dataclass(frozen=True)
class Setup:
    """What a child is told first: who decodes, what, and with which lengths; `eos` ends an output."""

    runners: list[str]
    model: str
    folder: str
    max_len: int
    eos: list[int]
    draft: str = ""


class Worker:
    """A child that runs some of the engines. `environ` is added to the parent's variables; None removes one."""

    def __init__(self, setup: Setup, environ: Mapping[str, str | None]) -> None:
        found = {**os.environ, **environ}
        env = {name: value for name, value in found.items() if value is not None}
        command = [sys.executable, "-m", "slipstream.measure.peers.worker", json.dumps(asdict(setup))]
        self.runners = setup.runners
        self._child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env, text=True)
        self.about: dict[str, Any] = self._answer()

    def run(self, name: str, ids: list[int], max_tokens: int) -> Timed:
        """Decode one prompt with one of the runners."""
        assert self._child.stdin is not None
        self._child.stdin.write(json.dumps([name, ids, max_tokens]) + "\n")
        self._child.stdin.flush()
        return Timed(**self._answer())

    def close(self) -> None:
        """End the child."""
        self._child.communicate()

    def _answer(self) -> dict[str, Any]:
        assert self._child.stdout is not None
        line = self._child.stdout.readline()
        if not line:
            self.close()
            status = self._child.returncode
            raise WorkError(
                f"the process of {', '.join(self.runners)} ended with status {status}; its message is above"
            )
        found: dict[str, Any] = json.loads(line)
        return found


def main() -> int:
    """Be the child."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    setup = Setup(**json.loads(sys.argv[1]))
    runs, about = _ours(setup) if setup.runners[0] in OURS else _theirs(setup)
    _say(answers, about)
    for line in sys.stdin:
        name, ids, max_tokens = json.loads(line)
        _say(answers, asdict(runs[name](ids, max_tokens)))
    return 0


def _say(answers: Any, found: dict[str, Any]) -> None:
    answers.write(json.dumps(found) + "\n")
    answers.flush()


def _ours(setup: Setup) -> tuple[dict[str, Run], dict[str, Any]]:
    from slipstream.llm import LLM
    from slipstream.types import SamplingParams

    auto = LLM(setup.model, max_model_len=setup.max_len, max_rows=1)
    llms = {"plain": auto.with_drafter("none"), "auto": auto}

    def runner(llm: LLM) -> Run:
        def run(ids: list[int], max_tokens: int) -> Timed:
            start = time.perf_counter()
            done = llm.generate(ids, SamplingParams(max_tokens=max_tokens))
            wall = time.perf_counter() - start
            decode = sum(done.stats[f"{part}_seconds"] for part in ("draft", "target", "other"))
            return Timed(done.token_ids, wall, len(done.token_ids), decode)

        return run

    about = {"notes": auto.notes, "drafter": auto.drafter, "quantize": auto.opened.quantize}
    return {name: runner(llms[name]) for name in setup.runners}, about


def _theirs(setup: Setup) -> tuple[dict[str, Run], dict[str, Any]]:
    from slipstream.machine import resolve_dtype
    from slipstream.measure.peers import First, Generate, Task, open_peer

    first, dtype = First(), resolve_dtype("auto", "cpu")  # torch takes minutes for bfloat16 where it is not native
    task = Task(
        folder=Path(setup.folder),
        name=setup.model,
        dtype=dtype,
        device="cpu",
        max_len=setup.max_len,
        eos_ids=tuple(setup.eos),
        draft_folder=Path(setup.draft) if setup.draft else None,
        first=first,
    )

    def runner(generate: Generate) -> Run:
        def run(ids: list[int], max_tokens: int) -> Timed:
            first.at = None
            start = time.perf_counter()
            (tokens,) = generate([ids], [0], max_tokens)
            end = time.perf_counter()
            return Timed(tokens, end - start, len(tokens) - first.count, end - (first.at or start))

        return run

    return {name: runner(open_peer(name, task)) for name in setup.runners}, _versions(setup.runners[0], dtype)


def _versions(name: str, dtype: torch.dtype) -> dict[str, Any]:
    import importlib.metadata

    if name.startswith("hf"):
        version = importlib.metadata.version("transformers")
        return {"version": f"transformers {version}", "dtype": str(dtype).removeprefix("torch.")}
    import llama_cpp

    said = llama_cpp.llama_print_system_info().decode()
    level = "AMX" if "AMX_INT8 = 1" in said else "AVX-512, no AMX" if "AVX512 = 1" in said else "no AVX-512"
    return {"version": f"llama-cpp-python {llama_cpp.__version__}, built with {level}"}


if __name__ == "__main__":
    sys.exit(main())
