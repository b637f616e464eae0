"""Wrong drafters and wrong rules, planted for the negative controls: each breaks one law in one way.

In and out: as the roles they pretend to fill. `controls` pairs each with its right twin. Never used to decode.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from slipstream.testing.toy_drafters import SampledToy, TreeToy
from slipstream.testing.toys import Law
from slipstream.types import Draft, Draw, Rngs, Sequence, Verdict
from slipstream.verify.block import BlockRule
from slipstream.verify.chain import ChainRule
from slipstream.verify.rule import Rule, chain_verdict, drafted
from slipstream.verify.tree import TreeRule

# ---------------------------------------------------------------- wrong drafters


class Mislabelled(TreeToy):
    """Draws as its kinds say, records the plain law as q, and may tell the rule another kind."""

    def __init__(self, law: Law, vocab: int, kinds: tuple[Draw, ...], told: Draw | None = None, depth: int = 1) -> None:
        super().__init__(law, vocab, kinds, depth)
        self._told = told

    def propose(self, rows: list[Sequence], budget: list[int], rngs: Rngs) -> Draft:
        """Draft, in the wrong way."""
        draft = super().propose(rows, budget, rngs)
        tokens, parents = draft.tokens.tolist(), draft.parents.tolist()
        q = torch.zeros(*draft.tokens.shape, self.vocab, dtype=torch.float64)
        for b, row in enumerate(rows):
            paths = [tuple(row.tokens)]
            for i in range(1, draft.nodes):
                paths.append((*paths[parents[b][i]], tokens[b][i]))
            q[b] = torch.tensor([self.law(path) for path in paths], dtype=torch.float64)
        draw = draft.draw if self._told is None else torch.full_like(draft.draw, int(self._told))
        return replace(draft, q=q, draw=draw)


class RawQ(SampledToy):
    """Draws from a sharpened law, records the raw one."""

    def propose(self, rows: list[Sequence], budget: list[int], rngs: Rngs) -> Draft:
        """Draft, in the wrong way."""
        draft = super().propose(rows, budget, rngs)
        assert draft.q is not None
        raw = draft.q.sqrt()
        return replace(draft, q=raw / raw.sum(-1, keepdim=True).clamp(min=1e-300))


class ShiftedQ(SampledToy):
    """Records with each node the law its own token was drawn from, not the law of what follows."""

    def propose(self, rows: list[Sequence], budget: list[int], rngs: Rngs) -> Draft:
        """Draft, in the wrong way."""
        draft = super().propose(rows, budget, rngs)
        assert draft.q is not None
        return replace(draft, q=torch.roll(draft.q, 1, 1) + 1e-9)


class Deduplicating(TreeToy):
    """Draws two siblings with replacement and drops the second when it repeats the first."""

    def propose(self, rows: list[Sequence], budget: list[int], rngs: Rngs) -> Draft:
        """Draft, in the wrong way."""
        draft = super().propose(rows, budget, rngs)
        repeats = draft.tokens[:, 1] == draft.tokens[:, 2]
        return replace(draft, length=torch.where(repeats, 2, draft.length))


class BestOfDrawn(TreeToy):
    """A dynamic tree over drawn children: of two siblings, only the likelier stays."""

    def propose(self, rows: list[Sequence], budget: list[int], rngs: Rngs) -> Draft:
        """Draft, in the wrong way."""
        draft = super().propose(rows, budget, rngs)
        assert draft.q is not None
        mass = draft.q[:, 0].gather(1, draft.tokens[:, 1:])
        best = draft.tokens[:, 1:].gather(1, mass.argmax(1, keepdim=True))
        tokens = torch.cat([draft.tokens[:, :1], best], 1)
        return Draft(tokens, draft.parents[:, :2], draft.length.clamp(max=2), draft.draw[:, :2], draft.q[:, :2], True)


# ---------------------------------------------------------------- wrong rules


class Weights:
    """The real randomness, with the weights of the correction draw or the coins changed on the way."""

    def __init__(
        self,
        rngs: Rngs,
        correct: Callable[[Tensor], Tensor] = lambda w: w,
        coins: Callable[[Tensor], Tensor] = lambda a: a,
    ) -> None:
        self.draft, self.draft_nodes, self.shared = rngs.draft, rngs.draft_nodes, rngs.shared
        self._rngs, self._correct, self._coins = rngs, correct, coins

    def correct(self, w: Tensor, active: Tensor | None = None) -> Tensor:
        """Draw from changed weights."""
        return self._rngs.correct(self._correct(w), active)

    def accept(self, a: Tensor, active: Tensor | None = None) -> Tensor:
        """Flip changed coins."""
        return self._rngs.accept(self._coins(a), active)


def first_coin_passes(a: Tensor) -> Tensor:
    """Let the first drafted token stand whatever its coin says."""
    return torch.cat([torch.ones_like(a[:, :1]), a[:, 1:]], 1)


class WrongChain(ChainRule):
    """The chain rule with its coins or its correction changed."""

    def __init__(
        self, correct: Callable[[Tensor], Tensor] | None = None, coins: Callable[[Tensor], Tensor] | None = None
    ) -> None:
        self._correct, self._coins = correct or (lambda w: w), coins or (lambda a: a)

    def judge(self, draft: Draft, p: Tensor, rngs: Rngs) -> Verdict:
        """Judge, in the wrong way."""
        return super().judge(draft, p, Weights(rngs, self._correct, self._coins))


class RedrawFromP(ChainRule):
    """A refused token is replaced by a draw from p, not from what p has more than q."""

    def judge(self, draft: Draft, p: Tensor, rngs: Rngs) -> Verdict:
        """Judge, in the wrong way."""
        verdict = super().judge(draft, p, rngs)
        row = p[torch.arange(len(p)), verdict.accepted]
        return replace(verdict, next_token=rngs.correct(row))


class RowBefore(ChainRule):
    """The bonus comes from the row of the last drafted token, not from the row after it."""

    def judge(self, draft: Draft, p: Tensor, rngs: Rngs) -> Verdict:
        """Judge, in the wrong way."""
        verdict = super().judge(draft, p, rngs)
        whole = (verdict.accepted == draft.length - 1) & (verdict.accepted > 0)
        row = p[torch.arange(len(p)), (verdict.accepted - 1).clamp(min=0)]
        return replace(verdict, next_token=torch.where(whole, rngs.correct(row, active=whole), verdict.next_token))


class UntemperedBonus(ChainRule):
    """The bonus is drawn at temperature 1 where p is at temperature 1/2."""

    def judge(self, draft: Draft, p: Tensor, rngs: Rngs) -> Verdict:
        """Judge, in the wrong way."""
        verdict = super().judge(draft, p, rngs)
        whole = verdict.accepted == draft.length - 1
        row = p[torch.arange(len(p)), verdict.accepted].sqrt()
        return replace(verdict, next_token=torch.where(whole, rngs.correct(row, active=whole), verdict.next_token))


class EarlyExit(BlockRule):
    """Block verification that stops at the first level that fails."""

    def judge(self, draft: Draft, p: Tensor, rngs: Rngs) -> Verdict:
        """Judge, in the wrong way."""
        outer = rngs

        class Stop(Weights):
            def accept(self, a: Tensor, active: Tensor | None = None) -> Tensor:
                return outer.accept(a, active).cumprod(1).bool()

        return super().judge(draft, p, Stop(rngs))


class TokenResidual(BlockRule):
    """Block levels with the token-by-token residual max(p - q, 0)."""

    def judge(self, draft: Draft, p: Tensor, rngs: Rngs) -> Verdict:
        """Judge, in the wrong way."""
        verdict = super().judge(draft, p, rngs)
        assert draft.q is not None
        at = torch.arange(len(p)), verdict.accepted
        short = verdict.accepted < draft.length - 1
        row = (p[at] - draft.q[at]).clamp(min=0)
        short = short & (row.sum(1) > 0)
        return replace(verdict, next_token=torch.where(short, rngs.correct(row, active=short), verdict.next_token))


class UncappedLast(Rule):
    """Hierarchical acceptance (2601.05724) as released: the last level uses the product of ratios without its cap."""

    def __init__(self, capped: bool) -> None:
        self._capped = capped

    def judge(self, draft: Draft, p: Tensor, rngs: Rngs) -> Verdict:
        """Judge, in the wrong way."""
        assert draft.q is not None
        B, L = len(p), draft.nodes - 1
        joint_p, joint_q, most = torch.ones(B, 1), torch.ones(B, 1), torch.ones(B, 1)
        rows, levels = [], []
        for i in range(L):
            most = torch.maximum(most, joint_p / joint_q)
            gap = joint_p / most * p[:, i] - joint_q * draft.q[:, i]
            plus, minus = gap.clamp(min=0), (-gap).clamp(min=0)
            whole = torch.maximum(plus.sum(1), minus.sum(1))
            levels.append(torch.where(whole > 0, plus.sum(1) / whole, 0.0))
            rows.append(plus)
            x = draft.tokens[:, i + 1 : i + 2]
            joint_p, joint_q = joint_p * p[:, i].gather(1, x), joint_q * draft.q[:, i].gather(1, x)
        last = joint_p / joint_q / (most if self._capped else 1.0)
        coins = torch.stack([*levels[1:], last[:, 0]], 1).clamp(max=1.0)
        passed = rngs.accept(coins)
        accepted = (passed * torch.arange(1, L + 1)).amax(1)
        rows.append(p[:, L])
        weights = torch.stack(rows, 1)[torch.arange(B), accepted]
        weights = torch.where(weights.sum(1, keepdim=True) > 0, weights, p[:, 0])
        return chain_verdict(draft, accepted, rngs.correct(weights))


class Typical(Rule):
    """Typical acceptance (Medusa): any token above a threshold that falls with the entropy of p."""

    def judge(self, draft: Draft, p: Tensor, rngs: Rngs) -> Verdict:
        """Judge, in the wrong way."""
        rows = p[:, :-1]
        entropy = -(rows * rows.clamp(min=1e-300).log()).sum(-1)
        mass = rows.gather(2, draft.tokens[:, 1:, None])[..., 0]
        passed = (mass > torch.minimum(torch.tensor(0.3), 0.09 * (-entropy).exp())) & drafted(draft)
        accepted = passed.long().cumprod(1).sum(1)
        return chain_verdict(draft, accepted, rngs.correct(p[torch.arange(len(p)), accepted]))


class Unrenormalised(TreeRule):
    """Every child is tested against the first p: refused siblings are taken out of it at the end only."""

    def judge(self, draft: Draft, p: Tensor, rngs: Rngs) -> Verdict:
        """Judge, in the wrong way."""
        stands = rngs.accept(p[:, 0].gather(1, draft.tokens[:, 1:]))
        first = torch.where(stands.any(1), stands.int().argmax(1) + 1, 0)
        left = p[:, 0].scatter(1, draft.tokens[:, 1:], 0.0)
        row = torch.where(stands.any(1)[:, None], p[torch.arange(len(p)), first], left)
        path = torch.full((len(p), draft.nodes - 1), -1)
        path[:, 0] = torch.where(stands.any(1), first, -1)
        return Verdict(path, stands.any(1).long(), rngs.correct(row))
