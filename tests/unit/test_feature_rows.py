"""EAGLE-type drafters: the recorded q is the formulas' law at every node, whatever the history was cut into."""

import random

import pytest
import torch

import draft_zoo as zoo
import eagle_reference as ref
from feature_target import felt
from slipstream.drafters import feature_rows
from slipstream.drafters.eagle import Eagle
from slipstream.drafters.eagle3 import Eagle3
from slipstream.drafters.feature_rows import FeatureRows
from slipstream.drafters.peagle import PEagle
from slipstream.nets.draft_config import Rows, Vocab
from slipstream.nets.eagle import EagleNet
from slipstream.nets.eagle3 import Eagle3Net, PEagleNet
from slipstream.sampling import RequestRngs
from slipstream.types import SamplingParams, Sequence

V, H = zoo.VOCAB, zoo.H
TABLES = zoo.tables()
KINDS = {"eagle": (EagleNet, Eagle), "eagle3": (Eagle3Net, Eagle3), "peagle": (PEagleNet, PEagle)}
FOUND = {
    "eagle": zoo.tiny("eagle"),
    "eagle3": zoo.tiny("eagle3"),
    "eagle3 reduced": zoo.tiny("eagle3", vocab=Vocab(V, 7, own_head=True)),
    "eagle3 post, two layers": zoo.tiny("eagle3", body=zoo.body(2, windows=(4, None)), rows=Rows(feedback="post")),
    "peagle": zoo.tiny("peagle"),
}


def drafter(found, rows=4):
    net, make = KINDS[found.config.algorithm]
    built = net(found.config, found.tensors, TABLES, max_rows=rows, max_len=64, max_nodes=16)
    return make(built, vocab=V, max_rows=rows)


def row_of(row_id, length):
    rng = random.Random(row_id)
    tokens = [rng.randrange(V) for _ in range(length)]
    return Sequence(row_id, tokens, length, SamplingParams(temperature=1.0, ignore_eos=True), seed=row_id)


def taps_of(found, tokens, begin, end):
    width = found.config.features.width
    return {
        k: torch.stack([felt(tokens[: t + 1], k, width) for t in range(begin, end)]) for k in found.config.features.taps
    }


def tell(one, found, rows, counts):
    """Observe the next `counts[b]` tokens of each row."""
    heard = [one._rows.held[row.id].heard if row.id in one._rows.held else 0 for row in rows]
    new = [row.tokens[at : at + n] for row, at, n in zip(rows, heard, counts, strict=True)]
    taps = [taps_of(found, row.tokens, at, at + n) for row, at, n in zip(rows, heard, counts, strict=True)]
    one.observe(rows, new, taps)


def poison(layers):
    """Make everything that is not committed NaN: whoever reads it shows."""
    for slot, length in enumerate(layers.cache.lengths):
        for buffer in (layers.cache.keys, layers.cache.values):
            buffer[:, slot, :, length:] = torch.nan


def laws(found, tokens, drafted):
    """q after each node of a chain behind `tokens`, from one uncached pass per depth."""
    n, c = len(tokens) - 1, found.config
    ids, features = torch.tensor(tokens[1:]), ref.fuse(found, taps_of(found, tokens, 0, n))
    found_laws = []
    for depth in range(len(drafted)):
        m = n + depth
        state = ref.states(found, TABLES, ids, features, torch.arange(m), ref.causal(m))[-1:]
        found_laws.append(spread(found, ref.logits(found, TABLES, state)).softmax(-1)[0])
        if c.algorithm == "peagle":
            parts = found.tensors["mask_hidden"].view(len(c.features.taps), 1, -1)
            state = ref.fuse(found, dict(zip(c.features.taps, parts, strict=True)))
            ids = torch.cat([ids, torch.tensor([c.block.mask_token])])
        else:
            ids = torch.cat([ids, torch.tensor([drafted[depth]])])
        features = torch.cat([features, state])
    return torch.stack(found_laws)


def spread(found, logits):
    if not found.config.vocab.reduced:
        return logits
    out = torch.full((len(logits), V), -torch.inf, dtype=logits.dtype)
    out[:, found.tensors["vocab_map"]] = logits
    return out


@pytest.mark.parametrize("name", FOUND)
def test_q_is_the_law_of_the_formulas_over_ragged_rounds(name):
    found = FOUND[name]
    one, rng, rows = drafter(found), random.Random(0), [row_of(i, 3 + 4 * i) for i in range(3)]
    for row in rows:
        while len(row.tokens) - 1 > (done := one._rows.held[row.id].heard if row.id in one._rows.held else 0):
            tell(one, found, [row], [min(rng.randint(1, 4), len(row.tokens) - 1 - done)])
    for _ in range(5):
        poison(one.net.layers)
        rows = rows[1:] + rows[:1]
        draft = one.propose(rows, [4, 2, 5], RequestRngs(rows))
        assert draft.length.tolist() == [5, 3, 6]
        counts = []
        for b, row in enumerate(rows):
            drafted = draft.tokens[b, 1 : int(draft.length[b])].tolist()
            want = laws(found, row.tokens, drafted)
            assert float((draft.q[b, : len(drafted)] - want).abs().max()) < 1e-10
            accepted = rng.randint(0, len(drafted))
            row.tokens += [*drafted[:accepted], rng.randrange(V)]
            row.rounds += 1
            counts.append(accepted + 1)
        tell(one, found, rows, counts)


@pytest.mark.parametrize("name", FOUND)
def test_prompts_longer_than_one_pass_are_fed_in_passes(name, monkeypatch):
    found = FOUND[name]
    monkeypatch.setattr(feature_rows, "_CHUNK", 4)
    one, rows = drafter(found), [row_of(i, n) for i, n in enumerate((14, 2, 9))]
    passes, step = [], one.net.step
    one.net.step = lambda t, f, segments: passes.append([s.rows for s in segments]) or step(t, f, segments)
    tell(one, found, rows, [13, 1, 8])
    assert passes == [[4, 1, 4], [4, 4], [4], [1]]
    draft = one.propose(rows, [3, 3, 3], RequestRngs(rows))
    for b, row in enumerate(rows):
        want = laws(found, row.tokens, draft.tokens[b, 1:].tolist())
        assert float((draft.q[b, :3] - want).abs().max()) < 1e-10


@pytest.mark.parametrize("name", ["eagle", "eagle3", "eagle3 post, two layers"])
def test_levels_of_ragged_trees_are_paths_alone(name):
    """The seam that trees grow on: two levels, rows of different sizes, one row that has none at the second level."""
    found = FOUND[name]
    one, rows = drafter(found), [row_of(i, 4 + i) for i in range(3)]
    tell(one, found, rows, [3, 4, 5])
    held: FeatureRows = one._rows
    assert held.begin(rows) == [True] * 3
    roots = held.states([0, 1, 2])
    which, ids = [0, 0, 1, 2, 2, 2], torch.tensor([3, 1, 7, 0, 4, 9])
    eye = [torch.eye(n, dtype=torch.bool) for n in (2, 1, 3)]
    first = held.step(which, ids, roots[which], 1, eye)
    seen = [torch.tensor([[0, 1, 1]]), torch.tensor([[0, 0, 1, 1, 0], [1, 0, 0, 0, 1]])]
    second = held.step([0, 2, 2], torch.tensor([5, 6, 6]), first[[1, 5, 3]], 2, [x.bool() for x in seen])
    for at, (b, path) in enumerate([(0, [1, 5]), (2, [9, 6]), (2, [0, 6])]):
        want = laws(found, rows[b].tokens, [*path, 0])[2]
        logits = spread(found, one.net.logits(second[at : at + 1]))
        assert float((logits.softmax(-1)[0] - want).abs().max()) < 1e-10
    assert [one.net.layers.length(held.held[row.id].slot) for row in rows] == [3, 4, 5]


def test_a_history_that_does_not_match_the_row_is_never_drafted_from():
    found = FOUND["eagle3"]
    for wrong in ("token", "too many", "gap"):
        one, row = drafter(found), row_of(1, 9)
        if wrong == "token":
            tokens = row.tokens[:8]
            tokens[3] = (tokens[3] + 1) % V
        else:
            tokens = row.tokens[:9] if wrong == "too many" else row.tokens[:5]
        one.observe([row], [tokens], [taps_of(found, row.tokens, 0, len(tokens))])
        assert one.propose([row], [3], RequestRngs([row])).length.tolist() == [1]
        assert one.dropped == 0
