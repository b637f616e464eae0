"""Rules as tensor code: shapes, padding, batch independence, the shared greedy walk, refusals."""

import random
from dataclasses import replace

import pytest
import torch

from slipstream.sampling import RequestRngs
from slipstream.testing import Sprout, TraceRngs, enumerate_traces, one_hot, pack
from slipstream.types import Draft, Draw, Laws, RequestError, SamplingParams, Sequence, Verdict
from slipstream.verify import RULES

V = 5
LOSSLESS = ["chain", "block", "tree", "coupled", "auto"]
TREES = ["tree", "coupled", "auto"]


def law(rand: random.Random) -> list[float]:
    weights = [rand.random() ** 2 for _ in range(V)]
    return [w / sum(weights) for w in weights]


def sprout(rand: random.Random, kind: str, nodes: int) -> Sprout:
    """A draft of one row: `fixed` or `drawn` chain, `tree` of both, or nothing."""
    s = Sprout([rand.randrange(V)])
    for i in range(nodes):
        parent = rand.randrange(i + 1) if kind == "tree" else i
        s.q.setdefault(parent, law(rand))
        free = [t for t in range(V) if t not in s.siblings(parent)]
        if not free:
            continue
        drawn = kind == "drawn" or (kind == "tree" and rand.random() < 0.5)
        s.add(rand.choice(free), parent, Draw.DISTINCT if drawn else Draw.FIXED)
    return s


def batch(seed: int, kinds: list[str], nodes: int | None = None) -> tuple[Draft, torch.Tensor]:
    rand = random.Random(seed)
    draft = pack([sprout(rand, kind, rand.randrange(1, 6) if kind != "none" else 0) for kind in kinds], V, nodes)
    p = torch.tensor([[law(rand) for _ in range(draft.nodes)] for _ in kinds], dtype=torch.float64)
    return draft, p


def rngs_of(rows: list[int], shared_noise: bool = False) -> RequestRngs:
    params = SamplingParams(temperature=1.0)
    return RequestRngs([Sequence(b, [0], 1, params, seed=77 + b) for b in rows], shared_noise)


def row_of(verdict: Verdict, b: int) -> tuple[list[int], int, int]:
    path = [n for n in verdict.path[b].tolist() if n >= 0]
    return path, int(verdict.accepted[b]), int(verdict.next_token[b])


def alone(draft: Draft, p: torch.Tensor, b: int) -> tuple[Draft, Laws]:
    n = int(draft.length[b])
    parents = draft.parents[b : b + 1, :n]
    drawn = bool((draft.draw[b, :n] != 0).any())
    q = draft.q[b : b + 1, :n] if draft.q is not None and drawn else None
    chain = bool((parents == torch.arange(-1, n - 1)).all())
    one = Draft(draft.tokens[b : b + 1, :n], parents, draft.length[b : b + 1], draft.draw[b : b + 1, :n], q, chain)
    return one, Laws(p[b : b + 1, :n])


def drawn_from(draft: Draft) -> torch.Tensor:
    """Mark the nodes with a drawn child: only their rows of q mean anything -> [B, N]."""
    real = (torch.arange(draft.nodes) < draft.length[:, None]) & (draft.draw != 0)
    marks = torch.zeros_like(draft.tokens)
    return marks.scatter_add(1, draft.parents.clamp(min=0), real.long()) > 0


KINDS = {
    "chain": ["fixed", "drawn", "none", "drawn", "fixed", "drawn"],
    "tree": ["tree", "fixed", "tree", "none", "drawn", "tree"],
}


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("rule", LOSSLESS)
def test_a_row_decides_the_same_alone_and_in_any_batch(rule: str, seed: int) -> None:
    kinds = KINDS["tree" if rule in TREES and seed % 2 else "chain"]
    draft, p = batch(seed, kinds)
    together = RULES[rule](draft, Laws(p), rngs_of(list(range(6))))
    assert together.path.shape == (6, draft.nodes - 1)
    for b in range(6):
        by_itself = RULES[rule](*alone(draft, p, b), rngs_of([b]))
        assert row_of(together, b) == row_of(by_itself, 0)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("rule", LOSSLESS)
def test_padding_and_unused_rows_of_q_change_nothing_whatever_they_hold(rule: str, seed: int) -> None:
    draft, p = batch(seed, KINDS["tree" if rule in TREES else "chain"])
    wide, _ = batch(seed, KINDS["tree" if rule in TREES else "chain"], draft.nodes + 3)
    pad = torch.arange(wide.nodes) >= wide.length[:, None]
    p_wide = torch.nn.functional.pad(p, (0, 0, 0, 3)).masked_fill(pad[..., None], float("nan"))
    q_wide = None if wide.q is None else wide.q.masked_fill(~drawn_from(wide)[..., None], float("nan"))
    parents = wide.parents if wide.chain else wide.parents.masked_fill(pad, 0)
    wide = replace(wide, tokens=wide.tokens.masked_fill(pad, -1), parents=parents, q=q_wide)
    narrow = RULES[rule](draft, Laws(p), rngs_of(list(range(6))))
    padded = RULES[rule](wide, Laws(p_wide), rngs_of(list(range(6))))
    for b in range(6):
        assert row_of(narrow, b) == row_of(padded, b)


@pytest.mark.parametrize("rule", LOSSLESS)
def test_accepted_nodes_form_a_path_from_the_root(rule: str) -> None:
    for seed in range(20):
        draft, p = batch(seed, KINDS["tree" if rule in TREES else "chain"])
        verdict = RULES[rule](draft, Laws(p), rngs_of(list(range(6))))
        for b in range(6):
            path, accepted, token = row_of(verdict, b)
            assert len(path) == accepted
            assert 0 <= token < V
            assert verdict.path[b, accepted:].eq(-1).all()
            for above, node in zip([0, *path], path, strict=False):
                assert draft.parents[b, node] == above
                assert node < draft.length[b]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rule", LOSSLESS)
def test_greedy_points_and_one_hot_rows_agree(rule: str, dtype: torch.dtype) -> None:
    for seed in range(20):
        draft, p = batch(seed, KINDS["tree" if rule in TREES else "chain"])
        points = p.argmax(-1)
        sharp = torch.nn.functional.one_hot(points, V).to(dtype)
        walked = RULES[rule](draft, Laws(points=points), rngs_of(list(range(6))))
        judged = RULES[rule](draft, Laws(sharp), rngs_of(list(range(6))))
        assert [row_of(walked, b) for b in range(6)] == [row_of(judged, b) for b in range(6)]


@pytest.mark.parametrize("rule", LOSSLESS)
def test_greedy_accepts_a_right_chain_up_to_its_first_wrong_token(rule: str) -> None:
    points = torch.tensor([[3, 1, 4, 2]]).repeat(5, 1)
    tokens = torch.tensor([[0, 3, 1, 4], [0, 3, 1, 0], [0, 3, 0, 4], [0, 0, 1, 4], [0, 3, 1, 4]])
    length = torch.tensor([4, 4, 4, 4, 2])
    parents = torch.arange(-1, 3).repeat(5, 1)
    verdict = RULES[rule](Draft(tokens, parents, length, torch.zeros_like(tokens)), Laws(points=points), rngs_of([0]))
    assert verdict.accepted.tolist() == [3, 2, 1, 0, 1]
    assert verdict.next_token.tolist() == [2, 4, 1, 3, 1]
    assert verdict.path[1].tolist() == [1, 2, -1]


@pytest.mark.parametrize("rule", LOSSLESS)
def test_an_empty_draft_is_plain_decoding(rule: str) -> None:
    draft = pack([Sprout([1]), Sprout([2])], V)
    p = torch.tensor([[one_hot(4, V)], [one_hot(3, V)]], dtype=torch.float64)
    for laws in (Laws(p), Laws(points=p.argmax(-1))):
        verdict = RULES[rule](draft, laws, rngs_of([0, 1]))
        assert verdict.next_token.tolist() == [4, 3]
        assert verdict.accepted.tolist() == [0, 0]
        assert verdict.path.tolist() == [[-1], [-1]]


@pytest.mark.parametrize("rule", ["chain", "block"])
def test_a_chain_rule_refuses_a_tree_and_names_what_would_work(rule: str) -> None:
    root = Sprout([0])
    root.add(1, 0)
    root.add(2, 0)
    draft = pack([root], V)
    with pytest.raises(RequestError, match="'tree'"):
        RULES[rule](draft, Laws(points=torch.zeros(1, 3, dtype=torch.int64)), rngs_of([0]))


def test_block_takes_the_last_passing_level_even_after_a_failed_one() -> None:
    rand = random.Random(5)
    draft = pack([sprout(rand, "drawn", 3)], V)
    p = torch.tensor([[law(rand) for _ in range(4)]], dtype=torch.float64)

    class Coins:
        def accept(self, a: torch.Tensor, active: torch.Tensor | None = None) -> torch.Tensor:
            return torch.tensor([[False, True, False]])

        def correct(self, w: torch.Tensor, active: torch.Tensor | None = None) -> torch.Tensor:
            return w.argmax(1)

    verdict = RULES["block"](draft, Laws(p), Coins())  # type: ignore[arg-type]
    assert verdict.accepted.tolist() == [2]


@pytest.mark.parametrize("rule", ["chain", "block", "tree", "auto"])
def test_a_token_that_p_excludes_never_stands(rule: str) -> None:
    root = Sprout([0])
    root.q[0] = (0.5, 0.5, 0.0, 0.0, 0.0)
    root.add(1, 0, Draw.SAMPLED)
    p = torch.tensor([[(0.2, 0.0, 0.8, 0.0, 0.0)] * 2], dtype=torch.float64)

    def run(traces: list) -> list[tuple[int, int]]:
        verdict = RULES[rule](pack([root], V), Laws(p), TraceRngs(traces))
        return [(int(verdict.accepted), int(verdict.next_token))]

    assert enumerate_traces(run) == {(0, 2): 1.0}


def test_rules_say_what_they_are() -> None:
    assert all(rule.lossless and rule.name == name for name, rule in RULES.items())
    assert [name for name, rule in RULES.items() if rule.tree] == ["tree", "coupled", "auto"]
    assert [name for name, rule in RULES.items() if rule.shared_noise] == ["coupled"]


@pytest.mark.parametrize(("kind", "twin"), [("drawn", "block"), ("fixed", "chain"), ("tree", "tree")])
def test_auto_decides_as_the_rule_made_for_the_draft(kind: str, twin: str) -> None:
    for seed in range(20):
        draft, p = batch(seed, [kind] * 6)
        found = RULES["auto"](draft, Laws(p), rngs_of(list(range(6))))
        want = RULES[twin](draft, Laws(p), rngs_of(list(range(6))))
        branching = (draft.parents.diff(dim=1) != 1) & (torch.arange(1, draft.nodes) < draft.length[:, None])
        rows = [b for b in range(6) if kind != "tree" or bool(branching[b].any())]
        assert [row_of(found, b) for b in rows] == [row_of(want, b) for b in rows]
