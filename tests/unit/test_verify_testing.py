"""The law-testing harness itself: its enumeration, its shared noise, its toy target."""

import pytest
import torch

from slipstream.testing import (
    ByteTokenizer,
    RandomLaw,
    SampledToy,
    Sprout,
    ToyTarget,
    Trace,
    TraceRngs,
    enumerate_traces,
    memoryless,
    pack,
    plain_law,
    scripted,
)
from slipstream.types import SamplingParams, Sequence, WorkError


def row(*values: float) -> torch.Tensor:
    return torch.tensor([values], dtype=torch.float64)


def test_all_branches_are_visited_once_with_their_weight() -> None:
    def run(traces: list[Trace]) -> list[tuple[int, bool]]:
        rngs = TraceRngs(traces)
        x = int(rngs.draft(row(0.5, 0.0, 1.5), 1))
        return [(x, bool(rngs.accept(torch.tensor([0.25])[0:1])) if x else False)]

    assert enumerate_traces(run) == pytest.approx({(0, False): 0.25, (2, False): 0.75 * 0.75, (2, True): 0.75 * 0.25})


@pytest.mark.parametrize("width", [1, 2, 5, 100])
def test_the_law_does_not_depend_on_the_width(width: int) -> None:
    def run(traces: list[Trace]) -> list[int]:
        rngs = TraceRngs(traces)
        w = row(0.2, 0.3, 0.5).repeat(len(traces), 1)
        first, second = rngs.correct(w), rngs.correct(w)
        return (first * 3 + second).tolist()

    law = enumerate_traces(run, width)
    assert law == pytest.approx({i * 3 + j: (2, 3, 5)[i] * (2, 3, 5)[j] / 100 for i in range(3) for j in range(3)})


def test_certain_coins_do_not_branch_and_impossible_ones_never_pass() -> None:
    law = enumerate_traces(lambda traces: [tuple(TraceRngs(traces).accept(torch.tensor([[1.0, 0.0]]))[0].tolist())])
    assert law == {(True, False): 1.0}


def test_inactive_rows_do_not_branch() -> None:
    law = enumerate_traces(
        lambda traces: [
            tuple(TraceRngs(traces * 2).correct(row(1, 1).repeat(2, 1), torch.tensor([False, True])).tolist())
        ]
    )
    assert law == {(0, 0): 0.5, (0, 1): 0.5}


def test_one_trace_in_two_rows_gives_the_joint_law() -> None:
    law = enumerate_traces(lambda traces: [tuple(TraceRngs(traces * 2).correct(row(1, 3).repeat(2, 1)).tolist())])
    assert law == pytest.approx({(i, j): (1, 3)[i] * (1, 3)[j] / 16 for i in range(2) for j in range(2)})


def test_nodes_drawn_at_once_branch_in_the_traces_of_their_rows() -> None:
    def run(traces: list[Trace]) -> list[tuple[int, ...]]:
        rngs = TraceRngs([Trace(), traces[0]])
        w = torch.tensor([[1, 0], [1, 3], [1, 1]], dtype=torch.float64)
        return [tuple(rngs.draft_nodes(w, 1, [0, 1, 1]).tolist())]

    assert enumerate_traces(run) == pytest.approx({(0, i, j): (1, 3)[i] / 8 for i in range(2) for j in range(2)})


def test_nodes_of_one_position_share_its_noise_where_drafts_do() -> None:
    def run(traces: list[Trace]) -> list[tuple[int, ...]]:
        rngs = TraceRngs(traces, [4], shared_noise=True)
        w = row(1.0, 3.0)
        return [(*rngs.draft_nodes(w.repeat(2, 1), 2, [0, 0]).tolist(), int(rngs.shared(w, 2)))]

    assert enumerate_traces(run) == pytest.approx({(0, 0, 0): 0.25, (1, 1, 1): 0.75}, abs=1e-12)


def test_a_race_draws_from_its_weights_and_repeats_itself() -> None:
    def run(traces: list[Trace]) -> list[tuple[int, int]]:
        rngs = TraceRngs(traces, [4])
        return [(int(rngs.shared(row(2.0, 5.0, 3.0), 1)), int(rngs.shared(row(2.0, 5.0, 3.0), 1)))]

    assert enumerate_traces(run) == pytest.approx({(0, 0): 0.2, (1, 1): 0.5, (2, 2): 0.3}, abs=1e-12)


def test_races_of_one_position_share_noise_across_rounds_and_others_do_not() -> None:
    def run(traces: list[Trace]) -> list[tuple[int, int, int]]:
        early, late = TraceRngs(traces, [4], shared_noise=True), TraceRngs(traces, [5])
        w = row(1.0, 1.0)
        return [(int(early.draft(w, 2)), int(late.shared(w, 1)), int(late.shared(w, 2)))]

    law = enumerate_traces(run)
    assert law == pytest.approx({(i, i, j): 0.25 for i in range(2) for j in range(2)}, abs=1e-12)


def test_races_without_the_winner_follow_the_law_without_it() -> None:
    """Drawing without replacement by racing on: second place given the first."""

    def run(traces: list[Trace]) -> list[tuple[int, int]]:
        rngs = TraceRngs(traces, [0])
        w = row(0.5, 0.3, 0.2)
        first = int(rngs.shared(w, 1))
        w[0, first] = 0.0
        return [(first, int(rngs.shared(w, 1)))]

    w = (0.5, 0.3, 0.2)
    want = {(i, j): w[i] * w[j] / (1 - w[i]) for i in range(3) for j in range(3) if i != j}
    assert enumerate_traces(run) == pytest.approx(want, abs=1e-12)


def test_the_toy_target_reads_its_own_cache() -> None:
    law = RandomLaw(3, 9)
    target = ToyTarget(law, 3)
    target.prefill(0, [1, 2])
    root = Sprout([0])
    root.add(1, 0)
    root.add(2, 0)
    scores = target.score([0], pack([root], 3))
    assert scores.logits.softmax(-1)[0].tolist() == [
        pytest.approx(law(s)) for s in ((1, 2, 0), (1, 2, 0, 1), (1, 2, 0, 2))
    ]
    assert scores.taps[0][0].tolist() == [[0, 2], [1, 3], [2, 3]]
    target.commit([0], [[2]])
    assert target.cache[0] == [1, 2, 0, 2]


def test_the_toy_target_refuses_a_path_that_is_none() -> None:
    target = ToyTarget(memoryless(0.5, 0.5), 2)
    root = Sprout([0])
    root.add(1, 0)
    root.add(0, 0)
    target.score([0], pack([root], 2))
    with pytest.raises(WorkError, match="does not follow node"):
        target.commit([0], [[1, 2]])


def test_the_toy_target_fails_and_poisons_as_told() -> None:
    target = ToyTarget(memoryless(0.5, 0.5), 2)
    target.fail_at = frozenset({1})
    target.poison = lambda prefix: prefix == (1,)
    draft = pack([Sprout([1]), Sprout([0])], 2)
    with pytest.raises(RuntimeError, match="call 1"):
        target.score([0, 1], draft)
    logits = target.score([0, 1], draft).logits
    assert logits.isnan().all(-1).tolist() == [[True], [False]]


def test_a_toy_drafter_notices_what_it_was_not_told() -> None:
    drafter = SampledToy(memoryless(0.5, 0.5), 2)
    sequence = Sequence(0, [0, 1], 1, SamplingParams(temperature=1.0))
    with pytest.raises(WorkError, match="its drafter heard"):
        drafter.propose([sequence], [1], TraceRngs([Trace()]))


def test_small_things() -> None:
    law = plain_law(memoryless(0.25, 0.75), (0,), 2)
    assert law == {(0, 0): 0.0625, (0, 1): 0.1875, (1, 0): 0.1875, (1, 1): 0.5625}
    assert scripted((2, 0), 3, 1, peak=0.9)((7,)) == pytest.approx((0.05, 0.05, 0.9))
    tokenizer = ByteTokenizer()
    assert tokenizer.decode([*tokenizer.encode("h\u00e9"), 256]) == "h\u00e9"
