"""Random streams: laws of the draws, disjoint blocks, and draws that depend on nothing but the row's own progress."""

import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from slipstream.sampling import RequestRngs, new_seed, picking, streams
from slipstream.sampling.streams import pick, raw
from slipstream.types import SamplingParams, Sequence, WorkError

P = [0.1, 0.0, 0.6, 0.3]
ROUNDS = 4000
WIDE = 100


def sequence(seed: int = 1, rounds: int = 0, sample: int = 0, length: int = 5) -> Sequence:
    return Sequence(
        id=0, tokens=[0] * length, prompt_len=1, params=SamplingParams(), seed=seed, rounds=rounds, sample=sample
    )


def chi_square(counts: np.ndarray, p: list[float]) -> float:
    want = counts.sum() * np.asarray(p)
    assert counts[want == 0].sum() == 0
    return float((((counts - want) ** 2)[want > 0] / want[want > 0]).sum())


def rounds_of(rows: int, n: int, **kw: int) -> Iterator[RequestRngs]:
    for r in range(n):
        yield RequestRngs([sequence(seed=b, rounds=r, length=5 + r, **kw) for b in range(rows)])


@pytest.mark.parametrize("how", ["draft", "correct", "shared"])
def test_draws_follow_the_weights(how: str) -> None:
    w = 3.0 * torch.tensor([P] * WIDE)  # not normalised
    draws = []
    for rngs in rounds_of(WIDE, 2 * ROUNDS // WIDE):
        draws += [rngs.correct(w)] if how == "correct" else [getattr(rngs, how)(w, 1)]
    counts = np.bincount(torch.cat(draws).numpy(), minlength=4)
    assert chi_square(counts, P) < 13.8  # 2 degrees of freedom: 0.999


def test_coins_are_uniform_and_independent_of_each_other() -> None:
    grid = torch.arange(1, 11) / 10
    coins = torch.cat([rngs.accept(grid.repeat(WIDE, 1)) for rngs in rounds_of(WIDE, ROUNDS // WIDE)]).double()
    error = (coins.mean(0) - grid) * math.sqrt(ROUNDS) / (grid * (1 - grid)).clamp(min=1e-9).sqrt()
    assert float(error[:-1].abs().max()) < 3.5
    assert bool(coins[:, -1].all())
    lanes = coins[:, :-1] - coins[:, :-1].mean(0)
    corr = (lanes.T @ lanes) / lanes.norm(dim=0)[:, None] / lanes.norm(dim=0)
    assert float((corr - torch.eye(9)).abs().max()) < 4 / math.sqrt(ROUNDS)


def test_coins_are_strict() -> None:
    a = torch.tensor([[0.0] * 500 + [1.0] * 500 + [1e-30, 2.0, -1.0]])
    coins = RequestRngs([sequence()]).accept(a)[0]
    assert not bool(coins[:500].any())
    assert bool(coins[500:1000].all())
    assert coins[1000:].tolist() == [False, True, False]


def test_the_extreme_uniforms_are_strict_too(monkeypatch: pytest.MonkeyPatch) -> None:
    one = torch.ones(1)
    for word, below_half in ((0, True), (2**64 - 1, False)):
        monkeypatch.setattr(streams, "raw", lambda key, counter, n, word=word: np.full(n, word, dtype=np.uint64))
        rngs = RequestRngs([sequence()])
        assert rngs.accept(0 * one).tolist() == [False]
        assert rngs.accept(one).tolist() == [True]
        assert rngs.accept(one / 2).tolist() == [below_half]
        w = torch.tensor([[0.0, 0.3, 0.0, 0.7, 0.0]])
        assert rngs.correct(w).tolist() == [1 if below_half else 3]
        assert rngs.shared(w, 1).tolist() == [3]
        assert bool(torch.from_numpy(rngs._exponential(0, 9, 4)).isfinite().all())
        assert bool((rngs._exponential(0, 9, 4) > 0).all())


def test_streams_are_uncorrelated() -> None:
    """Draft, accept, correct and shared draws of one round, as 0/1 events of probability one half."""
    w, a = torch.full((WIDE, 2), 0.5), torch.full((WIDE,), 0.5)
    table = []
    for rngs in rounds_of(WIDE, ROUNDS // WIDE):
        table.append(torch.stack([rngs.draft(w, 1), rngs.accept(a), rngs.correct(w), rngs.shared(w, 1)]))
    corr = np.corrcoef(torch.cat(table, 1).numpy()) - np.eye(4)
    assert np.abs(corr).max() < 4 / math.sqrt(ROUNDS)


def test_seeds_samples_rounds_and_depths_differ() -> None:
    w = torch.ones(1, 10**6)

    def draws(rngs: RequestRngs) -> tuple[int, ...]:
        return int(rngs.draft(w, 1)), int(rngs.draft(w, 2)), int(rngs.correct(w)), int(rngs.shared(w, 1))

    rows = [sequence(), sequence(seed=2), sequence(seed=-1), sequence(sample=1), sequence(rounds=1, length=6)]
    seen = [draw for row in rows for draw in draws(RequestRngs([row]))]
    assert len(set(seen)) == len(seen)
    assert draws(RequestRngs([sequence()])) == draws(RequestRngs([sequence()]))


def test_no_block_is_used_twice_but_the_shared_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[tuple[tuple[int, int], tuple[int, int]]] = []

    def logging(key: tuple[int, int], counter: tuple[int, int], n: int) -> np.ndarray:
        used.append((key, counter))
        return raw(key, counter, n)

    monkeypatch.setattr(streams, "raw", logging)
    w, a = torch.ones(4, 5), torch.full((4, 3), 0.5)
    rows = [sequence(seed=s, sample=k) for s in (0, 256) for k in (0, 1)]
    for _ in range(6):
        rngs = RequestRngs(rows)
        for depth in (1, 1, 2, 3):
            rngs.draft(w, depth)
        rngs.accept(a)
        rngs.accept(a[:, 0])
        rngs.correct(w)
        for row in rows:
            row.rounds += 1
            row.tokens += [0]
    assert len(used) == 4 * 6 * 7
    assert len(set(used)) == len(used)
    used.clear()
    RequestRngs(rows, shared_noise=True).draft(w, 2)
    RequestRngs(rows, shared_noise=True).shared(w, 2)
    assert used[:4] == used[4:]
    assert {key[1] & 255 for key, _ in used} == {streams.Stream.NOISE}


def test_neighbours_inactive_rows_and_padding_change_nothing() -> None:
    w = torch.rand(3, 300)
    a = torch.rand(3, 7)

    def play(rows: list[int], lanes: int, noisy: bool) -> list[list[int]]:
        rngs = RequestRngs([sequence(seed=r, rounds=r, sample=r) for r in rows])
        at = torch.tensor(rows)
        mine = torch.tensor([r == 1 for r in rows])
        out = [rngs.draft(w[at], 1)]
        if noisy:
            assert rngs.draft(w[at], 1, active=~mine)[mine].tolist() == [0]
            assert rngs.correct(w[at], active=~mine)[mine].tolist() == [0]
            assert not bool(rngs.accept(torch.full((len(rows), 7), 2.0), active=~mine)[mine].any())
            assert rngs.shared(w[at], 1, active=~mine)[mine].tolist() == [0]
        out += [rngs.draft(w[at], 2, active=mine), rngs.shared(w[at], 2)]
        out += list(rngs.accept(a[at][:, :lanes]).long().T[:3])
        out += [rngs.accept(a[at, 0]).long(), rngs.correct(w[at])]
        return [o[mine].tolist() for o in out]

    alone = play([1], 3, False)
    assert play([0, 1, 2], 3, False) == alone
    assert play([2, 1], 7, False) == alone
    assert play([1, 0], 7, True) == alone


@pytest.mark.parametrize("noisy", [False, True], ids=["streams", "shared noise"])
def test_nodes_drawn_at_once_are_those_drawn_one_after_the_other(noisy: bool) -> None:
    rows = [sequence(seed=b, rounds=b, length=5 + b) for b in range(3)]
    owners = [0, 2, 2, 0, 2]
    w = torch.rand(2, 5, 300, generator=torch.Generator().manual_seed(1))
    once, single = RequestRngs(rows, noisy), RequestRngs(rows, noisy)
    at_once = [once.draft_nodes(w[d], d + 1, owners).tolist() for d in (0, 1)]
    one_by_one: list[list[int]] = [[], []]
    for d in (0, 1):
        for i, b in enumerate(owners):
            active = torch.arange(3) == b
            one_by_one[d].append(int(single.draft(w[d, i].expand(3, -1), d + 1, active)[b]))
    assert at_once == one_by_one
    assert once.draft_nodes(w[0, :0], 1, []).shape == (0,)
    # what comes after is the same too, of the row that drew nothing as well
    assert torch.equal(once.draft(w[0, :3], 3), single.draft(w[0, :3], 3))
    if not noisy:
        assert len({tuple(row) for row in at_once}) == 2
        even = torch.ones(3, 10**6)
        assert len(set(once.draft_nodes(even, 1, [1, 1, 1]).tolist())) == 3


def test_a_draft_and_its_verification_share_the_noise_of_the_position() -> None:
    w = torch.rand(1, 500) ** 4
    drafted = [int(RequestRngs([sequence(length=5)], shared_noise=True).draft(w, d)) for d in (1, 2, 3)]
    verified = [int(RequestRngs([sequence(length=5)]).shared(w, d)) for d in (1, 2, 3)]
    later = [int(RequestRngs([sequence(length=4 + d, rounds=d)]).shared(w, 1)) for d in (1, 2, 3)]
    assert drafted == verified == later
    assert len(set(drafted)) == 3
    assert [int(RequestRngs([sequence(length=5)]).draft(w, d)) for d in (1, 2, 3)] != drafted


def test_the_noise_kept_for_a_round_is_bounded() -> None:
    rngs = RequestRngs([sequence()])
    for depth in range(1, 100):
        rngs.shared(torch.ones(1, 8), depth)
    assert len(rngs._noise) <= 16


@pytest.mark.parametrize("vocab", [1, 5, 128, 129, 1000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_pick_inverts_the_cumulated_weights(vocab: int, dtype: torch.dtype) -> None:
    gen = torch.Generator().manual_seed(vocab)
    w = torch.rand(64, vocab, generator=gen, dtype=dtype) * (torch.rand(64, vocab, generator=gen) < 0.3)
    w[:, vocab // 2] += 0.1
    u = torch.rand(64, generator=gen, dtype=torch.float64)
    for b in range(64):
        upto = np.cumsum(w[b].double().numpy())
        want = int(np.searchsorted(upto, float(u[b]) * upto[-1], side="right"))
        assert int(pick(w[b : b + 1], u[b : b + 1])) == want


@pytest.mark.parametrize("u", [0.0, 0.5, 1 - 2.0**-53, 1.0])  # 1: the goal rounded up to the total
def test_pick_never_lands_on_a_zero_weight(u: float) -> None:
    gen = torch.Generator().manual_seed(0)
    for vocab in (3, 127, 128, 500):
        w = torch.zeros(200, vocab)
        spots = torch.randint(0, vocab, (200, 3), generator=gen)
        w.scatter_(1, spots, torch.rand(200, 3, generator=gen) * 1e-3 + 1e-30)
        got = pick(w, torch.full((200,), u, dtype=torch.float64))
        assert bool((w[torch.arange(200), got] > 0).all())


@pytest.mark.parametrize("row", [[0.0, 0.0], [math.nan, 1.0], [math.inf, 1.0]])
def test_weights_without_a_finite_mass_are_refused(row: list[float]) -> None:
    w = torch.tensor([[0.5, 0.5], row])
    rngs = RequestRngs([sequence(), sequence()])
    for draw in (lambda: rngs.draft(w, 1), lambda: rngs.correct(w), lambda: rngs.shared(w, 1)):
        with pytest.raises(WorkError, match="row 1 has weights of sum"):
            draw()
    rngs.correct(w, active=torch.tensor([True, False]))
    with pytest.raises(WorkError, match="row 1 has weights of sum"):
        rngs.correct(w, active=torch.tensor([False, True]))
    with pytest.raises(WorkError, match="row 0 has weights of sum"):
        rngs.draft_nodes(w, 1, [1, 0])


def test_new_seeds_differ_and_are_valid() -> None:
    seeds = {new_seed() for _ in range(100)}
    assert len(seeds) == 100
    for seed in seeds:
        SamplingParams(seed=seed)


def test_one_block_of_bits_is_what_the_generator_gives() -> None:
    for key, counter in (((1, 2), (3, 4)), ((2**64 - 1, 2**63), (0, 2**64 - 1)), ((0, 0), (2**40, 5))):
        words = np.array([0, 0, *counter], dtype=np.uint64)
        whole = np.random.Philox(key=np.array(key, dtype=np.uint64), counter=words).random_raw(8)
        for n in (1, 3, 4, 5, 8):
            assert raw(key, counter, n).tolist() == whole[:n].tolist()


@pytest.mark.parametrize("vocab", [5, 128, 300, 1000])
def test_the_host_picks_what_an_accelerator_picks(vocab: int) -> None:
    w = torch.rand(40, vocab) ** 8 * (torch.rand(40, vocab) > 0.5)
    w[:, 1] += 1e-9
    w[3, :-1] = 0.0
    w[3, -1] = 1.0
    u = torch.rand(40, dtype=torch.float64)
    u[::7], u[1::7] = 0.0, 1 - 2**-53
    padded = torch.nn.functional.pad(w, (0, -vocab % 128)).view(40, -1, 128)
    there = picking._pick_there(padded, padded.sum(-1, dtype=torch.float64), u, range(40))
    assert pick(w, u).tolist() == there.tolist()
    assert bool((w[torch.arange(40), there] > 0).all())
