"""Dynamic trees against a plain reference; hybrid nodes node by node; what is run and what is not."""

import math
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.sampling import RequestRngs
from slipstream.testing import RandomLaw, memoryless
from slipstream.types import Draft, Draw, RequestError, SamplingParams, Sequence
from toy_feed import GrowingToy

V = 3


def row_of(b: int, *, temperature: float = 0.0, eos: tuple[int, ...] = (), **params: object) -> Sequence:
    rand = random.Random(b)
    tokens = [rand.randrange(V) for _ in range(1 + b)]
    settings_ = SamplingParams(temperature=temperature, **params)  # type: ignore[arg-type]
    return Sequence(b, tokens, len(tokens), settings_, seed=b, eos_ids=eos)


def paths(draft: Draft, b: int) -> list[tuple[int, ...]]:
    found: list[tuple[int, ...]] = [()]
    for i in range(1, int(draft.length[b])):
        found.append((*found[int(draft.parents[b, i])], int(draft.tokens[b, i])))
    return found[1:]


def eagle2(law: RandomLaw, row: Sequence, limit: int, depth: int, k: int, ends: tuple[int, ...]) -> list[tuple]:
    """The procedure of the paper, node by node: expand the best k of each level, then keep the best of the pool."""

    def children(score: float, path: tuple[int, ...]) -> list[tuple[float, tuple[int, ...]]]:
        row_law = law((*row.tokens, *path))
        top = sorted(range(V), key=lambda t: (-row_law[t], t))[:k]
        return [(score + math.log(row_law[t]), (*path, t)) for t in top if row_law[t] > 0]

    level = children(0.0, ())
    pool = list(level)
    for _ in range(depth - 1):
        best = sorted((c for c in level if c[1][-1] not in ends), key=lambda c: -c[0])[:k]
        level = [child for score, path in best for child in children(score, path)]
        pool += level
    return [path for _, path in sorted(pool, key=lambda c: -c[0])[:limit]]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 999), st.integers(1, 4), st.integers(1, 4), st.integers(1, 25), st.booleans())
def test_fixed_trees_are_the_papers(seed: int, depth: int, k: int, limit: int, ending: bool) -> None:
    law, ends = RandomLaw(V, seed, zeros=seed % 3 == 0), (seed % V,) if ending else ()
    row = row_of(seed % 3, eos=ends)
    draft = GrowingToy(law, depth=depth, top_k=k).propose([row], [limit], RequestRngs([row]))
    assert paths(draft, 0) == eagle2(law, row, limit, depth, k, ends)
    assert draft.q is None
    assert (draft.draw == Draw.FIXED).all()


def test_ties_go_to_the_earlier_place_and_trees_stay_closed() -> None:
    row = row_of(1)
    draft = GrowingToy(memoryless(0.0, 0.5, 0.5), depth=3, top_k=2).propose([row], [4], RequestRngs([row]))
    assert paths(draft, 0) == [(1,), (2,), (1, 1), (1, 2)]
    sure = GrowingToy(memoryless(0.0, 1.0, 0.0), depth=4, top_k=3).propose([row], [9], RequestRngs([row]))
    assert paths(sure, 0) == [(1,), (1, 1), (1, 1, 1), (1, 1, 1, 1)], "equal scores all along, no duplicate, no zero"
    assert sure.chain


@pytest.mark.parametrize("drawn", [True, False])
@pytest.mark.parametrize("room", [99, 7, 3])
def test_rows_grow_alike_alone_and_together(drawn: bool, room: int) -> None:
    law, limits = RandomLaw(V, 5), [7, 0, 12, 3, 1, 20, 9, 5]
    sizes = {"depth": 6, "top_k": 4, "drawn": drawn, "room": room}
    rows = [row_of(b, temperature=(0.0, 1.0, 0.7)[b % 3]) for b in range(len(limits))]
    together = GrowingToy(law, **sizes).propose(rows, limits, RequestRngs(rows))
    for b, row in enumerate(rows):
        alone = GrowingToy(law, **sizes).propose([row], [limits[b]], RequestRngs([row]))
        n = int(alone.length[0])
        assert int(together.length[b]) == n
        for name in ("tokens", "parents", "draw"):
            assert torch.equal(getattr(together, name)[b, :n], getattr(alone, name)[0]), name
        if alone.q is not None and together.q is not None:
            assert torch.equal(together.q[b, :n], alone.q[0])
        drawn_nodes = bool((together.draw[b] != Draw.FIXED).any())
        assert drawn_nodes == (drawn and limits[b] > 0 and not row.params.greedy)


def test_only_nodes_that_can_have_kept_descendants_are_run() -> None:
    rows = [row_of(b) for b in range(3)]
    toy = GrowingToy(RandomLaw(V, 1), depth=5, top_k=3)
    toy.propose(rows, [1, 2, 0], RequestRngs(rows))
    assert toy.feed.fed == [0, 1, 0]
    toy.propose(rows, [1, 1, 1], RequestRngs(rows))
    assert toy.feed.passes == 1


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_no_more_nodes_are_run_than_there_is_room_for(temperature: float) -> None:
    for room in range(8):
        rows = [row_of(b, temperature=temperature) for b in range(2)]
        toy = GrowingToy(RandomLaw(V, 1), depth=6, top_k=3, room=room)
        draft = toy.propose(rows, [30, 30], RequestRngs(rows))
        assert max(toy.feed.fed) <= room
        assert int(draft.length.min()) > 1


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_nothing_grows_below_what_is_not_finite(temperature: float) -> None:
    rows = [row_of(b, temperature=temperature) for b in range(3)]
    toy = GrowingToy(RandomLaw(V, 1), depth=3, top_k=3)
    toy.feed.broken = frozenset({tuple(rows[0].tokens), (*rows[1].tokens, 0), (*rows[1].tokens, 1)})
    draft = toy.propose(rows, [9, 9, 9], RequestRngs(rows))
    assert int(draft.length[0]) == 1
    assert all(path[0] not in (0, 1) for path in paths(draft, 1) if len(path) > 1)
    assert int(draft.length[2]) > 4
    assert toy.growth.broken == 2
    toy.feed.broken = frozenset()
    toy.propose(rows, [9, 9, 9], RequestRngs(rows))
    assert toy.growth.broken == 0


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 999), st.integers(1, 4), st.integers(1, 4), st.integers(1, 25))
def test_hybrid_nodes_are_one_drawn_child_and_the_likeliest(seed: int, depth: int, k: int, limit: int) -> None:
    law, row = RandomLaw(V, seed, zeros=seed % 3 == 0), row_of(seed % 3, temperature=1.0)
    draft = GrowingToy(law, depth=depth, top_k=k).propose([row], [limit], RequestRngs([row]))
    assert draft.q is not None
    nodes = [(), *paths(draft, 0)]
    assert len(nodes) <= limit + 1
    assert max(map(len, nodes)) <= depth
    for parent in range(len(nodes)):
        kids = [i for i in range(1, len(nodes)) if int(draft.parents[0, i]) == parent]
        if not kids:
            continue
        kinds = draft.draw[0, kids].tolist()
        full = torch.tensor(law((*row.tokens, *nodes[parent])), dtype=torch.float64)
        fixed = [int(draft.tokens[0, i]) for i, kind in zip(kids, kinds, strict=True) if kind == Draw.FIXED]
        assert fixed == sorted(range(V), key=lambda t: (-float(full[t]), t))[: len(fixed)]
        assert len(fixed) < max(2, k)
        rest = full.clone()
        rest[fixed] = 0
        if float(rest.sum()) > 0:
            assert kinds == [Draw.SAMPLED] + [Draw.FIXED] * len(fixed)
            assert torch.allclose(draft.q[0, parent], rest / rest.sum(), atol=1e-12)
        else:
            assert kinds == [Draw.FIXED] * len(fixed)


def test_a_budget_is_spread_over_the_levels() -> None:
    row = row_of(1, temperature=1.0)
    draft = GrowingToy(RandomLaw(V, 3), depth=4, top_k=4).propose([row], [10], RequestRngs([row]))
    depths = [len(path) for path in paths(draft, 0)]
    assert [depths.count(d) for d in range(1, 5)] == [3, 4, 2, 1]  # the root has three children; 4, 2, 1 of the 7 left


def test_penalties_shape_the_drawn_law_by_the_path() -> None:
    row = row_of(0, temperature=1.0, presence_penalty=2.0)
    draft = GrowingToy(memoryless(0.4, 0.35, 0.25), depth=2, top_k=1).propose([row], [2], RequestRngs([row]))
    assert draft.q is not None
    first = int(draft.tokens[0, 1])
    weights = torch.tensor([0.4, 0.35, 0.25], dtype=torch.float64)
    assert torch.allclose(draft.q[0, 0], weights)
    weights[first] *= math.exp(-2.0)
    assert torch.allclose(draft.q[0, 1], weights / weights.sum())


@pytest.mark.parametrize("options", [{"depth": 0}, {"top_k": 0}, {"top_k": 1.5}])
def test_options_that_cannot_be(options: dict[str, int]) -> None:
    with pytest.raises(RequestError, match=r"whole number of at least 1"):
        GrowingToy(RandomLaw(V, 1), **options)
