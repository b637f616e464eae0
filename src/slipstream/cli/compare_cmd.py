"""`generate --compare`: say whether speculation changed the output, and how much faster it was if it did not."""

from __future__ import annotations

import json
import statistics
import sys
from typing import TYPE_CHECKING, Any

from slipstream.cli.generate import json_of, raise_errors, stats_line
from slipstream.cli.options import say

if TYPE_CHECKING:
    from slipstream.llm import LLM
    from slipstream.measure.compare import Comparison
    from slipstream.types import SamplingParams


def run_compare(llm: LLM, prompts: list[Any], params: SamplingParams, as_json: bool) -> int:
    """Run both sides, report, and return 1 if the outputs differ by more than rounding explains."""
    from slipstream.measure.compare import compare

    found = compare(llm, prompts, params)
    if as_json:
        print(json.dumps(json_of(llm, found.drafted, params) | {"compare": found.as_dict()}, ensure_ascii=False))
    else:
        for sample in found.drafted:
            print(sample.text)
        sys.stdout.flush()
    for sample in found.drafted:
        say(stats_line(llm, sample.stats, len(sample.token_ids)))
    for line in report(llm, found):
        say(line)
    raise_errors([*found.plain, *found.drafted])
    return 0 if found.agrees else 1


def report(llm: LLM, found: Comparison) -> list[str]:
    """Return the comparison in words; a speed-up is among them only if the outputs agree."""
    plain, drafted = statistics.median(found.plain_speeds), statistics.median(found.drafted_speeds)
    runs = f"median of {len(found.plain_speeds)} run{'s' if len(found.plain_speeds) > 1 else ''}, interleaved"
    lines = [f"plain {plain:.1f} tokens/s, {llm.drafter} {drafted:.1f} tokens/s (decoding only, {runs})"]
    lines.append(f"outputs: {_agreement(found)}")
    if found.speed_up is not None:
        lines.append(f"speed-up: {found.speed_up:.2f}x ({found.passes_saved:.2f}x fewer target passes)")
        if found.speed_up > 1.1 * found.passes_saved:
            lines.append("the clock is noisy: no speed-up can exceed the saving in passes; run again")
    else:
        lines.append("no speed-up is claimed, because the outputs differ")
    return lines


def _agreement(found: Comparison) -> str:
    if found.agreement == "equal":
        return "equal, token for token"
    if found.agreement == "same law":
        return "two draws of the same law, not compared (--verify coupled gives the same text for the same seed)"
    first = found.first_difference or {}
    where = f"first difference: sample {first.get('sample', 0) + 1}, token {first.get('position', 0) + 1}"
    if [] in (first.get("plain"), first.get("drafted")):
        return f"DIFFERENT, {where}: one output ends where the other goes on"
    if found.certificate is None:
        return f"DIFFERENT, {where}; no certificate is possible with these sampling parameters"
    c = found.certificate
    counts = f"{c.exact} tokens exact, {c.near_ties} near-ties, largest gap {c.largest_gap:.2g}, tau {c.tau:.2g}"
    if found.agreement == "near-ties":
        return f"equal up to certified near-ties ({counts}; {where})"
    return f"DIFFERENT, {where}; {len(c.refused)} tokens beyond rounding ({counts})"
