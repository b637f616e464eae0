"""What `tune` found, in words: the table, and what to tell other engines. Pure text."""

from __future__ import annotations

import json

from slipstream.measure.record import record_line
from slipstream.measure.report import table
from slipstream.measure.tune import Line, Tuned

_SGLANG = {"eagle": "EAGLE", "eagle3": "EAGLE3", "draft_model": "STANDALONE"}


def show(found: Tuned) -> str:
    """Return the table and its reading."""
    rows = [["plain", "", "", "1.00x", "1.00", f"{found.plain:.1f}"]]
    rows += [_row(found, line) for line in found.lines]
    auto = found.auto
    rows.append(["auto", "", "", f"{auto.value:.2f}x ({auto.low:.2f}-{auto.high:.2f})", "", f"{found.auto_speed:.1f}"])
    head = ("drafter", "tokens", "predicted", "measured (95 %)", "per pass", "tokens/s")
    lines = [table(head, rows), ""]
    lines.append(
        f"{found.prompts} prompts, {found.tokens} tokens each way, decoding only; plain and drafted taken in turn. "
        "Per pass: tokens per target pass, its own included."
    )
    if found.differing:
        where = ", ".join(found.differing)
        lines.append(f"Texts differ from plain's: {where}. `slipstream compare` says whether by rounding alone.")
    best = found.best
    if best is None:
        lines.append("On these prompts nothing drafted is faster than plain decoding; auto then drafts nothing.")
    else:
        lines.append(
            f"Best fixed: {best.drafter} with {best.draft_tokens}. auto uses the profile that was just stored."
        )
    if found.record:
        lines.append(record_line(found.record))
    return "\n".join(lines)


def _row(found: Tuned, line: Line) -> list[str]:
    measured, speed = "", ""
    if line.measured is not None:
        m = line.measured
        measured, speed = f"{m.value:.2f}x ({m.low:.2f}-{m.high:.2f})", f"{m.value * found.plain:.1f}"
    per_pass = line.tokens_per_pass or line.predicted_tokens
    cells = [line.drafter, str(line.draft_tokens), f"{line.predicted:.2f}x", measured, f"{per_pass:.2f}", speed]
    return cells


def flags(drafter: str, draft_tokens: int, path: str) -> dict[str, str]:
    """Return the options of vLLM and SGLang for a drafter at a length; an engine that has none is left out."""
    found = {}
    config: dict[str, object] = {"method": drafter, "num_speculative_tokens": draft_tokens}
    if drafter == "lookup":
        config |= {"method": "ngram", "prompt_lookup_max": 8, "prompt_lookup_min": 1}
        found["sglang"] = f"--speculative-algorithm NGRAM --speculative-num-draft-tokens {draft_tokens}"
    elif path:
        config["model"] = path
    if drafter == "peagle":
        config |= {"method": "eagle3", "parallel_drafting": True}
    found["vllm"] = f"--speculative-config '{json.dumps(config)}'"
    if drafter in _SGLANG:
        found["sglang"] = (
            f"--speculative-algorithm {_SGLANG[drafter]} --speculative-draft-model-path {path} "
            f"--speculative-num-steps {draft_tokens} --speculative-eagle-topk 1 "
            f"--speculative-num-draft-tokens {draft_tokens + 1}"
        )
    if drafter == "dflash":  # counts the token the block begins with
        found["sglang"] = (
            f"--speculative-algorithm DFLASH --speculative-draft-model-path {path} "
            f"--speculative-num-draft-tokens {draft_tokens + 1}"
        )
    return found
