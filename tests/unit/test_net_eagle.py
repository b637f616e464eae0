"""EAGLE networks: cached, ragged and drafted rows are the rows of one uncached pass written from the formulas."""

import dataclasses

import pytest
import torch

import draft_zoo as zoo
import eagle_reference as ref
from slipstream.nets.draft_config import Block, Features, Rows, Vocab
from slipstream.nets.draft_layers import Segment
from slipstream.nets.eagle import EagleNet
from slipstream.nets.eagle3 import Eagle3Net, PEagleNet
from slipstream.types import RequestError

V, H = zoo.VOCAB, zoo.H
F3 = Features((1, 2, 3), H)
FOUND = {
    "eagle": zoo.tiny("eagle"),
    "eagle without bias": zoo.tiny("eagle", features=Features((-1,), H)),
    "eagle qkv bias": zoo.tiny("eagle", body=zoo.body(biases=("qkv",))),
    "eagle two layers": zoo.tiny("eagle", body=zoo.body(2)),
    "eagle own tables": zoo.tiny("eagle", vocab=Vocab(V, V, own_embed=True, own_head=True)),
    "eagle3": zoo.tiny("eagle3"),
    "eagle3 norm each": zoo.tiny("eagle3", features=dataclasses.replace(F3, norm="each")),
    "eagle3 norm whole": zoo.tiny("eagle3", features=dataclasses.replace(F3, norm="whole")),
    "eagle3 fc bias": zoo.tiny("eagle3", features=dataclasses.replace(F3, bias=True)),
    "eagle3 five taps": zoo.tiny("eagle3", features=Features((0, 1, 2, 3, 4), H)),
    "eagle3 wider target": zoo.tiny("eagle3", features=Features((1, 2, 3), 20)),
    "eagle3 one tap": zoo.tiny("eagle3", features=Features((-1,), H, fused=False)),
    "eagle3 residual norm": zoo.tiny("eagle3", rows=Rows(residual_norm=True)),
    "eagle3 post": zoo.tiny("eagle3", rows=Rows(feedback="post")),
    "eagle3 post, residual norm": zoo.tiny("eagle3", rows=Rows(feedback="post", residual_norm=True, offset=1)),
    "eagle3 no logit norm": zoo.tiny("eagle3", rows=Rows(logit_norm=False)),
    "eagle3 qk norm, biases": zoo.tiny("eagle3", body=zoo.body(qk_norm=True, biases=("qkv", "out"))),
    "eagle3 three layers": zoo.tiny("eagle3", body=zoo.body(3)),
    "eagle3 windows": zoo.tiny("eagle3", body=zoo.body(2, windows=(3, None))),
    "eagle3 own embedding": zoo.tiny("eagle3", vocab=Vocab(V, V, own_embed=True, own_head=True)),
    "eagle3 target's head": zoo.tiny("eagle3", vocab=Vocab(V, V)),
    "eagle3 reduced": zoo.tiny("eagle3", vocab=Vocab(V, 7, own_head=True)),
    "peagle": zoo.tiny("peagle"),
    "peagle norm each": zoo.tiny("peagle", features=dataclasses.replace(F3, norm="each")),
    "peagle window": zoo.tiny("peagle", body=zoo.body(2, windows=(4, None))),
}
TABLES = zoo.tables()
NETS = {"eagle": EagleNet, "eagle3": Eagle3Net, "peagle": PEagleNet}
every = pytest.mark.parametrize("name", FOUND)


def network(found, **sizes):
    settings = {"max_rows": 3, "max_len": 40, "max_nodes": 12} | sizes
    return NETS[found.config.algorithm](found.config, found.tensors, TABLES, **settings)


def text(found, n, seed):
    """Tokens [n + 1] and taps of the first n of them."""
    g = torch.Generator().manual_seed(seed)
    width = found.config.features.width
    taps = {k: torch.randn(n, width, generator=g, dtype=torch.float64) for k in found.config.features.taps}
    return torch.randint(V, (n + 1,), generator=g), taps


def part(taps, begin, end):
    return {k: x[begin:end] for k, x in taps.items()}


def whole(found, tokens, taps):
    """The states of all rows from one uncached pass."""
    n = len(tokens) - 1
    return ref.states(found, TABLES, tokens[1:], ref.fuse(found, taps), torch.arange(n), ref.causal(n))


def close(a, b):
    assert a.shape == b.shape
    assert float((a - b).abs().max()) < 1e-10


class Feed:
    """Commits rows to slots of one network, several slots in a pass."""

    def __init__(self, net):
        self.net = net

    def __call__(self, *jobs):
        """jobs: (slot, tokens one ahead, taps) -> the states of each."""
        segments = []
        for slot, tokens, _ in jobs:
            at = self.net.layers.length(slot)
            segments.append(Segment(slot, at, range(at, at + len(tokens))))
        taps = {k: torch.cat([job[2][k] for job in jobs]) for k in self.net.config.features.taps}
        out = self.net.step(torch.cat([job[1] for job in jobs]), self.net.fuse(taps), segments)
        for s in segments:
            self.net.layers.keep(s.slot, s.at + s.rows)
        return out.split([len(job[1]) for job in jobs])


@every
def test_rows_fed_in_ragged_pieces_are_the_rows_of_one_pass(name):
    found = FOUND[name]
    feed, (a, fa), (b, fb) = Feed(network(found)), text(found, 11, 1), text(found, 7, 2)
    first = feed((2, a[1:6], part(fa, 0, 5)))
    second = feed((2, a[6:8], part(fa, 5, 7)), (0, b[1:5], part(fb, 0, 4)))
    third = feed((0, b[5:8], part(fb, 4, 7)), (2, a[8:12], part(fa, 7, 11)))
    close(torch.cat([first[0], second[0], third[1]]), whole(found, a, fa))
    close(torch.cat([second[1], third[0]]), whole(found, b, fb))


@every
def test_logits_are_read_from_the_fed_back_state(name):
    found = FOUND[name]
    tokens, taps = text(found, 6, 3)
    net = network(found)
    (states,) = Feed(net)((0, tokens[1:], taps))
    close(net.logits(states), ref.logits(found, TABLES, whole(found, tokens, taps)))
    assert net.logits(states).shape[1] == found.config.vocab.draft


@every
def test_a_drafted_chain_uses_its_own_states_and_leaves_no_trace(name):
    """Two rounds: draft three tokens, one is accepted, and its row is fed again from the target's feature."""
    found = FOUND[name]
    net, (tokens, taps), n = network(found), text(found, 9, 4), 6
    feed = Feed(net)
    (states,) = feed((1, tokens[1 : n + 1], part(taps, 0, n)))
    chain(found, net, (tokens[: n + 1], part(taps, 0, n)), states[-1:], [3, 8, 1])
    (states,) = feed((1, tokens[n + 1 : n + 3], part(taps, n, n + 2)))
    close(states, whole(found, tokens[: n + 3], part(taps, 0, n + 2))[n:])
    chain(found, net, (tokens[: n + 3], part(taps, 0, n + 2)), states[-1:], [0, 5])


def chain(found, net, fed, state, drafted):
    """Draft `drafted` behind what slot 1 was fed, row by row, beside uncached passes over all rows."""
    tokens, features = fed[0][1:], ref.fuse(found, fed[1])
    start = len(tokens)
    for depth, token in enumerate(drafted):
        tokens = torch.cat([tokens, torch.tensor([token])])
        features = torch.cat([features, state])
        n = start + depth + 1
        want = ref.states(found, TABLES, tokens, features, torch.arange(n), ref.causal(n))[-1:]
        segment = Segment(1, n - 1, [n - 1], start, None, tuple(range(start, n - 1)))
        state = net.step(torch.tensor([token]), state, [segment])
        close(state, want)
    assert net.layers.length(1) == start


@every
def test_a_tree_node_is_the_end_of_its_path_alone(name):
    found = FOUND[name]
    net, (tokens, taps) = network(found), text(found, 5, 5)
    (states,) = Feed(net)((1, tokens[1:], taps))
    root, ids = states[-1:], torch.tensor([4, 9])
    pair = net.step(ids, root.expand(2, -1), [Segment(1, 5, [5, 5], 5, torch.eye(2, dtype=torch.bool))])
    # grandchildren: two of node 1, one of node 0
    seen = torch.tensor([[0, 1, 1, 0, 0], [0, 1, 0, 1, 0], [1, 0, 0, 0, 1]], dtype=torch.bool)
    below = torch.tensor([2, 7, 7])
    three = net.step(below, pair[[1, 1, 0]], [Segment(1, 7, [6, 6, 6], 5, seen, (5, 5))])
    for at, path in enumerate([(9, 2), (9, 7), (4, 7)]):
        state = root
        for depth, token in enumerate(path):
            behind = tuple(range(5, 5 + depth))
            state = net.step(torch.tensor([token]), state, [Segment(1, 5 + depth, [5 + depth], 5, None, behind)])
        close(three[at : at + 1], state)


def test_mask_rows_predict_all_depths_in_one_pass():
    for name in ("peagle", "peagle norm each", "peagle window"):
        found = FOUND[name]
        net, (tokens, taps), masks = network(found), text(found, 6, 6), 3
        Feed(net)((0, tokens[1:], taps))
        c = found.config
        close(net.mask_feature, mask_feature(found))
        rows = torch.cat([tokens[1:], torch.full((masks,), c.block.mask_token)])
        features = torch.cat([ref.fuse(found, taps), mask_feature(found).expand(masks, -1)])
        want = ref.states(found, TABLES, rows, features, torch.arange(9), ref.causal(9))[6:]
        ids = torch.full((masks,), net.mask_token)
        close(net.step(ids, net.mask_feature.expand(masks, -1), [Segment(0, 6, range(6, 9), 6)]), want)


def mask_feature(found):
    taps = found.tensors["mask_hidden"].view(3, 1, H)
    return ref.fuse(found, dict(zip(found.config.features.taps, taps, strict=True)))[0]


def test_a_reduced_head_without_its_own_rows_reads_the_targets():
    found = zoo.tiny("eagle3", vocab=Vocab(V, 5))
    states = torch.randn(4, H, dtype=torch.float64)
    kept = found.tensors["vocab_map"]
    full = ref.logits(zoo.tiny("eagle3", vocab=Vocab(V, V)), TABLES, states)
    close(network(found).logits(states), full[:, kept])


def test_ids_the_embedding_lacks_are_no_error():
    found = zoo.tiny("eagle3", vocab=Vocab(5, 5, own_embed=True, own_head=True))
    net = network(found)
    (states,) = Feed(net)((0, torch.tensor([11, 3]), text(found, 2, 0)[1]))
    (other,) = Feed(net)((1, torch.tensor([0, 3]), text(found, 2, 0)[1]))
    close(states, other)


def test_a_mask_token_without_a_row_is_refused():
    block = Block(4, 99, True, (True, True))
    with pytest.raises(RequestError, match=r"mask token 99 is not one of 0\.\.13"):
        network(zoo.tiny("peagle", block=block))


def test_bytes_count_every_weight_once():
    found = FOUND["eagle3 norm each"]
    assert network(found).nbytes == sum(x.nbytes for x in found.tensors.values())
    assert network(FOUND["eagle"]).nbytes == sum(x.nbytes for x in FOUND["eagle"].tensors.values())
    body = found.config.body
    assert network(found).row_bytes == 2 * body.layers * body.kv_heads * body.head_dim * 8


def test_features_of_another_dtype_are_converted_by_value():
    found = FOUND["eagle3"]
    net, (_, taps) = network(found), text(found, 3, 0)
    half = {k: x.to(torch.bfloat16) for k, x in taps.items()}
    close(net.fuse(half), ref.fuse(found, {k: x.double() for k, x in half.items()}))
