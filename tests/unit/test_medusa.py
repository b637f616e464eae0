"""Medusa: the heads against their formula, trees of ranks, and a target whose text the heads know."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

import draft_zoo as zoo
import overfit
from feature_target import felt
from slipstream.drafters.medusa import Medusa, MedusaOptions
from slipstream.nets.decoder import CachedDecoder, load_decoder
from slipstream.nets.draft_config import DraftCheckpoint, DraftConfig, Features, Heads, Vocab
from slipstream.nets.medusa import MedusaNet
from slipstream.sampling import RequestRngs
from slipstream.types import RequestError, SamplingParams, Sequence
from tiny_model import make_model

SIZES = {"max_rows": 4, "max_len": 100, "max_nodes": 32}


def net_of(heads: Heads, seed: int = 0) -> tuple[MedusaNet, DraftCheckpoint]:
    found = zoo.tiny("medusa", seed=seed, heads=heads)
    return MedusaNet(found.config, found.tensors, zoo.tables(), **SIZES), found


@pytest.mark.parametrize("heads", [Heads(3), Heads(2, blocks=2), Heads(3, own=False), Heads(2, blocks=0)])
def test_logits_are_the_formula(heads: Heads) -> None:
    net, found = net_of(heads)
    x = torch.randn(5, zoo.H, dtype=torch.float64)
    out = net.logits(net.features({-1: x}), heads.count)
    assert out.shape == (5, heads.count, zoo.VOCAB)
    for i in range(heads.count):
        z = x
        for j in range(heads.blocks):
            at = f"heads.{i}.blocks.{j}"
            z = z + F.silu(z @ found.tensors[f"{at}.weight"].T + found.tensors[f"{at}.bias"])
        want = z @ found.tensors[f"heads.{i}.head.weight"].T if heads.own else zoo.tables().head(z)
        assert torch.allclose(out[:, i], want, atol=1e-10)
    assert torch.equal(net.logits(x, 1), out[:, :1])
    weights = sum(t.nbytes for t in found.tensors.values())
    assert net.nbytes == weights
    assert net.row_bytes == 0


def drafter_of(options: MedusaOptions | None = None, **more: object) -> Medusa:
    return Medusa(net_of(Heads(3))[0], vocab=zoo.VOCAB, max_rows=4, options=options, **more)  # type: ignore[arg-type]


def row_of(b: int = 0, **params: object) -> Sequence:
    tokens = [3, 1, 4 + b, 1, 5]
    return Sequence(b, tokens, 5, SamplingParams(**params), seed=b)  # type: ignore[arg-type]


def tell(drafter: Medusa, row: Sequence) -> None:
    states = torch.stack([felt(row.tokens[: t + 1], -1, zoo.H) for t in range(len(row.tokens) - 1)])
    drafter.observe([row], [row.tokens[:-1]], [{-1: states}])


def paths(draft: object, b: int = 0) -> list[tuple[int, ...]]:
    found: list[tuple[int, ...]] = [()]
    for i in range(1, int(draft.length[b])):  # type: ignore[attr-defined]
        found.append((*found[int(draft.parents[b, i])], int(draft.tokens[b, i])))  # type: ignore[attr-defined]
    return found[1:]


CHOICES = ((0,), (0, 0), (1,), (0, 1), (0, 0, 2), (3,))


def ranked_tokens(row: Sequence) -> list[list[int]]:
    logits = net_of(Heads(3))[0].logits(felt(row.tokens[:-1], -1, zoo.H)[None], 3)[0]
    return logits.argsort(-1, descending=True).tolist()


@pytest.mark.parametrize("choices", [CHOICES, "0 0,0 1 0,1 0,0,2 3"])
def test_choices_are_paths_of_ranks(choices: object) -> None:
    drafter, row = drafter_of(MedusaOptions(choices=choices)), row_of()  # type: ignore[arg-type]
    tell(drafter, row)
    tokens = ranked_tokens(row)
    want = {tuple(tokens[d][r] for d, r in enumerate(path)) for path in CHOICES}
    assert set(paths(drafter.propose([row], [30], RequestRngs([row])))) == want
    cut = paths(drafter.propose([row], [3], RequestRngs([row])))
    assert len(cut) == 3
    assert set(cut) <= want
    assert all(path[:-1] in {(), *cut} for path in cut)


def test_choices_stop_at_an_end_of_text() -> None:
    row = row_of()
    first = ranked_tokens(row)[0][0]
    row.eos_ids = (first,)
    drafter = drafter_of(MedusaOptions(choices=CHOICES))
    tell(drafter, row)
    assert sorted(map(len, paths(drafter.propose([row], [30], RequestRngs([row]))))) == [1, 1, 1]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"shape": "bush"}, "shape='bush'"),
        ({"choices": ((0, 0),)}, r"\(0, 0\) but not \(0,\)"),
        ({"choices": ((0,), (-1,))}, r"\(-1,\)"),
        ({"choices": "0 x"}, "cannot be read"),
        ({"choices": "0 0"}, "twice"),
        ({"choices": "0", "shape": "chain"}, "leave them out"),
    ],
)
def test_options_name_what_is_wrong(options: dict, words: str) -> None:
    with pytest.raises(RequestError, match=words):
        MedusaOptions(**options)


def test_choices_deeper_than_the_heads_are_refused() -> None:
    with pytest.raises(RequestError, match="4 deep, the drafter has 3 heads"):
        drafter_of(MedusaOptions(choices="0 0,0 0,0,0 0,0,0,0"))


def test_trees_are_sized_by_cost() -> None:
    row = row_of()
    free, dear = drafter_of(seconds=lambda n: 1.0), drafter_of(seconds=lambda n: float(n))
    for drafter in (free, dear):
        tell(drafter, row)
    assert int(free.propose([row], [20], RequestRngs([row])).length[0]) == 21
    assert int(dear.propose([row], [20], RequestRngs([row])).length[0]) == 1


def test_a_state_that_is_not_the_last_tokens_is_not_drafted_from() -> None:
    drafter, row = drafter_of(), row_of()
    tell(drafter, row)
    row.tokens.append(2)  # committed, but not heard of
    assert int(drafter.propose([row], [5], RequestRngs([row])).length[0]) == 1
    drafter.observe([row], [[9]], [{-1: torch.zeros(1, zoo.H)}])  # nor is this what the row holds
    assert int(drafter.propose([row], [5], RequestRngs([row])).length[0]) == 1


@pytest.mark.parametrize("shape", ["tree", "chain"])
def test_states_that_are_not_finite_end_one_draft(shape: str) -> None:
    drafter, rows = drafter_of(MedusaOptions(shape=shape)), [row_of(0), row_of(1)]  # type: ignore[arg-type]
    tell(drafter, rows[0])
    bad = torch.full((4, zoo.H), torch.nan)
    drafter.observe([rows[1]], [rows[1].tokens[:-1]], [{-1: bad}])
    with pytest.warns(RuntimeWarning, match="not finite"):
        draft = drafter.propose(rows, [3, 3], RequestRngs(rows))
    assert draft.length.tolist() == [4, 1]
    assert drafter.dropped == 1


# ---------------------------------------------------------------- the oracle

PROMPTS, COUNT, HEADS = ([5, 9, 60, 77], [100, 4, 33]), 12, 3


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> CachedDecoder:
    folder = make_model(tmp_path_factory.mktemp("target"))
    return load_decoder(folder, "float32", "cpu", **SIZES)


def oracle(decoder: CachedDecoder, shift: int) -> DraftCheckpoint:
    """Heads that are linear maps from the states of two texts to the tokens `shift` + i places later: fewer states than
    dimensions, so the maps fit exactly. The right shift is 2."""
    width = decoder.config.hidden
    states, tokens = [], []
    for prompt in PROMPTS:
        text = overfit.greedy(decoder, prompt, COUNT + HEADS + 1, (-1,))
        at = range(len(prompt) - 2, len(prompt) + COUNT - 2)  # the tokens before the roots
        states += [text.taps[-1][t] for t in at]
        tokens += [[text.tokens[t + shift + i] for i in range(HEADS)] for t in at]
    inverse = torch.linalg.pinv(torch.stack(states).double())  # [H, T]
    one_hot = F.one_hot(torch.tensor(tokens), decoder.config.vocab).double()  # [T, heads, V]
    tensors = {f"heads.{i}.head.weight": 20 * (inverse @ one_hot[:, i]).T for i in range(HEADS)}
    vocab = Vocab(decoder.config.vocab, decoder.config.vocab)
    features = Features((-1,), width, fused=False)
    return DraftCheckpoint(DraftConfig("medusa", "medusa", features, vocab, heads=Heads(HEADS, 0)), tensors)


def tokens_per_round(decoder: CachedDecoder, found: DraftCheckpoint, options: MedusaOptions, budget: int) -> float:
    """Decode both prompts as one batch; return the mean tokens of a round and check that all of them came out."""
    tables = overfit.tables_of(decoder)
    net = MedusaNet(found.config, found.tensors, tables, **SIZES)
    drafter = Medusa(net, vocab=tables.vocab, max_rows=4, options=options)
    rows = overfit.decode(decoder, drafter, PROMPTS, tokens=COUNT, budget=budget, rule="auto")
    for prompt, row in zip(PROMPTS, rows, strict=True):
        assert row.tokens == overfit.greedy(decoder, prompt, COUNT, (-1,)).tokens
    return overfit.tokens_per_round(rows)


@pytest.mark.parametrize(("shape", "budget"), [("chain", HEADS), ("tree", 8)])
def test_heads_that_know_the_text_are_accepted_and_shifted_ones_are_not(
    decoder: CachedDecoder, shape: str, budget: int
) -> None:
    options = MedusaOptions(shape=shape)  # type: ignore[arg-type]
    assert tokens_per_round(decoder, oracle(decoder, 2), options, budget) == HEADS + 1
    for wrong in (1, 3):
        assert tokens_per_round(decoder, oracle(decoder, wrong), options, budget) < 2.0


def test_heads_of_an_earlier_layer_are_not(decoder: CachedDecoder) -> None:
    found = oracle(decoder, 2)
    raw = overfit.changed(found, features=replace(found.config.features, taps=(1,)))
    assert tokens_per_round(decoder, raw, MedusaOptions(shape="chain"), HEADS) < 2.0
