"""Case 10: a recurrent state cannot be truncated: it is rolled back by replay, or the target is refused when built.

The model has one attention layer and one recurrent layer h' = tanh(A h + B x), and a cache of its own whose `crop` does
nothing, which is how rejected tokens come to stay in the state. Equality with plain decoding is the proof; a healthy
acceptance rate is shown to be none.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from cases_kit import make_engine, output, request
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

from slipstream.targets import hf_cache
from slipstream.targets.hf import HFTarget
from slipstream.testing import NoneToy, ScriptedToy
from slipstream.types import RequestError

V, H = 32, 24


class ToyConfig(PreTrainedConfig):
    model_type = "toy-hybrid"

    def __init__(self, vocab_size: int = V, hidden_size: int = H, num_hidden_layers: int = 2, **rest: Any) -> None:
        self.vocab_size, self.hidden_size, self.num_hidden_layers = vocab_size, hidden_size, num_hidden_layers
        super().__init__(**rest)


class ToyCache:
    """Changed in place, and its crop silently does nothing."""

    def __init__(self) -> None:
        self.keys: list[Tensor] = []
        self.state = torch.zeros(1, H, dtype=torch.float64)

    def crop(self, length: int) -> None: ...


class SealedCache(ToyCache):
    """Cannot be copied either."""

    def __deepcopy__(self, memo: Any) -> Any:
        raise TypeError("lives on a device that cannot be read")


class ToyHybrid(PreTrainedModel):
    config_class = ToyConfig
    cache_class: type[ToyCache] = ToyCache

    def __init__(self, config: ToyConfig) -> None:
        super().__init__(config)
        self.embed = nn.Embedding(V, H)
        self.attend = nn.Linear(H, 2 * H)
        self.a, self.b = nn.Linear(H, H), nn.Linear(H, H)
        self.head = nn.Linear(H, V)
        self.post_init()

    def cache_for(self, given: ToyCache | None) -> ToyCache:
        return given if given is not None else self.cache_class()

    def forward(self, input_ids: Tensor, past_key_values: ToyCache | None = None, use_cache: bool = True) -> Any:
        cache = self.cache_for(past_key_values)
        outs = []
        for token in input_ids[0]:
            x = self.embed(token)  # [H]
            query, key = self.attend(x).chunk(2)
            cache.keys.append(key)
            keys = torch.stack(cache.keys)  # [T, H]
            x = x + torch.softmax(keys @ query, 0) @ keys
            cache.state.copy_(torch.tanh(self.a(cache.state) + self.b(x)))
            outs.append(self.head(x + cache.state[0]))
        return CausalLMOutputWithPast(logits=torch.stack(outs)[None], past_key_values=cache)


class HidingHybrid(ToyHybrid):
    """Keeps its state in the module: what the cache object holds is only half of it."""

    hidden: ToyCache | None = None

    def cache_for(self, given: ToyCache | None) -> ToyCache:
        if given is None or self.hidden is None:
            self.hidden = ToyCache()
        return self.hidden


def toy(kind: type[ToyHybrid] = ToyHybrid) -> ToyHybrid:
    torch.manual_seed(5)
    model = kind(ToyConfig()).double().eval()
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn_like(p) * 0.4)
    return model


def fresh(model: ToyHybrid, tokens: list[int]) -> Tensor:
    with torch.no_grad():
        return model(torch.tensor([tokens])).logits[0]  # [T, V]


def missing_at(every: int, model: ToyHybrid) -> ScriptedToy:
    """The model's own next tokens, but wrong at every n-th depth (1: `never` right)."""

    def guess(prefix: tuple[int, ...], n: int) -> list[int]:
        found: list[int] = []
        for depth in range(1, n + 1):
            best = int(fresh(model, [*prefix, *found])[-1].argmax())
            found.append((best + 1) % V if depth % every == 0 else best)
        return found

    return ScriptedToy(guess, V)


def run(target: Any, drafter: Any, prompts: list[list[int]], tokens: int = 40, **params: Any) -> list[Any]:
    engine = make_engine(target, drafter, 5, max_rows=len(prompts))
    rows = [request(i, prompt, max_tokens=tokens, **params) for i, prompt in enumerate(prompts)]
    for row in rows:
        engine.add(row)
    while not engine.idle:
        engine.step()
        for row in engine.scheduler.rows:
            assert target.length(row.slot) == len(row.tokens) - 1
    return rows


PROMPTS = [[1, 2, 3], [7], [4, 9, 4, 9, 4]]


@pytest.mark.parametrize("every", [1, 3])
def test_case_10_the_text_is_that_of_plain_decoding(every: int) -> None:
    model = toy()
    plain = run(HFTarget(model, max_rows=3), NoneToy(V), PROMPTS)
    target = HFTarget(model, max_rows=3)
    assert target.rollback == "replay"
    drafted = run(target, missing_at(every, model), PROMPTS)
    assert [output(row) for row in drafted] == [output(row) for row in plain]
    assert any(len(set(output(row))) > 3 for row in plain), "a text too dull to prove anything"
    for row in plain:  # plain decoding itself is what the model says
        assert [int(t) for t in fresh(model, row.tokens[:-1]).argmax(-1)][row.prompt_len - 1 :] == output(row)
    rate = drafted[0].stats.draft_acceptance_rate
    assert rate == 0 if every == 1 else rate > 0.3


def test_case_10_the_logits_of_every_round_are_those_of_a_fresh_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    model = toy()
    target = HFTarget(model, max_rows=1)
    worst = []
    score = target.score

    def spy(slots: list[int], draft: Any) -> Any:
        scores = score(slots, draft)
        worst.append(float((scores.logits[0, 0] - fresh(model, engine_row.tokens)[-1]).abs().max()))
        return scores

    monkeypatch.setattr(target, "score", spy)
    engine = make_engine(target, missing_at(3, model), 5)
    engine_row = request(0, PROMPTS[0], max_tokens=60)
    engine.add(engine_row)
    while not engine.idle:
        engine.step()
    assert len(worst) > 10
    assert max(worst) < 1e-12


@pytest.fixture
def careless(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rollback that trusts `crop`: rejected tokens stay in the state."""

    def keep(self: Any, count: int) -> None:
        self.cache = self._open.cache
        self.cache.crop(self.length + count)
        self.length += count
        self._open = None

    monkeypatch.setattr(hf_cache.RowCache, "keep", keep)


@pytest.mark.usefixtures("careless")
def test_case_10_a_crop_that_does_nothing_is_found_when_the_target_is_built() -> None:
    with pytest.raises(
        RequestError, match=r"model 'toy-hybrid', cache ToyCache: rejected tokens cannot be rolled back"
    ):
        HFTarget(toy())


@pytest.mark.usefixtures("careless")
def test_case_10_a_corrupt_state_may_keep_a_healthy_acceptance_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control: with the check at build disarmed, the text is wrong and the rate looks fine."""
    model = toy()
    monkeypatch.setattr("slipstream.targets.hf.self_check", lambda *_: None)
    target = HFTarget(model, max_rows=1)

    def guess(prefix: tuple[int, ...], n: int) -> list[int]:
        """Right about the corrupt model, as a drafter that copies its own output is, but for one token in four."""
        cache = hf_cache.fork(target._row(0).cache)
        found: list[int] = []
        last = prefix[-1]
        for _ in range(n):
            with torch.no_grad():
                logits = model(torch.tensor([[last]]), cache).logits[0, -1]
            last = int(logits.argmax())
            found.append(last)
        return [(t + 1) % V if i == 3 else t for i, t in enumerate(found)]

    (row,) = run(target, ScriptedToy(guess, V), PROMPTS[:1])
    expected = [int(t) for t in fresh(model, row.tokens[:-1]).argmax(-1)][row.prompt_len - 1 :]
    assert row.stats.draft_acceptance_rate > 0.5
    assert output(row) != expected


@pytest.mark.parametrize(
    "kind, reason",
    [(HidingHybrid, "its cached state is wrong"), (None, "cannot be read")],
    ids=["state hidden in the module", "cache that cannot be copied"],
)
def test_case_10_what_cannot_be_rolled_back_is_refused_when_built(kind: Any, reason: str) -> None:
    if kind is None:
        kind = type("SealedHybrid", (ToyHybrid,), {"cache_class": SealedCache})
    with pytest.raises(RequestError, match=rf"model 'toy-hybrid', cache \w+: .*{reason}"):
        HFTarget(toy(kind))
