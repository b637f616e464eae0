"""Case 19: penalties and processors see prompt, output and the path to their own node, never refused drafts."""

from typing import Any

import pytest
import torch

from slipstream.sampling import laws
from slipstream.testing import NoneToy, SampledToy, ToyDrafter, distance, enumerate_traces, every_toy, run_law
from slipstream.testing.rounds import Round, Tokens
from slipstream.testing.toys import Law
from slipstream.testing.trace import Trace, TraceRngs
from slipstream.types import Draft, Laws, SamplingParams, Sequence
from slipstream.verify import RULES

V, PROMPT, LENGTH = 10, (0, 3, 4), 24


def scores(prefix: Tokens) -> list[float]:
    """Logits of a target that loops 1, 2, 1, 2 and would rather take a low id than a high one."""
    loop = 2 if prefix[-1] == 1 else 1
    return [1.2 if t == loop else 1.0 - 0.01 * t for t in range(V)]


def looping(prefix: Tokens) -> list[float]:
    return torch.tensor(scores(prefix), dtype=torch.float64).softmax(0).tolist()


def no_repeat_3_gram(ids: list[int], row: torch.Tensor) -> torch.Tensor:
    for i in range(len(ids) - 2):
        if ids[i : i + 2] == ids[-2:]:
            row[ids[i + 2]] = -torch.inf
    return row


def think_at_most_three(ids: list[int], row: torch.Tensor) -> torch.Tensor:
    """Force id 9 once three tokens were emitted without one."""
    out = ids[len(PROMPT) :]
    if len(out) >= 3 and 9 not in out:
        row[:] = -torch.inf
        row[9] = 0.0
    return row


SETTINGS: dict[str, dict[str, Any]] = {
    "frequency": {"frequency_penalty": 0.5},
    "presence": {"presence_penalty": 0.5},
    "repetition": {"repetition_penalty": 1.3},
    "no repeat": {"logits_processors": [no_repeat_3_gram]},
    "budget": {"logits_processors": [think_at_most_three]},
    "all": {"frequency_penalty": 0.5, "presence_penalty": 0.5, "repetition_penalty": 1.3, "min_tokens": 2}
    | {"stop_token_ids": [1], "logits_processors": [no_repeat_3_gram]},
}


def node_scores(rows: list[Sequence], draft: Draft) -> torch.Tensor:
    out = torch.zeros(len(rows), draft.nodes, V, dtype=torch.float64)
    for b, row in enumerate(rows):
        paths = [tuple(row.tokens)]
        for i in range(1, int(draft.length[b])):
            paths.append((*paths[int(draft.parents[b, i])], int(draft.tokens[b, i])))
        out[b, : len(paths)] = torch.tensor([scores(path) for path in paths])
    return out


def frozen_laws(rows: list[Sequence], logits: torch.Tensor, draft: Draft) -> Laws:
    """Wrong: every node is shaped by the history at the start of the round."""
    one = torch.ones(len(rows), dtype=torch.int64)
    root = Draft(draft.tokens[:, :1], -one[:, None], one, 0 * one[:, None])
    nodes = [laws(rows, logits[:, i : i + 1], root) for i in range(draft.nodes)]
    return Laws(
        probs=None if nodes[0].probs is None else torch.cat([n.probs for n in nodes if n.probs is not None], 1),
        points=None if nodes[0].points is None else torch.cat([n.points for n in nodes if n.points is not None], 1),
    )


def make_round(
    params: SamplingParams, drafter: ToyDrafter, budget: int, shape: Any = laws, rule: str = "chain"
) -> Round:
    def run(traces: list[Trace], prefix: Tokens) -> list[Tokens]:
        rows = [Sequence(id=b, tokens=list(prefix), prompt_len=len(PROMPT), params=params) for b in range(len(traces))]
        for row in rows:
            drafter.forget(row)
        drafter.observe(rows, [row.tokens[:-1] for row in rows], [{} for _ in rows])
        rngs = TraceRngs(traces, [len(prefix)] * len(traces), shared_noise=RULES[rule].shared_noise)
        draft = drafter.propose(rows, [budget] * len(rows), rngs)
        verdict = RULES[rule](draft, shape(rows, node_scores(rows, draft), draft), rngs)
        paths = [path[:n] for path, n in zip(verdict.path.tolist(), verdict.accepted.tolist(), strict=True)]
        last = verdict.next_token.tolist()
        return [(*draft.tokens[b, path].tolist(), last[b]) for b, path in enumerate(paths)]

    return lambda prefix: enumerate_traces(lambda traces: run(traces, prefix), 32)


def greedy_run(one_round: Round, n: int = LENGTH) -> list[int]:
    tokens = PROMPT
    while len(tokens) < len(PROMPT) + n:
        (emitted,) = one_round(tokens)
        tokens += emitted
    return list(tokens[len(PROMPT) : len(PROMPT) + n])


def plain(params: SamplingParams) -> list[int]:
    return greedy_run(make_round(params, NoneToy(V), 0))


def oracle(law: Law = looping, misses: int = 0) -> ToyDrafter:
    return every_toy(law, V, misses)


@pytest.mark.parametrize("name", SETTINGS)
def test_case_19_greedy_ids_equal_plain_for_every_draft_length(name: str) -> None:
    params = SamplingParams(**SETTINGS[name])
    want = plain(params)
    assert want != plain(SamplingParams())  # the setting bites
    for budget in range(1, 7):
        for misses in (0, 2):
            assert greedy_run(make_round(params, oracle(misses=misses), budget)) == want


@pytest.mark.parametrize("name", SETTINGS)
def test_case_19_a_history_frozen_at_the_round_start_is_told_apart(name: str) -> None:
    params = SamplingParams(**SETTINGS[name])
    assert greedy_run(make_round(params, oracle(), 6, frozen_laws)) != plain(params)


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("rule", ["chain", "block"])
def test_case_19_two_sampled_tokens_match_exact_enumeration(name: str, rule: str) -> None:
    params = SamplingParams(**SETTINGS[name] | {"temperature": 1.0, "top_k": 3})
    exact = run_law(make_round(params, NoneToy(V), 0), PROMPT, 2)
    drafted = make_round(params, SampledToy(looping, V), 2, rule=rule)
    small = {k: v for k, v in exact.items() if v > 0}
    assert len(small) > 4
    assert distance(run_law(drafted, PROMPT, 2), exact) < 1e-12


def test_case_19_frozen_penalties_bend_the_sampled_law() -> None:
    params = SamplingParams(temperature=1.0, top_k=3, frequency_penalty=2.0)
    exact = run_law(make_round(params, NoneToy(V), 0), PROMPT, 2)
    wrong = run_law(make_round(params, SampledToy(looping, V), 2, frozen_laws), PROMPT, 2)
    assert distance(wrong, exact) > 0.01


@pytest.mark.parametrize("misses", [0, 2])
def test_case_19_the_recorded_context_is_prompt_and_output(misses: int) -> None:
    seen: list[list[int]] = []

    def record(ids: list[int], row: torch.Tensor) -> torch.Tensor:
        seen.append(list(ids))
        return row

    params = SamplingParams(frequency_penalty=0.5, logits_processors=[record])
    for budget in range(1, 7):
        seen.clear()
        out = greedy_run(make_round(params, oracle(misses=misses), budget))
        for i in range(len(out)):
            assert [*PROMPT, *out[:i]] in seen
        assert all(ids[: len(PROMPT)] == list(PROMPT) for ids in seen)


def test_case_19_the_forced_id_comes_at_the_same_index() -> None:
    params = SamplingParams(logits_processors=[think_at_most_three])
    assert plain(params)[:4] == [1, 2, 1, 9]
    for budget in range(1, 7):
        assert greedy_run(make_round(params, oracle(), budget)).index(9) == 3
