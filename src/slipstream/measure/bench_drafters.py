"""What each learned drafter costs per round, beside the pass of the target it has to pay for.

Random weights of the usual sizes, on the target's own shapes: the cost of drafting does not depend on what is drafted,
only the gain does. So the table gives the tokens per round that a trained drafter of this size needs to break even.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, Any

from slipstream import learned
from slipstream.measure.report import table
from slipstream.measure.timing import in_turn, llm_runner, warm_up
from slipstream.types import RequestError, SamplingParams

if TYPE_CHECKING:
    import torch

    from slipstream.build import Opened
    from slipstream.llm import LLM
    from slipstream.nets.draft_config import DraftCheckpoint, DraftConfig

DRAFT_VOCAB = 32000  # of EAGLE-3 and P-EAGLE, as published checkpoints have it
PLAIN = "none"


@dataclass(frozen=True)
class Specimen:
    """One line of the table: a random checkpoint, how it drafts, and how many tokens."""

    name: str
    found: DraftCheckpoint
    options: dict[str, Any]
    draft_tokens: int


def drafters(
    llm: LLM, prompts: dict[str, list[int]], max_tokens: int, repeats: int, tick: Callable[[], object]
) -> list[dict[str, Any]]:
    """Return one row per drafter: weights, cache, milliseconds of a round's parts, and the tokens to break even."""
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    llms, sizes = {PLAIN: llm.with_drafter(PLAIN)}, {}
    for one in specimens(llm.opened):
        drafter, net = _built(llm.opened, one)
        llms[one.name] = llm.with_drafter(drafter, draft_tokens=one.draft_tokens)
        sizes[one.name] = {"bytes": net.nbytes, "row_bytes": net.row_bytes, "drafts": one.draft_tokens}
    runners = {name: llm_runner(each, params) for name, each in llms.items()}
    ids = list(prompts.values())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # random weights are accepted nowhere
        warm_up(runners, ids[0])
        results = in_turn(runners, ids, repeats, tick=tick)
    rows = []
    for name in runners:
        stats = [t.stats for prompt in results[name] for t in prompt]
        parts = {
            f"{part}_ms": median(1000 * s[f"{part}_seconds"] / s["target_passes"] for s in stats)
            for part in ("draft", "target", "other")
        }
        tokens = median(s["mean_acceptance_length"] for s in stats)
        rows.append({"drafter": name, **sizes.get(name, {}), **parts, "tokens_per_round": tokens})
    plain = rows[0]["target_ms"] + rows[0]["other_ms"]
    for row in rows:
        row["break_even"] = (row["draft_ms"] + row["target_ms"] + row["other_ms"]) / plain
    return rows


def specimens(opened: Opened) -> Iterator[Specimen]:
    """Yield a random checkpoint of every algorithm, of the usual size for this target."""
    for algorithm, parts in learned.ALGORITHMS.items():
        config = usual(algorithm, opened)
        found, count = _random(config), learned.suggested(config)
        if "shape" not in parts.option_names():
            yield Specimen(algorithm, found, {}, count)
            continue
        chain = count if config.block is not None else {"medusa": 5}.get(algorithm, 5)
        yield Specimen(f"{algorithm} chain", found, {"shape": "chain"}, chain)
        yield Specimen(f"{algorithm} tree", found, {"shape": "tree"}, max(count, 15))


def usual(algorithm: Any, opened: Opened) -> DraftConfig:
    """Return the record of a drafter of the usual size for a target."""
    from slipstream.nets.draft_config import Block, Body, DraftConfig, Features, Heads, Markov, Paths, Rows, Vocab
    from slipstream.nets.families import read_config

    c = read_config(learned.raw_config(opened))
    n = c.layers
    deep = {"peagle": 4, "dflash": 5, "dflash2": 5, "dspark": 5}.get(algorithm, 1)
    windows, low, high = (None,) * deep, 1, n - 3
    body = Body(c.hidden, deep, c.heads, c.kv_heads, c.head_dim, c.mlp, windows)
    spread = tuple(low + round(i * (high - low) / 4) + 1 for i in range(5))
    vocab = Vocab(c.vocab, c.vocab)
    if algorithm == "eagle":
        return DraftConfig(
            "eagle", "safeailab", Features((-1,), c.hidden, bias=True), vocab, body, Rows(logit_norm=False)
        )
    if algorithm == "medusa":
        return DraftConfig("medusa", "medusa", Features((-1,), c.hidden, fused=False), vocab, heads=Heads(5))
    if algorithm in ("eagle3", "peagle"):
        some = Vocab(c.vocab, min(DRAFT_VOCAB, c.vocab), own_head=True)
        block = Block(6, 0, True, (True,) * deep) if algorithm == "peagle" else None
        return DraftConfig(algorithm, "specforge", Features((2, n // 2, n - 3), c.hidden), some, body, block=block)
    body = replace(body, qk_norm=True)
    features, full = Features(spread, c.hidden), (False,) * deep
    if algorithm == "dflash":
        return DraftConfig("dflash", "zlab", features, vocab, body, block=Block(16, 0, False, full))
    if algorithm == "dflash2":
        paths = Paths(2, 16, 256, 16)
        return DraftConfig("dflash2", "zlab", features, vocab, body, block=Block(8, 0, False, full), paths=paths)
    if algorithm == "dspark":
        markov = Markov("vanilla", 256, "markov")
        return DraftConfig("dspark", "specforge", features, vocab, body, block=Block(7, 0, True, full), markov=markov)
    raise RequestError(f"no usual size is known for a drafter of kind {algorithm!r}")


def _random(config: DraftConfig) -> DraftCheckpoint:
    import torch

    from slipstream.checkpoints.draft_shapes import expected_shapes
    from slipstream.nets.draft_config import DraftCheckpoint

    g = torch.Generator().manual_seed(0)

    def fill(name: str, shape: tuple[int, ...]) -> torch.Tensor:
        if name == "vocab_map":
            return torch.randperm(config.vocab.target, generator=g)[: shape[0]].sort().values
        if "norm" in name:
            return torch.ones(shape, dtype=torch.bfloat16)
        return torch.randn(shape, generator=g).mul_(0.02).to(torch.bfloat16)

    return DraftCheckpoint(config, {name: fill(name, shape) for name, shape in expected_shapes(config).items()})


def _built(opened: Opened, one: Specimen) -> tuple[Any, Any]:
    drafter, net = learned.assemble(one.found, opened, rows=1, options=one.options)
    drafter.name = one.name
    return drafter, net


def show(rows: list[dict[str, Any]], model: str, dtype: str) -> str:
    """Return the rows as a Markdown table."""
    head = ["drafter", "weights", "cache/token", "drafted", "draft ms", "target ms", "draft/target", "breaks even at"]
    lines = [
        [
            r["drafter"],
            f"{r['bytes'] / 1e6:.0f} MB" if "bytes" in r else "-",
            f"{r['row_bytes'] / 1024:.1f} KiB" if "bytes" in r else "-",
            str(r.get("drafts", 0)),
            f"{r['draft_ms']:.1f}",
            f"{r['target_ms']:.1f}",
            f"{100 * r['draft_ms'] / r['target_ms']:.0f} %",
            f"{r['break_even']:.2f} tokens/round" if "bytes" in r else "1.00",
        ]
        for r in rows
    ]
    title = f"Drafters of usual size with random weights: {model}, {dtype}, batch 1, greedy; medians per round"
    return f"{title}\n{table(head, lines)}"
