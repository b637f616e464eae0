"""Counters of one sequence. Accepted and emitted tokens are counted after trimming, so none lies behind an end of text
or a token limit; drafted ones count as drafted, wherever the end fell.

Terms are vLLM's: `mean_acceptance_length` is tokens emitted per target pass, the target's own token included;
`draft_acceptance_rate` is accepted / drafted; `num_accepted_tokens_per_pos[k]` counts rounds that kept depth k + 1.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Any

DRAFTS = 200  # what a drafter is judged by
LEAST_RIGHT = 0.03  # of them must have a token accepted: chance alone gives less to one fed with the wrong layers


@dataclass
class Clock:
    """Seconds of one round: drafting, the target's forward, and the whole round (prefill apart)."""

    draft: float = 0.0
    target: float = 0.0
    total: float = 0.0


@dataclass
class Stats:
    """What a sequence's rounds did. Times are the wall time of rounds it took part in, shared with its batch-mates."""

    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_accepted_tokens_per_pos: list[int] = field(default_factory=list)
    target_passes: int = 0
    completion_tokens: int = 0
    prefill_seconds: float = 0.0
    draft_seconds: float = 0.0
    target_seconds: float = 0.0
    other_seconds: float = 0.0

    def record_round(self, drafted: int, depths: list[int], emitted: int) -> None:
        """Count one round: nodes drafted, depths of the accepted nodes that were kept, tokens emitted."""
        self.target_passes += 1
        self.completion_tokens += emitted
        self.num_drafts += drafted > 0
        self.num_draft_tokens += drafted
        self.num_accepted_tokens += len(depths)
        for depth in depths:
            while len(self.num_accepted_tokens_per_pos) < depth:
                self.num_accepted_tokens_per_pos.append(0)
            self.num_accepted_tokens_per_pos[depth - 1] += 1

    def record_clock(self, clock: Clock) -> None:
        """Add one round's seconds."""
        self.draft_seconds += clock.draft
        self.target_seconds += clock.target
        self.other_seconds += max(0.0, clock.total - clock.draft - clock.target)

    @property
    def decode_seconds(self) -> float:
        """Seconds spent in decode rounds, prefill apart."""
        return self.draft_seconds + self.target_seconds + self.other_seconds

    @property
    def mean_acceptance_length(self) -> float:
        """Tokens emitted per target pass, the target's own token included; 0 before the first pass."""
        return self.completion_tokens / self.target_passes if self.target_passes else 0.0

    @property
    def draft_acceptance_rate(self) -> float:
        """Accepted / drafted; 0 when nothing was drafted."""
        return self.num_accepted_tokens / self.num_draft_tokens if self.num_draft_tokens else 0.0

    @property
    def tokens_per_second(self) -> float:
        """Emitted tokens per second of decoding; 0 when nothing was decoded."""
        return self.completion_tokens / self.decode_seconds if self.decode_seconds > 0 else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Return the `stats` object of the JSON output."""
        return {
            "num_drafts": self.num_drafts,
            "num_draft_tokens": self.num_draft_tokens,
            "num_accepted_tokens": self.num_accepted_tokens,
            "num_accepted_tokens_per_pos": list(self.num_accepted_tokens_per_pos),
            "target_passes": self.target_passes,
            "mean_acceptance_length": self.mean_acceptance_length,
            "draft_acceptance_rate": self.draft_acceptance_rate,
            "prefill_seconds": self.prefill_seconds,
            "draft_seconds": self.draft_seconds,
            "target_seconds": self.target_seconds,
            "other_seconds": self.other_seconds,
            "tokens_per_second": self.tokens_per_second,
        }


@dataclass
class Hits:
    """How often a drafter that reads the target's features is right at all, over all rows; told once if hardly ever.

    Its text stays the target's own, so nothing else would show that it is fed with the wrong layers.
    """

    drafter: str
    drafts: int = 0
    right: int = 0
    told: bool = False

    def record(self, drafted: int, accepted: int) -> None:
        """Count one row's round."""
        self.drafts += drafted > 0
        self.right += accepted > 0

    def judge(self) -> None:
        """Warn if too few of the last `DRAFTS` drafts had a token accepted."""
        if self.told or self.drafts < DRAFTS:
            return
        share, drafts = self.right / self.drafts, self.drafts
        self.drafts = self.right = 0
        if share < LEAST_RIGHT:
            self.told = True
            warnings.warn(
                f"drafter {self.drafter!r} had a token accepted in {share:.1%} of {drafts} drafts: it costs time and "
                "gives nothing; `slipstream doctor` says whether it is read as it was trained, and for this target",
                RuntimeWarning,
                stacklevel=3,
            )
