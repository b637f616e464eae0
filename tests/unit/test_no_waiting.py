"""A round on an accelerator waits for it once: counted on a device that says when it is asked (`fake_device`)."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fake_device import FakeDevice, Far
from slipstream.control.budget import FixedBudget
from slipstream.devices import Faults, moved
from slipstream.drafters.lookup import Lookup
from slipstream.drafters.none import NoDraft
from slipstream.engine import Engine, EngineOptions
from slipstream.engine.commit import Found, Round, to_host
from slipstream.engine.guard import checked
from slipstream.nets.batch_runner import runner_for
from slipstream.nets.decoder import CachedDecoder, load_decoder
from slipstream.nets.layers import Linear
from slipstream.sampling import RequestRngs, laws
from slipstream.targets.native import NativeTarget
from slipstream.types import Draft, Needs, Rngs, SamplingParams, Scores, Sequence, WorkError
from slipstream.verify import RULES
from tiny_model import make_model


def test_the_fake_device_counts() -> None:
    with FakeDevice() as fake:
        x = fake.put(torch.arange(4.0))
        assert x.device.type == "cuda"
        y = (x + 1)[torch.arange(2, device="cuda")]
        assert isinstance(y, Far)
        assert not fake.waits
        assert y.tolist() == [1, 2]
        assert bool((x > 2).any())
        assert x[x > 2].shape == (1,)
        x.cpu()
        torch.tensor([1], device="cuda")
        torch.ones(2).to("cuda")
        torch.ones(2).to("cuda", non_blocking=True)
        assert sum(fake.waits.values()) == 6, fake.waits
        assert x.to(torch.float64).tolist() == [0, 1, 2, 3]
        with pytest.raises(AssertionError, match="tensors of the host"):
            x + torch.ones(4)


V = 40
PARAMS = {
    "greedy": [SamplingParams()] * 3,
    "sampled": [SamplingParams(temperature=0.8), SamplingParams(temperature=1.0, top_p=0.8), SamplingParams()],
    "cut": [
        SamplingParams(temperature=1.0, min_p=0.1),
        SamplingParams(temperature=1.3, top_k=5, top_p=0.9),
        SamplingParams(temperature=0.7, top_k=3, min_p=0.2),
    ],
    "edited": [
        SamplingParams(temperature=0.9, repetition_penalty=1.2, frequency_penalty=0.3),
        SamplingParams(logit_bias={3: 2.0, 7: -4.0}),
        SamplingParams(temperature=1.0, min_tokens=50, stop_token_ids=(4, 5)),
    ],
}
CHAIN = [-1, 0, 1, 2, 3]
BUSH = [-1, 0, 0, 0, 1, 1, 4, 4, 2]


def rows_of(kind: str) -> list[Sequence]:
    return [Sequence(b, [1, 2, 3], 2, params, seed=7 + b, rounds=b) for b, params in enumerate(PARAMS[kind])]


def a_draft(parents: list[int], lengths: list[int], draws: str, seed: int) -> Draft:
    """Random trees: the children of a node are drawn without repetition, from a law of a few tokens."""
    g = torch.Generator().manual_seed(seed)
    b, n = len(lengths), len(parents)
    q = torch.softmax(2 * torch.randn(b, n, V, generator=g, dtype=torch.float64), -1)
    tokens, draw = torch.full((b, n), 3), torch.zeros(b, n, dtype=torch.int64)
    for row in range(b):
        left = q[row].clone()
        for node in range(1, lengths[row]):
            token = int(torch.multinomial(left[parents[node]], 1, generator=g))
            left[parents[node], token] = 0
            first = parents.index(parents[node]) == node
            tokens[row, node] = token
            kinds = {"fixed": 0, "distinct": 1 if first else 2, "hybrid": int(first)}
            draw[row, node] = kinds[draws]
    return Draft(
        tokens,
        torch.tensor(parents).repeat(b, 1),
        torch.tensor(lengths),
        draw,
        None if draws == "fixed" else q,
        parents == list(range(-1, n - 1)),
    )


def judged(rule: str, rows: list[Sequence], logits: Tensor, draft: Draft) -> list[Found]:
    rngs = RequestRngs(rows, shared_noise=RULES[rule].shared_noise)
    with torch.no_grad(), Faults() as faults:
        work = Round(rows, rngs, checked(draft, [20] * len(rows), V, "toy"), scores=Scores(logits))
        work.laws = laws(rows, logits, work.draft)
        work.verdict = RULES[rule](work.draft, work.laws, rngs)
    return to_host(work, faults)


def sent(draft: Draft) -> Draft:
    parts = {name: moved(getattr(draft, name), "cuda") for name in ("tokens", "parents", "length", "draw")}
    q = draft.q
    return replace(draft, q=None if q is None else FakeDevice.now.put(q), **parts)


@pytest.mark.parametrize("kind", PARAMS)
@pytest.mark.parametrize("draws", ["fixed", "distinct", "hybrid"])
@pytest.mark.parametrize("rule", ["chain", "block", "tree", "coupled", "auto"])
def test_a_verdict_is_that_of_the_cpu_and_waited_for_once(rule: str, draws: str, kind: str) -> None:
    accepted = 0
    shapes = [CHAIN] if rule in {"chain", "block"} else [CHAIN, BUSH]
    for seed, parents in enumerate(shapes * 4):
        n = len(parents)
        draft = a_draft(parents, [n, 1 + seed % n, n - 1], draws, seed)
        logits = 2 * torch.randn(3, n, V, generator=torch.Generator().manual_seed(50 + seed), dtype=torch.float64)
        if draft.q is not None:
            logits = logits * 0.2 + draft.q.log()  # near the drafter's, so that much stands
        here = judged(rule, rows_of(kind), logits, draft)
        with FakeDevice() as fake:
            there = judged(rule, rows_of(kind), fake.put(logits), sent(draft))
            assert fake.waits == {"tolist": 1}
        assert there == here
        accepted += sum(len(found.path) for found in here)
    assert accepted > 0 or draws == "fixed"


def test_refusals_come_with_the_verdict() -> None:
    draft = a_draft(CHAIN, [5, 5, 5], "distinct", 0)
    assert draft.q is not None
    draft.q[1, 1, draft.tokens[1, 2]] = 0
    rows, logits = rows_of("sampled"), torch.zeros(3, 5, V)
    rngs = RequestRngs(rows)
    with FakeDevice() as fake, Faults() as faults:
        far = sent(draft)
        work = Round(rows, rngs, far, laws=laws(rows, fake.put(logits), far))
        work.verdict = RULES["chain"](far, work.laws, rngs)
        assert not fake.waits
        with pytest.raises(WorkError, match=r"1 drafted token\(s\) have probability 0 in q"):
            to_host(work, faults)


def test_a_row_that_is_not_finite_ends_there_as_on_the_cpu() -> None:
    draft = a_draft(CHAIN, [5, 5, 3], "fixed", 0)
    for kind in ("greedy", "sampled"):
        logits = torch.randn(3, 5, V, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
        logits[1, 0, 3] = torch.nan
        logits[2, 4] = torch.nan  # padding
        here = judged("auto", rows_of(kind), logits, draft)
        with FakeDevice() as fake:
            assert judged("auto", rows_of(kind), fake.put(logits), sent(draft)) == here
        assert [found.good for found in here][1] == 0
        assert here[2].good > 0


def test_an_id_outside_the_vocabulary_ends_a_fixed_row_there_too() -> None:
    draft = a_draft(CHAIN, [5, 5, 5], "fixed", 0)
    draft.tokens[1, 3] = V
    with FakeDevice() as fake:
        kept = checked(sent(draft), [4, 4, 4], V, "toy")
        assert not fake.waits
        assert kept.length.tolist() == [5, 3, 5]


def far_decoder(folder: Path) -> CachedDecoder:
    """A tiny decoder, all of it on the fake device."""
    decoder = load_decoder(folder, torch.float64, "cpu", max_rows=3, max_len=120, max_nodes=16)
    put, net, cache = FakeDevice.now.put, decoder.net, decoder.cache
    net.device = torch.device("cuda")
    for table in net.ropes.values():
        table.reserve(2048)
        table.cos, table.sin, table.device = put(table.cos), put(table.sin), net.device
    parts = [*net.weights.layers, net.weights]
    for part in parts:
        for name, value in vars(part).items():
            if isinstance(value, Tensor):
                setattr(part, name, put(value))
            elif isinstance(value, Linear):
                bias = None if value.bias is None else put(value.bias)
                setattr(part, name, Linear(put(value.weight), bias))
    cache._keys, cache._values = put(cache._keys), put(cache._values)
    cache.keys, cache.values = put(cache.keys), put(cache.values)
    for views, whole in ((cache._k, cache.keys), (cache._v, cache.values)):
        views[:] = [[whole[i, s] for s in range(3)] for i in range(cache.shape.layers)]
    decoder.runner = runner_for(net, cache, 16)
    assert decoder.runner is not None
    return decoder


def texts(decoder: CachedDecoder, drafter: Any, waits: Counter[str] | None, **params: Any) -> list[list[int]]:
    """Run three requests; rounds after the prompts are in may wait once each."""
    target = NativeTarget(decoder, taps=(1,))
    engine = Engine(target, drafter, RULES["auto"], FixedBudget(5), EngineOptions(max_rows=3))
    prompts = [[5, 6, 7, 5, 6, 7, 5], [9, 9], [11, 12, 13, 11, 12]]
    rows = [Sequence(i, p, len(p), SamplingParams(seed=i, max_tokens=20, **params)) for i, p in enumerate(prompts)]
    for row in rows:
        engine.add(row)
    engine.step()  # prompts go in by themselves, chunk by chunk
    while not engine.idle:
        before = Counter(waits or ())
        engine.step()
        if waits is not None:
            assert waits - before == {"tolist": 1}
    return [row.tokens[row.prompt_len :] for row in rows]


@pytest.mark.parametrize("params", [{}, {"temperature": 0.9, "top_p": 0.9}, {"temperature": 0.7, "top_k": 4}])
@pytest.mark.parametrize("drafter", ["none", "lookup", "trees"])
def test_a_round_waits_once_and_its_text_is_the_cpus(drafter: str, params: dict[str, Any], tmp_path: Path) -> None:
    folder = make_model(tmp_path / "tiny")

    def made(device: str) -> Any:
        if drafter == "trees":
            return Bushes(device=device)
        return NoDraft(device=device) if drafter == "none" else Lookup(vocab=260, device=device)

    near = load_decoder(folder, torch.float64, "cpu", max_rows=3, max_len=120, max_nodes=16)
    here = texts(near, made("cpu"), None, **params)
    with FakeDevice() as fake:
        assert texts(far_decoder(folder), made("cuda"), fake.waits, **params) == here


class Bushes(NoDraft):
    """Draft the same small tree for every row, from the last tokens of its own text."""

    name = "bushes"
    needs = Needs(taps=(1,), tree=True)

    def propose(self, rows: list[Sequence], budget: list[int], rngs: Rngs) -> Draft:
        """Guess each of the last five tokens, at two depths."""
        parents = [-1, 0, 0, 1, 1, 2][: 1 + max(budget)]
        n = [min(len(parents), 1 + most) for most in budget]
        tokens = [[row.tokens[-1], *(row.tokens[-6:] * 6)[1 : len(parents)]] for row in rows]
        parts = torch.tensor(tokens), torch.tensor(parents).repeat(len(rows), 1), torch.tensor(n)
        draw = torch.zeros_like(parts[0])
        return Draft(
            *(moved(x, self.device) for x in (*parts, draw)), chain=parents == list(range(-1, len(parents) - 1))
        )
