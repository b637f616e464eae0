"""How often drafted tokens stand: what the controller knows of a drafter.

In: a round's draft, verdict and laws. Out: for each row the values of the positions that were reached, and from them
estimates. A value is soft where that is free: the chance of acceptance, sum min(p, q) of a drawn token or p(x) of a
fixed one, has the coin's mean and a fraction of its variance. Rows behind the first refusal follow a text that did not
come out and are left out.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

import torch

from slipstream.devices import listed
from slipstream.types import Draft, Draw, Laws, Verdict

OWN_WEIGHT = 6.0  # rounds that what is known of other requests counts for, in the estimate for one
PRIOR_WEIGHT = 2.0  # the same of what was known before anything was decoded
STEERED_WEIGHT = 4.0  # the same of a drafter that stops by itself: a wrong hope costs little there
OWN_DECAY, COMMON_DECAY = 0.975, 0.995
STEERED_DECAY = 0.95  # what it says of its tokens is less of a coin than what stood: fewer rounds are enough


class Rates:
    """Decayed counts by position of a chain (given that it was reached), or by node of a tree (in order)."""

    def __init__(self, decay: float, *, tree: bool = False) -> None:
        self.decay, self.tree = decay, tree
        self.hits: list[float] = []
        self.seen: list[float] = []

    def add(self, values: Seq[float], start: int = 0) -> None:
        """Count one round: values[i] of position `start` + i (0: the first drafted)."""
        missing = start + len(values) - len(self.hits)
        if missing > 0:
            self.hits += [0.0] * missing
            self.seen += [0.0] * missing
        for k, value in enumerate(values, start):
            self.hits[k] = self.hits[k] * self.decay + value
            self.seen[k] = self.seen[k] * self.decay + 1.0

    def shares(self, n: int, prior: Seq[float], weight: float) -> list[float]:
        """Return the estimates for the first n positions, where the prior counts for `weight` rounds.

        Beyond the prior's end the position before stands in for it.
        """
        found: list[float] = []
        known = len(self.hits)
        for k in range(n):
            base = prior[k] if k < len(prior) else found[-1]
            found.append((self.hits[k] + weight * base) / (self.seen[k] + weight) if k < known else base)
        return found


def survival(shares: Seq[float], tree: bool) -> list[float]:
    """Turn the estimates of a drafter's positions into the chance that each drafted node stands."""
    found: list[float] = []
    last = 1.0
    for share in shares:
        last = min(last, share) if tree else last * share
        found.append(last)
    return found


def reached(draft: Draft, verdict: Verdict, laws: Laws, soft: bool = True) -> list[list[float]]:
    """Return, for each row, the values of the drafted positions of its chain that were reached."""
    accepted, length = listed(verdict.accepted), listed(draft.length)
    found = []
    for b, (kept, n) in enumerate(zip(accepted, length, strict=True)):
        count = min(kept + 1, n - 1)
        if count <= 0 or laws.probs is None or not soft:
            found.append([1.0] * min(kept, count) + [0.0] * (count - kept))
        else:
            found.append(_chances(draft, laws.probs, b, count))
    return found


def node_hits(draft: Draft, verdict: Verdict, b: int) -> list[float]:
    """Return, for row b of a tree, which of its drafted nodes stood."""
    found = [0.0] * (int(draft.length[b]) - 1)
    for node in verdict.path[b, : int(verdict.accepted[b])].tolist():
        found[node - 1] = 1.0
    return found


def _chances(draft: Draft, probs: torch.Tensor, b: int, count: int) -> list[float]:
    """Values of the first positions of a chain: node k's law is row k - 1."""
    p = probs[b, :count]  # [count, V]
    if draft.q is not None and int(draft.draw[b, 1]) != Draw.FIXED:
        values = torch.minimum(p, draft.q[b, :count].to(p)).sum(-1)
    else:
        values = p.gather(1, draft.tokens[b, 1 : count + 1, None])[:, 0]
    return [min(1.0, max(0.0, v)) if v == v else 0.0 for v in values.tolist()]
