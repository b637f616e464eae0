"""`laws` against a slow reference: float64, one node at a time, everything sorted, counts taken from the prefix."""

import dataclasses
import math
from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.sampling import draft_law, laws, needs_history
from slipstream.types import Draft, RequestError, SamplingParams, Scores, Sequence

V = 12
CHAIN = [-1, 0, 1, 2]
TREE = [-1, 0, 0, 1, 1, 2]
ALL_ON: dict[str, Any] = {
    "logit_bias": {2: 1.5, 7: -100.0},
    "min_tokens": 3,
    "stop_token_ids": [4],
    "repetition_penalty": 1.3,
    "presence_penalty": 0.5,
    "frequency_penalty": -0.7,
    "temperature": 0.8,
    "min_p": 0.02,
    "top_k": 6,
    "top_p": 0.9,
}
SETTINGS: list[dict[str, Any]] = [
    {},
    {"logit_bias": {2: 3.0, 5: -100.0}},
    {"min_tokens": 3, "stop_token_ids": [4, 99]},
    {"repetition_penalty": 1.5},
    {"repetition_penalty": 0.7},
    {"presence_penalty": 0.9},
    {"frequency_penalty": 0.6},
    {"temperature": 0.5},
    {"temperature": 1.0, "min_p": 0.1},
    {"temperature": 1.0, "top_k": 3},
    {"temperature": 1.0, "top_k": -1, "top_p": 0.6},
    {"temperature": 0.7, "top_k": 5, "top_p": 0.5},
    {"temperature": 1.3, "min_p": 0.05, "top_p": 0.8},
    ALL_ON,
    ALL_ON | {"temperature": 0.0},
]


def sequence(params: SamplingParams, tokens: list[int], prompt_len: int = 3) -> Sequence:
    return Sequence(id=0, tokens=tokens, prompt_len=prompt_len, params=params, eos_ids=(1,))


def tree(rows: list[Sequence], parents: list[int], seed: int = 0, length: list[int] | None = None) -> Draft:
    gen = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, V, (len(rows), len(parents)), generator=gen)
    tokens[:, 0] = torch.tensor([row.tokens[-1] for row in rows])
    return Draft(
        tokens=tokens,
        parents=torch.tensor(parents).repeat(len(rows), 1),
        length=torch.tensor(length or [len(parents)] * len(rows)),
        draw=torch.zeros_like(tokens),
        chain=parents == list(range(-1, len(parents) - 1)),
    )


def prefix_at(row: Sequence, draft: Draft, b: int, node: int) -> list[int]:
    path: list[int] = []
    while node:
        path.insert(0, int(draft.tokens[b, node]))
        node = int(draft.parents[b, node])
    return row.tokens + path


def processed(row: Sequence, prefix: list[int], logits: list[float]) -> list[float]:
    """The logits after every parameter that comes before the temperature."""
    p, z, out = row.params, list(logits), Counter(prefix[row.prompt_len :])
    for token, bias in (p.logit_bias or {}).items():
        z[token] += bias
    if len(prefix) - row.prompt_len < p.min_tokens:
        for end in {*row.eos_ids, *p.stop_token_ids} & set(range(len(z))):
            z[end] = -math.inf
    for processor in p.logits_processors:
        z = processor(prefix, torch.tensor(z, dtype=torch.float64)).tolist()
    for token in set(prefix):
        z[token] = z[token] / p.repetition_penalty if z[token] > 0 else z[token] * p.repetition_penalty
    for token, times in out.items():
        z[token] -= p.frequency_penalty * times + p.presence_penalty
    return z


def law_of(p: SamplingParams, z: list[float]) -> list[float]:
    order = sorted(range(len(z)), key=lambda i: (-z[i], i))
    if p.greedy:
        return [float(i == order[0]) for i in range(len(z))]
    weight = {i: math.exp((z[i] - z[order[0]]) / p.temperature) for i in order}
    order = [i for i in order if weight[i] >= p.min_p * (1 - 1e-6)]
    order = order[: p.top_k] if p.top_k > 0 else order
    total, mass = math.fsum(weight[i] for i in order), 0.0
    kept: list[int] = []
    for i in order:
        if kept and p.top_p < 1 and mass >= p.top_p * total * (1 - 1e-6):
            break
        kept.append(i)
        mass += weight[i]
    return [weight[i] / mass if i in kept else 0.0 for i in range(len(z))]


def reference(rows: list[Sequence], logits: torch.Tensor, draft: Draft) -> torch.Tensor:
    rows_of = [
        [
            law_of(row.params, processed(row, prefix_at(row, draft, b, i), logits[b, i].double().tolist()))
            for i in range(int(draft.length[b]))
        ]
        for b, row in enumerate(rows)
    ]
    return torch.tensor(rows_of, dtype=torch.float64)


def dense(rows: list[Sequence], logits: torch.Tensor, draft: Draft) -> torch.Tensor:
    got = laws(rows, logits, draft)
    assert got.bad is None
    if got.probs is not None:
        assert got.points is None
        return got.probs
    assert got.points is not None
    return torch.nn.functional.one_hot(got.points, logits.shape[-1]).to(logits.dtype)


@pytest.mark.parametrize("parents", [[-1], CHAIN, TREE], ids=["root", "chain", "tree"])
@pytest.mark.parametrize("kw", SETTINGS, ids=str)
def test_each_parameter_equals_the_reference_at_every_node(kw: dict, parents: list[int]) -> None:
    row = sequence(SamplingParams(**kw), [3, 5, 3, 2, 2])
    draft = tree([row], parents)
    logits = 2 * torch.randn(1, len(parents), V, dtype=torch.float64)
    torch.testing.assert_close(dense([row], logits, draft), reference([row], logits, draft), rtol=0, atol=1e-12)


def test_rows_of_a_batch_keep_their_own_parameters() -> None:
    rows = [sequence(SamplingParams(**kw), [3, 5, 3, 2, b % V]) for b, kw in enumerate(SETTINGS)]
    draft = tree(rows, TREE)
    logits = 2 * torch.randn(len(rows), len(TREE), V, dtype=torch.float64)
    torch.testing.assert_close(dense(rows, logits, draft), reference(rows, logits, draft), rtol=0, atol=1e-12)


def test_neighbours_and_nodes_change_no_bit() -> None:
    rows = [sequence(SamplingParams(**kw), [3, 5, 3, 2, b % V]) for b, kw in enumerate(SETTINGS)]
    draft = tree(rows, TREE)
    logits = 2 * torch.randn(len(rows), len(TREE), V)
    together = dense(rows, logits, draft)
    for b, row in enumerate(rows):
        for i in range(len(TREE)):
            alone = sequence(row.params, prefix_at(row, draft, b, i))
            one = dense([alone], logits[b : b + 1, i : i + 1], tree([alone], [-1]))
            assert torch.equal(one[0, 0], together[b, i].to(one.dtype))


@st.composite
def requests(draw: st.DrawFn) -> tuple[Sequence, list[int], torch.Tensor, int]:
    ids = st.integers(0, V - 1)
    kw = {
        "logit_bias": draw(st.none() | st.dictionaries(ids, st.floats(-5, 5), max_size=3)),
        "min_tokens": draw(st.integers(0, 5)),
        "repetition_penalty": draw(st.sampled_from([1.0, 1.3, 0.8])),
        "presence_penalty": draw(st.sampled_from([0.0, 0.5, -1.0])),
        "frequency_penalty": draw(st.sampled_from([0.0, 0.4, 2.0])),
        "temperature": draw(st.sampled_from([0.0, 0.3, 1.0, 2.0])),
        "min_p": draw(st.sampled_from([0.0, 0.03, 0.3])),
        "top_k": draw(st.sampled_from([-1, 0, 1, 2, 5, 50])),
        "top_p": draw(st.sampled_from([1.0, 0.95, 0.5, 0.01])),
    }
    tokens = draw(st.lists(ids, min_size=1, max_size=8))
    n = draw(st.integers(1, 5))
    parents = [-1] + [draw(st.integers(0, i - 1)) for i in range(1, n)]
    # steps of a quarter, so that ties are common
    values = draw(st.lists(st.integers(-12, 12), min_size=n * V, max_size=n * V))
    logits = torch.tensor(values, dtype=torch.float64).view(1, n, V) / 4
    row = sequence(SamplingParams(**kw), tokens, prompt_len=draw(st.integers(1, len(tokens))))
    return row, parents, logits, draw(st.integers(0, 99))


@given(requests())
@settings(max_examples=150, deadline=None, derandomize=True)
def test_any_combination_equals_the_reference(case: tuple[Sequence, list[int], torch.Tensor, int]) -> None:
    row, parents, logits, seed = case
    draft = tree([row], parents, seed)
    want = reference([row], logits, draft)
    torch.testing.assert_close(dense([row], logits, draft), want, rtol=0, atol=1e-11)
    assert torch.equal(dense([row], logits, draft) > 0, want > 0)
    torch.testing.assert_close(dense([row], logits.float(), draft).double(), want, rtol=0, atol=2e-6)


@pytest.mark.parametrize("kw", SETTINGS, ids=str)
def test_a_drafter_is_shaped_by_the_same_law(kw: dict) -> None:
    row = sequence(SamplingParams(**kw), [3, 5, 3, 2, 2])
    draft = tree([row], CHAIN)
    logits = 2 * torch.randn(1, len(CHAIN), V, dtype=torch.float64)
    want = reference([row], logits, draft)
    for i in range(len(CHAIN)):
        prefix = prefix_at(row, draft, 0, i) if needs_history(row.params) else []
        torch.testing.assert_close(draft_law([row], [prefix], logits[:, i]), want[:, i], rtol=0, atol=1e-12)


def test_history_is_needed_exactly_by_what_reads_it() -> None:
    needing: list[dict[str, Any]] = [
        {"min_tokens": 1},
        {"repetition_penalty": 1.1},
        {"presence_penalty": 0.1},
        {"frequency_penalty": 0.1},
    ]
    assert all(needs_history(SamplingParams(**kw)) for kw in needing)
    assert needs_history(SamplingParams(logits_processors=[lambda ids, row: row]))
    free: dict[str, Any] = {"temperature": 1.0, "top_k": 3, "top_p": 0.5, "min_p": 0.1, "logit_bias": {1: 1.0}}
    assert not needs_history(SamplingParams(**free))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_greedy_gives_points_and_the_lowest_id_on_a_tie(dtype: torch.dtype) -> None:
    row = sequence(SamplingParams(), [3, 5, 3])
    logits = torch.randint(0, 3, (1, 4, 999), generator=torch.Generator().manual_seed(1)).to(dtype)
    got = laws([row], logits, tree([row], CHAIN))
    assert got.probs is None
    assert got.points is not None
    assert got.points.tolist() == [[r.index(max(r)) for r in logits[0].tolist()]]


def test_greedy_makes_no_copy_of_the_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("logits were copied")

    row = sequence(SamplingParams(min_tokens=2), [3, 5, 3, 4, 4])  # min_tokens is over: nothing left to edit
    padded = torch.randn(1, 4, V + 4)
    draft = tree([row], CHAIN)
    for name in ("clone", "float", "double", "to", "contiguous"):
        monkeypatch.setattr(torch.Tensor, name, refuse)
    assert laws([row], padded[..., :V], draft).points is not None


@pytest.mark.parametrize(
    "kw", [{}, {"temperature": 1.0}, {"temperature": 1.0, "top_p": 0.5, "top_k": 3}, ALL_ON], ids=str
)
def test_the_logits_are_left_as_they_were(kw: dict) -> None:
    row = sequence(SamplingParams(**kw), [3, 5, 3])
    logits = torch.randn(1, 4, V)
    before = logits.clone()
    laws([row], logits, tree([row], CHAIN))
    draft_law([row], [row.tokens], logits[:, 0])
    assert torch.equal(logits, before)


@pytest.mark.parametrize("temperature", [1e-4, 1e-20, 1e-45, 1e-300])
@pytest.mark.parametrize("kw", [{}, {"top_k": 4}, {"top_p": 0.9}, {"min_p": 0.1}], ids=str)
def test_a_temperature_near_zero_is_greedy_not_nan(temperature: float, kw: dict) -> None:
    row = sequence(SamplingParams(temperature=temperature, **kw), [3])
    for dtype in (torch.float32, torch.float64):
        logits = 30 * torch.randn(1, 1, V, dtype=dtype)
        probs = laws([row], logits, tree([row], [-1])).probs
        assert probs is not None
        assert probs[0, 0].tolist() == [float(i == int(logits.argmax())) for i in range(V)]


@pytest.mark.parametrize(
    "kw", [{}, {"temperature": 1.0}, {"temperature": 1.0, "top_k": 3, "top_p": 0.9}, ALL_ON], ids=str
)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf], ids=["nan", "inf", "all masked"])
def test_rows_that_are_not_finite_are_marked_and_harmless(kw: dict, value: float) -> None:
    row = sequence(SamplingParams(**kw), [3, 5, 3])
    draft = tree([row], CHAIN)
    logits = torch.randn(1, 4, V)
    fine = laws([row], logits, draft)
    if value == -math.inf:
        logits[0, 2] = value
    else:
        logits[0, 2, 9] = value
    got = laws([row], logits, draft)
    assert fine.bad is None
    assert got.bad is not None
    assert got.bad.tolist() == [[False, False, True, False]]
    if got.points is not None:
        assert fine.points is not None
        assert got.points[0, 2] == 0
        assert torch.equal(got.points[0, [0, 1, 3]], fine.points[0, [0, 1, 3]])
    else:
        assert got.probs is not None
        assert fine.probs is not None
        assert torch.allclose(got.probs.sum(-1), torch.ones(1, 4))
        assert torch.equal(got.probs[0, [0, 1, 3]], fine.probs[0, [0, 1, 3]])


def test_padding_is_never_bad_and_runs_no_processor() -> None:
    seen: list[list[int]] = []

    def record(ids: Any, row: torch.Tensor) -> torch.Tensor:
        seen.append(list(ids))
        return row

    params = SamplingParams(temperature=1.0, logits_processors=[record])
    rows = [sequence(params, [3, 5, 3]), sequence(SamplingParams(), [3, 5, 3])]
    logits = torch.randn(2, 4, V)
    logits[:, 2:] = math.nan
    draft = tree(rows, CHAIN, length=[2, 1])
    draft.tokens[0, 2:] = -1
    logits[1, 1] = 0.0
    got = laws(rows, logits, draft)
    assert got.bad is None
    assert seen == [[3, 5, 3], [3, 5, 3, int(draft.tokens[0, 1])]]
    assert got.probs is not None
    assert bool(got.probs.isfinite().all())


def test_a_processor_sees_its_own_prefix_on_every_path_and_may_do_what_it_likes_with_it() -> None:
    seen: list[list[int]] = []

    def spoil(ids: Any, row: torch.Tensor) -> torch.Tensor:
        seen.append(list(ids))
        ids.append(7)
        row[0] = 50.0
        return row

    row = sequence(SamplingParams(logits_processors=[spoil]), [3, 5, 3, 2])
    draft = tree([row], TREE)
    logits = torch.randn(1, len(TREE), V)
    before = logits.clone()
    got = laws([row], logits, draft)
    assert seen == [prefix_at(row, draft, 0, i) for i in range(len(TREE))]
    assert row.tokens == [3, 5, 3, 2]
    assert torch.equal(logits, before)
    assert got.points is not None
    assert got.points.tolist() == [[0] * len(TREE)]


def test_processors_run_in_order_after_bias_and_before_penalties() -> None:
    seen: list[list[float]] = []

    def look(ids: Any, row: torch.Tensor) -> torch.Tensor:
        seen.append(row.tolist())
        return row + 1.0

    params = SamplingParams(logits_processors=[look, look], logit_bias={0: 2.0}, frequency_penalty=1.0, min_tokens=9)
    row = sequence(params, [3, 3, 3, 0, 2])
    logits = torch.zeros(1, 1, V)
    logits[0, 0, 5] = 2.5
    got = laws([row], logits, tree([row], [-1]))
    raw = [2.0, -math.inf, 0.0, 0.0, 0.0, 2.5, *[0.0] * 6]
    assert seen == [raw, [v + 1 for v in raw]]
    assert got.points is not None
    assert got.points.tolist() == [[5]]


@pytest.mark.parametrize("out", [None, torch.zeros(V + 1), [0.0] * V])
def test_a_processor_that_returns_no_row_is_refused(out: Any) -> None:
    row = sequence(SamplingParams(logits_processors=[lambda ids, z: out]), [3])
    with pytest.raises(RequestError, match=r"logits processor .* must return a row of \[12\]"):
        laws([row], torch.zeros(1, 1, V), tree([row], [-1]))


def test_a_bias_beyond_the_vocabulary_is_refused() -> None:
    row = sequence(SamplingParams(logit_bias={V: 1.0}), [3])
    with pytest.raises(RequestError, match="logit_bias names token 12"):
        laws([row], torch.zeros(1, 1, V), tree([row], [-1]))


def test_min_tokens_counts_the_depth_of_the_node() -> None:
    """Negative control: a mask frozen at the round's start would hold the end back at every node."""
    row = sequence(SamplingParams(min_tokens=3), [3, 5, 3, 2, 2])  # two emitted, so the root is the last held back
    logits = torch.zeros(1, len(TREE), V)
    logits[..., 1] = 5.0
    points = laws([row], logits, tree([row], TREE)).points
    assert points is not None
    assert points.tolist() == [[0, 1, 1, 1, 1, 1]]


@pytest.mark.parametrize("kw", [{}, {"min_tokens": 9}, {"temperature": 1.0}, {**ALL_ON, "temperature": 0.0}], ids=str)
@pytest.mark.parametrize("value", [0.0, math.nan, math.inf, -math.inf], ids=str)
def test_peaks_that_the_target_says_change_no_law(kw: dict, value: float) -> None:
    rows = [sequence(SamplingParams(**kw), [3, 5, 3]), sequence(SamplingParams(**kw), [3, 5, 3, 8])]
    draft = tree(rows, CHAIN, length=[4, 2])
    logits = torch.randint(0, 3, (2, 4, V)).float()  # with ties
    logits[1, 1] = value
    logits[1, 2:] = 0.0
    said = torch.where(logits.max(-1).values.isfinite(), torch.from_numpy(logits.numpy().argmax(-1)), -1)
    with_them, without = laws(rows, logits, draft, said), laws(rows, logits, draft)
    for name in ("probs", "points", "bad"):
        one, other = getattr(with_them, name), getattr(without, name)
        assert (one is None) == (other is None)
        assert one is None or torch.equal(one, other)


def test_logits_whose_peaks_are_known_are_not_read() -> None:
    row = sequence(SamplingParams(), [3, 5, 3])
    said = torch.tensor([[3, 1, 4, 1]])
    got = laws([row], torch.full((1, 4, V), math.nan), tree([row], CHAIN), said)
    assert got.points is not None
    assert torch.equal(got.points, said)
    assert got.bad is None


def test_other_logits_leave_no_stale_peaks() -> None:
    scores = Scores.with_peaks(torch.zeros(1, 1, V), {}, torch.zeros(1, 1, dtype=torch.int64))
    assert scores.peaks is not None
    assert dataclasses.replace(scores, logits=torch.ones(1, 1, V)).peaks is None
    with pytest.raises(TypeError):
        Scores(scores.logits, scores.taps, scores.peaks)
