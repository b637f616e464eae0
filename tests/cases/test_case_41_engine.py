"""Case 41 and the like: a row whose logits are not finite fails alone; a drafter's nonsense never reaches the model."""

from __future__ import annotations

import pytest
import torch
from cases_kit import chain_target, finish, make_engine, output, request

from slipstream.testing import SampledToy, ScriptedToy, ToyTarget, greedy_toy, memoryless, scripted
from slipstream.types import Draft, Draw, WorkError

TEXT = [3, 4, 5, 6, 7, 8]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("nodes", [0, 1, 4])
def test_case_41_nan_logits_fail_their_request_only(temperature: float, nodes: int) -> None:
    target = ToyTarget(scripted(TEXT, 16, 2, 1.0), 16)
    target.poison = lambda prefix: prefix[0] == 9 and len(prefix) >= 6
    good = [request(i, temperature=temperature, max_tokens=12, seed=1) for i in range(3)]
    bad = request(9, [9, 2], temperature=temperature, max_tokens=12, seed=1)
    finish(make_engine(target, greedy_toy(target.law, 16), nodes), good[0], bad, *good[1:])
    assert [output(r) for r in good] == [TEXT * 2] * 3
    assert bad.finish_reason == "error"
    assert "not finite" in bad.error
    assert output(bad) == TEXT[:4]  # what plain decoding would have emitted before it failed


def test_case_29_placeholder_ids_end_a_fixed_draft() -> None:
    target = chain_target(TEXT)
    engine = make_engine(target, ScriptedToy(lambda prefix, n: [TEXT[(len(prefix) - 2) % 6], -1, -1][:n], 16), 4)
    row = request(max_tokens=12)
    finish(engine, row)
    assert output(row) == TEXT * 2
    assert row.stats.num_draft_tokens == row.stats.num_accepted_tokens


def test_case_29_an_unknown_id_among_drawn_ones_is_an_error() -> None:
    class Wide(SampledToy):
        def propose(self, rows, budget, rngs) -> Draft:
            draft = super().propose(rows, budget, rngs)
            draft.tokens[:, 1] = 16
            draft.draw[:, 1] = int(Draw.SAMPLED)
            return draft

    engine = make_engine(chain_target(TEXT), Wide(memoryless(*[1 / 16] * 16), 16), 3)
    with pytest.raises(WorkError, match="drafted id 16, outside"):
        finish(engine, request(temperature=1.0))


def test_a_draft_over_its_budget_is_an_error() -> None:
    class Greedy(ScriptedToy):
        def propose(self, rows, budget, rngs) -> Draft:
            return super().propose(rows, [n + 1 for n in budget], rngs)

    engine = make_engine(chain_target(TEXT), Greedy(lambda prefix, n: [1] * n, 16), 3)
    with pytest.raises(WorkError, match="budget"):
        finish(engine, request())


def test_a_half_precision_row_is_not_a_law() -> None:
    """Logits come in any dtype; laws are computed in float32 or better."""
    from slipstream.sampling import laws

    row = request(temperature=1.0)
    draft = Draft(torch.tensor([[2]]), torch.tensor([[-1]]), torch.tensor([1]), torch.tensor([[0]]))
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        p = laws([row], torch.randn(1, 1, 16).to(dtype), draft).probs
        assert p.dtype == torch.float32
        assert abs(p.sum().item() - 1) < 1e-6
