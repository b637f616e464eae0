"""Attention against a written-out softmax: chains, trees, windows, folded and grouped queries."""

from __future__ import annotations

import pytest
import torch

from slipstream.nets.attention import Sight, ancestry, attend, chain_sight, tree_sight

LIKE = torch.empty(0, dtype=torch.float64)
TREE = [-1, 0, 0, 1, 2, 4]
HEADS, KV, DIM = 6, 2, 8


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def sees(query: int, key: int, start: int, parents: list[int], window: int | None) -> bool:
    """Decide by the definition: committed tokens and own ancestors, no further back than the window."""

    def depth(node: int) -> int:
        return 0 if node == 0 else depth(parents[node]) + 1

    position = key if key < start else start + depth(key - start)
    if window is not None and position <= start + depth(query) - window:
        return False
    if key < start:
        return True
    node = query
    while node > key - start:
        node = parents[node]
    return node == key - start


def written_out(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, seen: torch.Tensor, scale: float) -> torch.Tensor:
    out = torch.zeros(q.shape[0], HEADS, DIM, dtype=torch.float64)
    for i in range(q.shape[0]):
        for head in range(HEADS):
            group = head // (HEADS // KV)
            rows = seen[i].nonzero().flatten()
            weights = (k[group, rows] @ q[i, head] * scale).softmax(0)
            out[i, head] = weights @ v[group, rows]
    return out.flatten(1)


def check(sight: Sight, start: int, parents: list[int], window: int | None) -> None:
    n = len(parents)
    q, k, v = random(n, HEADS, DIM), random(KV, start + n, DIM), random(KV, start + n, DIM)
    seen = torch.tensor([[sees(i, j, start, parents, window) for j in range(start + n)] for i in range(n)])
    ours = attend(q, (k[:, sight.begin : sight.end], v[:, sight.begin : sight.end]), sight, 0.3)
    torch.testing.assert_close(ours, written_out(q, k, v, seen, 0.3), rtol=0, atol=1e-12)


@pytest.mark.parametrize("window", [None, 1, 3, 100])
@pytest.mark.parametrize("start", [0, 1, 9])
@pytest.mark.parametrize("nodes", [1, 2, 7, 40])
def test_chain_sees_the_past_and_its_own_ancestors(start: int, nodes: int, window: int | None) -> None:
    check(chain_sight(start, nodes, window, HEADS // KV, LIKE), start, list(range(-1, nodes - 1)), window)


@pytest.mark.parametrize("window", [None, 1, 3, 100])
@pytest.mark.parametrize("start", [0, 2, 9])
@pytest.mark.parametrize("parents", [TREE, [-1, 0, 0, 0], [-1], [-1, *([0] * 20), *range(1, 20)]])
def test_tree_sees_the_past_and_its_own_ancestors(parents: list[int], start: int, window: int | None) -> None:
    check(tree_sight(start, ancestry(parents), window, HEADS // KV, LIKE), start, parents, window)


def test_ancestry_gives_depths_and_ancestors() -> None:
    depths, seen = ancestry(TREE)
    assert depths == [0, 1, 1, 2, 2, 3]
    assert [row.nonzero()[0].tolist() for row in seen] == [[0], [0, 1], [0, 2], [0, 1, 3], [0, 2, 4], [0, 2, 4, 5]]


def test_single_node_needs_no_mask_even_with_a_window() -> None:
    sight = chain_sight(start=50, nodes=1, window=8, groups=3, like=LIKE)
    assert (sight.begin, sight.end, sight.mask) == (43, 51, None)


def test_window_far_from_the_first_key_block_gives_no_nan() -> None:
    """Whole blocks of keys are hidden from the last queries of a chunk; their weight is zero, not undefined."""
    sight = chain_sight(start=1000, nodes=600, window=16, groups=3, like=torch.empty(0))
    k = torch.randn(KV, sight.end - sight.begin, DIM)
    assert attend(torch.randn(600, HEADS, DIM), (k, k), sight, 0.3).isfinite().all()
