"""What all verification rules share: the base class, the checks on a draft, and the one way a verdict is written.

In: `Draft`, `Laws`, `Rngs`. Out: `Verdict`. Rules are pure (law 5); they know no model, no end of text, no request.
"""

from __future__ import annotations

import torch
from torch import Tensor

from slipstream.devices import certainly, moved, on_host, refuse
from slipstream.types import Draft, Draw, Laws, RequestError, Rngs, Verdict, WorkError
from slipstream.verify.points import plain_verdict, walk_points


class Rule:
    """Verify a draft. When every row is greedy all rules are the same deterministic walk; else `judge` decides."""

    name: str = ""
    lossless: bool = True
    shared_noise: bool = False
    tree: bool = False

    def __call__(self, draft: Draft, p: Laws, rngs: Rngs) -> Verdict:
        """Return the accepted path of each row and the token after it."""
        if not (draft.chain or self.tree):
            raise RequestError(
                f"rule {self.name!r} verifies chains, the draft is a tree: use 'tree', 'coupled' or 'auto'"
            )
        if p.points is not None:
            return walk_points(draft, p.points)
        if p.probs is None:
            raise WorkError("the laws hold neither probs nor points; one of them is needed")
        if draft.nodes == 1 and not self.shared_noise:
            return plain_verdict(rngs.correct(p.probs[:, 0]))
        return self.judge(draft, p.probs, rngs)

    def judge(self, draft: Draft, p: Tensor, rngs: Rngs) -> Verdict:
        """Verify against dense rows p [B, N, V]."""
        raise NotImplementedError


def drafted(draft: Draft) -> Tensor:
    """Mark the nodes that are neither the root nor padding -> bool [B, N - 1]."""
    return moved(torch.arange(1, draft.nodes) < on_host(draft.length)[:, None], draft.tokens.device)


def drafting(draft: Draft) -> Tensor:
    """Mark the rows that drafted anything -> bool [B]."""
    return moved(on_host(draft.length) > 1, draft.tokens.device)


def drawn(draft: Draft) -> Tensor:
    """Mark the drafted nodes that were drawn from a row of q -> bool [B, N - 1]."""
    # of what the host knows, so that it knows this too
    marks = on_host(drafted(draft)) & (on_host(draft.draw)[:, 1:] != int(Draw.FIXED))
    return moved(marks, draft.tokens.device)


def need_q(draft: Draft, marks: Tensor) -> Tensor | None:
    """Return q, or None when no node of `marks` was drawn from it; a drawn node without q is an error (law 3)."""
    if draft.q is None:
        message = "the draft has SAMPLED or DISTINCT nodes but no q: record the law they were drawn from"
        refuse(marks, lambda: WorkError(message))
    return draft.q


def refuse_undrawable(q_x: Tensor, marks: Tensor) -> None:
    """Raise when a drawn token has no mass in the law recorded for it: that cannot be the law it was drawn from."""
    wrong = marks & ~(q_x > 0)
    refuse(
        wrong,
        lambda: WorkError(
            f"{int(wrong.sum())} drafted token(s) have probability 0 in q: the recorded q is not the law drawn from; "
            "record q after temperature and truncation, in the target's vocabulary"
        ),
    )


def drop(weights: Tensor, x: Tensor, where: Tensor) -> Tensor:
    """Take token x [...] out of rows weights [..., V] in place, where `where` [...] says so, and return them.

    A refused token has no residual mass, drawn or FIXED; rounding must not give it any.
    """
    x = x.clamp(min=0)[..., None]
    return weights.scatter_(-1, x, weights.gather(-1, x).masked_fill_(where[..., None], 0.0))


def or_else(weights: Tensor, p: Tensor) -> Tensor:
    """Return weights [B, V], or p [B, V] in rows that rounding left empty: p and q equal there, to the last bit."""
    some = weights.sum(1) > 0
    return weights if certainly(some) else torch.where(some[:, None], weights, p)


def chain_verdict(draft: Draft, accepted: Tensor, next_token: Tensor) -> Verdict:
    """Write the verdict of chains: the first `accepted` [B] nodes stand."""
    node = torch.arange(1, max(2, draft.nodes), device=accepted.device)
    path = torch.where(node <= accepted[:, None], node, -1)
    return Verdict(path, accepted, next_token)
