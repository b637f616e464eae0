"""One measurement: a batch of prompts decoded once by one runner, with every count and second it took.

In: an `LLM` or a peer's function, and prompts. Out: `Run` records, which survive a trip through JSON, and the checks
that their totals add up. Seconds of a batch are those of its longest row: all rows start in the same round.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slipstream.types import SamplingParams, WorkError

if TYPE_CHECKING:
    from slipstream.llm import LLM, Completion
    from slipstream.measure.peers import Generate

Runner = Callable[[list[list[int]], list[SamplingParams]], "Run"]

PARTS = ("prefill", "draft", "target", "other")
SLACK = 1e-3  # seconds by which the parts of a call may exceed the call: clocks are read one after the other


@dataclass(frozen=True)
class Run:
    """What one runner did with one batch. Counts and parts of the time are known for our own engine only.

    `wall` is from call to return. `passes` and `by_target` (tokens that the target itself chose) have one number per
    prompt; `per_position[k]` counts rounds that kept depth k + 1. `memory` is the process's peak, in bytes.
    """

    tokens: list[list[int]]
    wall: float
    memory: int = 0
    seconds: dict[str, float] = field(default_factory=dict)  # prefill, draft, target, other
    passes: list[int] = field(default_factory=list)
    by_target: list[int] = field(default_factory=list)
    drafts: int = 0
    drafted: int = 0
    accepted: int = 0
    per_position: list[int] = field(default_factory=list)

    @property
    def count(self) -> int:
        """Tokens generated, over all prompts of the batch."""
        return sum(map(len, self.tokens))

    @property
    def decode(self) -> float:
        """Seconds of decoding, prefill apart; for a peer, which does not tell them apart, the whole call."""
        return sum(self.seconds[part] for part in PARTS[1:]) if self.seconds else self.wall

    def as_dict(self) -> dict[str, Any]:
        """Return the run for a file of results."""
        return asdict(self)


def llm_runner(llm: LLM) -> Runner:
    """Return a runner that decodes a batch with `llm`."""

    def run(prompts: list[list[int]], params: list[SamplingParams]) -> Run:
        peak = PeakMemory(llm.opened.device)
        start = time.perf_counter()
        done = llm.generate(prompts, [*params])
        wall = time.perf_counter() - start
        for sample in done:
            if sample.error is not None:
                raise WorkError(sample.error)
        return _run_of(done, wall, peak.bytes())

    return run


def peer_runner(generate: Generate, device: str) -> Runner:
    """Return a runner that decodes a batch with a peer."""

    def run(prompts: list[list[int]], params: list[SamplingParams]) -> Run:
        peak = PeakMemory(device)
        start = time.perf_counter()
        tokens = generate(prompts, [p.seed or 0 for p in params], params[0].max_tokens or 1)
        return Run(tokens, time.perf_counter() - start, peak.bytes())

    return run


def problems(run: Run, *, plain: bool = False) -> list[str]:
    """Return what does not add up in a run of our own engine; nothing for a peer's."""
    if not run.seconds:
        return []
    rows = list(zip(run.tokens, run.passes, run.by_target, strict=True))
    checks = {
        "tokens are those accepted and those of the target": run.count == run.accepted + sum(run.by_target),
        # a token limit may cut the last round before the target's own token
        "every pass gives a token of the target": all(own <= passes <= own + 1 for _, passes, own in rows),
        "accepted tokens have a position": run.accepted == sum(run.per_position),
        "no more is accepted than drafted": run.accepted <= run.drafted,
        "no more drafts than passes": run.drafts <= sum(run.passes),
        "parts of the time fit the call": sum(run.seconds.values()) <= run.wall + SLACK,
    }
    if plain:
        checks["plain decoding is one pass per token"] = all(len(t) == passes for t, passes, _ in rows)
    return [what for what, holds in checks.items() if not holds]


def _run_of(done: list[Completion], wall: float, memory: int) -> Run:
    stats = [sample.stats for sample in done]
    longest = max(stats, key=lambda s: s["target_passes"])
    seconds = {part: longest[f"{part}_seconds"] for part in PARTS[1:]}
    depth = max(len(s["num_accepted_tokens_per_pos"]) for s in stats)
    counts = [s["num_accepted_tokens_per_pos"] + [0] * depth for s in stats]
    return Run(
        tokens=[sample.token_ids for sample in done],
        wall=wall,
        memory=memory,
        seconds={"prefill": sum(s["prefill_seconds"] for s in stats), **seconds},
        passes=[s["target_passes"] for s in stats],
        by_target=[sum(p["by"] == "target" for p in sample.provenance) for sample in done],
        drafts=sum(s["num_drafts"] for s in stats),
        drafted=sum(s["num_draft_tokens"] for s in stats),
        accepted=sum(s["num_accepted_tokens"] for s in stats),
        per_position=[sum(row[k] for row in counts) for k in range(depth)],
    )


class PeakMemory:
    """The peak of memory in use from now on: the GPU's on a GPU, else the process's, loaded weights included."""

    def __init__(self, device: str) -> None:
        self._gpu = device if device.startswith("cuda") else ""
        if self._gpu:
            import torch

            torch.cuda.reset_peak_memory_stats(self._gpu)
        else:
            _forget_peak()

    def bytes(self) -> int:
        """Return the peak so far; 0 where the system does not tell."""
        if self._gpu:
            import torch

            return int(torch.cuda.max_memory_allocated(self._gpu))
        return _peak()


def _forget_peak() -> None:
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # Linux: start a new peak
    except OSError:
        return


def _peak() -> int:
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # bytes on a Mac, the one system without /proc here
    found = [line.split()[1] for line in lines if line.startswith("VmHWM:")]
    return 1024 * int(found[0]) if found else 0
