"""Plain decoding, native against transformers `generate`: same weights, dtype, prompts and token count, in turn.

Both are timed from call to return, prefill included, since `generate` does not tell them apart. End-of-text is ignored
on both sides, so that both emit exactly the same number of tokens.
"""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from slipstream.measure.peers.hf import load
from slipstream.measure.report import Ratio, Times, rate, speedup, table
from slipstream.measure.timing import Runner, Timing, in_turn, llm_runner, warm_up
from slipstream.types import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Callable

    from slipstream.llm import LLM

WARM_UP_TOKENS = 4


def against_transformers(
    plain: LLM, prompts: dict[str, list[int]], max_tokens: int, repeats: int, tick: Callable[[], object]
) -> dict[str, Any]:
    """Time `plain` and transformers on the same prompts; return rates, their ratio and how many outputs are equal."""
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    runners = {"transformers": transformers_runner(plain, max_tokens), "native": llm_runner(plain, params)}
    ids = list(prompts.values())
    warm_up({"transformers": runners["transformers"]}, ids[0][:WARM_UP_TOKENS])
    results = in_turn(runners, ids, repeats, tick=tick)
    times = {
        name: [Times(len(runs[0].tokens), [r.wall for r in runs]) for runs in found] for name, found in results.items()
    }
    equal = sum(a[0].tokens == b[0].tokens for a, b in zip(results["transformers"], results["native"], strict=True))
    return {
        "model": plain.model,
        "dtype": str(plain.opened.dtype).removeprefix("torch."),
        "prompts": len(prompts),
        "tokens": max_tokens,
        "transformers_tokens_per_second": rate(times["transformers"]),
        "native_tokens_per_second": rate(times["native"]),
        "native_over_transformers": asdict(speedup(times["transformers"], times["native"])),
        "equal_outputs": equal,
    }


def transformers_runner(llm: LLM, max_tokens: int) -> Runner:
    """Return a runner that decodes greedily with transformers' own model and loop, exactly `max_tokens` tokens."""
    import torch

    model = load(llm.opened.folder, llm.opened.dtype, llm.opened.device)
    model.generation_config.eos_token_id = None

    def run(ids: list[int]) -> Timing:
        prompt = torch.tensor([ids], device=model.device)  # [1, T]
        start = time.perf_counter()
        with torch.inference_mode():
            found = model.generate(
                prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=max_tokens
            )
        wall = time.perf_counter() - start
        return Timing(found[0, len(ids) :].tolist(), wall, wall, {})

    return run


def show(found: dict[str, Any]) -> str:
    """Return the result as text."""
    ratio = Ratio(**found["native_over_transformers"])
    rows = [
        ["transformers generate", f"{found['transformers_tokens_per_second']:.2f}"],
        ["native, drafter none", f"{found['native_tokens_per_second']:.2f}"],
    ]
    return "\n".join(
        [
            f"Plain decoding, prefill included: {found['model']}, {found['dtype']}, batch 1, "
            f"{found['prompts']} prompts x {found['tokens']} tokens, in turn",
            table(["", "tokens/s"], rows),
            f"native / transformers: {ratio.words()}; "
            f"outputs equal on {found['equal_outputs']} of {found['prompts']} prompts",
        ]
    )
