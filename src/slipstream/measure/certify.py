"""Near-tie certificates: every token of a greedy output is the model's argmax, up to rounding, or it is named.

Floating point makes one pass over n tokens differ from n passes over one, so two correct greedy outputs may part at a
near-tie. In: prompt and output ids, and targets. One float32 pass of the same weights over prompt and output gives
reference logits z at every output position; token t passes if it is their argmax, and is certified as a near-tie if
max z - z[t] <= tau. tau is 1e-4 in float32; in a lower precision it is measured, not chosen.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import isfinite
from typing import TYPE_CHECKING, Any

from slipstream.types import Draft, Target

if TYPE_CHECKING:
    from torch import Tensor

TAU_FLOAT32 = 1e-4
TAU_LARGEST = 4.0  # above this it is no rounding: small bfloat16 models measure up to 2.4, a stale cache far more
SAMPLED_TOKENS = 128  # positions that tau is measured on


@dataclass
class Certificate:
    """What the reference says about one or more outputs. `refused` lists (position, token, gap) beyond tau."""

    tau: float
    exact: int = 0
    near_ties: int = 0
    largest_gap: float = 0.0
    refused: list[tuple[int, int, float]] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        """True if every token is the reference's argmax or a near-tie."""
        return not self.refused and self.tau <= TAU_LARGEST

    def as_dict(self) -> dict[str, Any]:
        """Return the certificate for JSON."""
        return {
            "holds": self.holds,
            "tau": self.tau,
            "exact": self.exact,
            "near_ties": self.near_ties,
            "largest_gap": self.largest_gap,
            "refused": [{"position": p, "token": t, "gap": g if isfinite(g) else None} for p, t, g in self.refused],
        }


def cut_short(a: list[int], b: list[int]) -> bool:
    """Tell whether one output is the beginning of the other: no rounding does that, ends being tokens themselves."""
    return len(a) != len(b) and all(x == y for x, y in zip(a, b, strict=False))


def judge(certificate: Certificate, gaps: list[float], tokens: list[int]) -> None:
    """Add tokens to a certificate, each with its gap: the best logit minus its own."""
    for position, (token, gap) in enumerate(zip(tokens, gaps, strict=True)):
        certificate.largest_gap = max(certificate.largest_gap, gap)
        if gap == 0.0:
            certificate.exact += 1
        elif gap <= certificate.tau:
            certificate.near_ties += 1
        else:
            certificate.refused.append((position, token, gap))


def gaps(target: Target, prompt: list[int], output: list[int], chunk: int) -> list[float]:
    """Return, for each output token, the best logit minus its own, from passes of `chunk` tokens on an idle target."""
    import torch

    found: list[float] = []
    for logits in replay(target, prompt, output, chunk):
        own = torch.tensor(output[len(found) : len(found) + len(logits)], device=logits.device)
        rows = logits.double()
        found += (rows.amax(1) - rows.gather(1, own[:, None])[:, 0]).tolist()
    return found


def certify(
    reference: Target, prompt: list[int], output: list[int], certificate: Certificate, single: Target | None = None
) -> None:
    """Add every position of one output to a certificate. `reference`: an idle float32 target, same weights.

    In a lower precision give the target itself as `single`: plain decoding's own rounding against float32 may be
    larger than tau, so a token also passes if plain decoding, one token per pass, has it within tau.
    """
    found = gaps(reference, prompt, output, 64)
    if single is not None and max(found, default=0.0) > certificate.tau:
        found = [min(pair) for pair in zip(found, gaps(single, prompt, output, 1), strict=True)]
    judge(certificate, found, output)


def measured_tau(target: Target, prompt: list[int], output: list[int], chunk: int) -> float:
    """Return 2 * max |difference| of logits between passes over one token and over `chunk`, on the same prefixes."""
    import torch

    output = output[:SAMPLED_TOKENS]
    single = torch.cat(list(replay(target, prompt, output, 1)))
    several = torch.cat(list(replay(target, prompt, output, chunk)))
    return 2.0 * float((single - several).abs().max())


def replay(target: Target, prompt: list[int], output: list[int], chunk: int) -> Iterator[Tensor]:
    """Feed a known output to an idle target, `chunk` tokens per pass; yield the logits [chunk, V] that chose them."""
    import torch

    fed = [prompt[-1], *output[:-1]]
    chunk = max(1, min(chunk, target.caps.max_nodes))
    try:
        with torch.inference_mode():
            if len(prompt) > 1:
                target.prefill(0, prompt[:-1])
            for start in range(0, len(fed), chunk):
                part = fed[start : start + chunk]
                scores = target.score([0], chain_of(part))
                target.commit([0], [list(range(1, len(part)))])
                yield scores.logits[0, : len(part)].float().clone()
    finally:
        target.release(0)


def chain_of(tokens: list[int]) -> Draft:
    """Return tokens, root first, as the draft of one row."""
    import torch

    count = len(tokens)
    return Draft(
        tokens=torch.tensor([tokens]),
        parents=torch.arange(-1, count - 1)[None],
        length=torch.tensor([count]),
        draw=torch.zeros(1, count, dtype=torch.int64),
    )
