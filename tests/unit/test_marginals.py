"""Best-first trees over marginals: the N best prefixes, in order, whatever the batch; sizes that pay for themselves."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.drafters.marginals import broken, marginal_tree
from slipstream.drafters.ranks import highest
from slipstream.types import Draft, Draw, SamplingParams, Sequence

V = 4


def row_of(b: int = 0, *, eos: tuple[int, ...] = (), **params: object) -> Sequence:
    return Sequence(b, [7, b % V], 1, SamplingParams(**params), eos_ids=eos)  # type: ignore[arg-type]


def paths(draft: Draft, b: int) -> list[tuple[int, ...]]:
    """The path of each node of a row, root excluded, in the order of the nodes."""
    found: list[tuple[int, ...]] = [()]
    for i in range(1, int(draft.length[b])):
        found.append((*found[int(draft.parents[b, i])], int(draft.tokens[b, i])))
    return found[1:]


def best(logits: torch.Tensor, n: int, ends: tuple[int, ...] = (), heat: float = 1.0) -> list[tuple[float, tuple]]:
    """All prefixes that do not run past an end, the n likeliest, by counting."""
    logp = (logits.double() / heat).log_softmax(-1).tolist()
    found = []
    for depth in range(1, len(logp) + 1):
        for path in itertools.product(range(logits.shape[-1]), repeat=depth):
            if not set(path[:-1]) & set(ends):
                found.append((sum(logp[d][t] for d, t in enumerate(path)), path))
    return sorted(found, key=lambda item: -item[0])[:n]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 3), st.integers(1, 30), st.booleans())
def test_the_n_best_prefixes_in_order(seed: int, depth: int, n: int, ending: bool) -> None:
    logits = 2 * torch.randn(1, depth, V, generator=torch.Generator().manual_seed(seed))
    ends = (seed % V,) if ending else ()
    draft = marginal_tree([row_of(eos=ends)], logits, [n])
    want = best(logits[0], n, ends)
    assert paths(draft, 0) == [path for _, path in want]
    assert draft.q is None
    assert (draft.draw == Draw.FIXED).all()


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.lists(st.integers(0, 20), min_size=2, max_size=5))
def test_equal_scores_give_the_same_closed_tree_alone_and_together(seed: int, limits: list[int]) -> None:
    g = torch.Generator().manual_seed(seed)
    logits = torch.randint(0, 2, (len(limits), 3, 6), generator=g).float()  # ties everywhere
    rows = [row_of(b) for b in range(len(limits))]
    together = marginal_tree(rows, logits, limits)
    for b, n in enumerate(limits):
        alone = marginal_tree([rows[b]], logits[b : b + 1], [n])
        assert paths(together, b) == paths(alone, 0)
        found = paths(together, b)
        assert len(set(found)) == len(found) == n
        assert all(path[:-1] in {(), *found[:i]} for i, path in enumerate(found)), "parents come first"


def test_padding_is_well_formed_and_no_wider_than_needed() -> None:
    logits = torch.randn(3, 2, V)
    draft = marginal_tree([row_of(b) for b in range(3)], logits, [5, 0, 2])
    assert draft.length.tolist() == [6, 1, 3]
    assert draft.nodes == 6
    assert draft.parents[1].tolist() == [-1, 0, 1, 2, 3, 4]
    assert draft.tokens[1, 1:].eq(0).all()
    assert draft.tokens[:, 0].tolist() == [0, 1, 2]


@pytest.mark.parametrize("limits", [[0, 0], []])
def test_nothing_to_draft(limits: list[int]) -> None:
    draft = marginal_tree([row_of(b) for b in range(len(limits))], torch.randn(len(limits), 2, V), limits)
    assert draft.tokens.shape == (len(limits), 1)
    assert draft.chain


def test_no_more_nodes_than_there_are_prefixes() -> None:
    draft = marginal_tree([row_of()], torch.tensor([[[0.0, 1.0, -math.inf, -math.inf]]]), [50])
    assert paths(draft, 0) == [(1,), (0,)]


def test_temperature_and_bias_order_the_nodes() -> None:
    logits = torch.tensor([[[2.0, 1.0, 0.0, -1.0], [0.5, 0.0, 1.5, 1.0]]])
    hot = paths(marginal_tree([row_of(temperature=5.0)], logits, [6]), 0)
    assert hot == [path for _, path in best(logits[0], 6, heat=5.0)]
    assert hot != [path for _, path in best(logits[0], 6)]
    biased = paths(marginal_tree([row_of(logit_bias={0: -100.0, 3: 9.0})], logits, [2]), 0)
    assert biased == [(3,), (3, 3)]


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_a_slot_that_is_not_finite_ends_its_row_alone(wrong: float) -> None:
    logits = torch.randn(2, 3, V)
    fine = paths(marginal_tree([row_of(0), row_of(1)], logits, [9, 9]), 0)
    logits[1, 1, 2] = wrong
    draft = marginal_tree([row_of(0), row_of(1)], logits, [9, 9])
    assert paths(draft, 0) == fine
    assert sorted(map(len, paths(draft, 1))) == [1] * V
    assert broken(logits, [9, 9]) == [1]
    assert broken(logits, [9, 1]) == []


def rate(logits: torch.Tensor, n: int, seconds: object) -> float:
    return (1 + sum(math.exp(score) for score, _ in best(logits, n))) / seconds(n + 1)  # type: ignore[operator]


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.floats(0.0, 0.5), st.sampled_from([1, 4]))
def test_the_size_maximises_tokens_per_second(seed: int, slope: float, step: int) -> None:
    logits = 2 * torch.randn(1, 2, V, generator=torch.Generator().manual_seed(seed))

    def seconds(tokens: int) -> float:  # a staircase: a greedy search would stop at its first step
        return 1.0 + slope * (-(-tokens // step) * step)

    draft = marginal_tree([row_of()], logits, [12], seconds=seconds)
    found = rate(logits[0], int(draft.length[0]) - 1, seconds)
    assert found == pytest.approx(max(rate(logits[0], n, seconds) for n in range(13)), rel=1e-9)


def test_a_batch_shares_its_time() -> None:
    """The nodes that pay are taken wherever they are: the sure row gets more than the doubtful one."""
    logits = torch.zeros(2, 4, V)
    logits[0, :, 1] = 9.0
    draft = marginal_tree([row_of(0), row_of(1)], logits, [4, 4], seconds=lambda n: 1 + 0.5 * n)
    assert draft.length.tolist() == [5, 1]
    free = marginal_tree([row_of(0), row_of(1)], logits, [4, 4], seconds=lambda n: 1.0)
    assert free.length.tolist() == [5, 5]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 20), st.sampled_from([8, 2561, 5000]), st.sampled_from([3, 99, 10**6]))
def test_the_highest_values_lower_id_first(seed: int, k: int, width: int, kinds: int) -> None:
    x = torch.randint(0, kinds, (3, width), generator=torch.Generator().manual_seed(seed)).float()
    x[1, seed % width] = -math.inf
    values, ids = highest(x, k)
    for b in range(3):
        want = sorted(range(width), key=lambda t: (-float(x[b, t]), t))[:k]
        assert ids[b].tolist() == want
        assert values[b].tolist() == [float(x[b, t]) for t in want]
