"""Engines by turns on one target and one set of drafters: none spoils what another is doing, or is told."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import pytest
import torch

from control_kit import profile_of
from slipstream import LLM, SamplingParams, build, profiles
from slipstream.config import EngineConfig
from slipstream.control import profile as control_profile
from slipstream.drafters.draft_model import DraftModel
from slipstream.drafters.lookup import Lookup
from slipstream.drafters.mixed import Mixed
from slipstream.opened import Guess, Part
from slipstream.testing import RandomLaw, ToyTarget
from slipstream.testing.toy_decoder import ToyDecoder
from slipstream.testing.toys import logits_of
from slipstream.types import RequestError, Sequence
from tiny_model import make_model

V = 13
LAW = RandomLaw(V, 5, order=2)


def drafters() -> tuple[Lookup, DraftModel]:
    decoder = ToyDecoder(lambda tokens: torch.tensor(logits_of(LAW(tuple(tokens)))), vocab=V)
    return Lookup(vocab=V), DraftModel(decoder, vocab=V, max_rows=4)


@pytest.fixture
def parts(monkeypatch):
    """Parts of a mix on a machine where the draft model costs little, but reading a prompt much."""
    profile = profile_of({1: 1.0, 8: 1.1}, {"draft_model": 0.05})
    profile.reading["draft_model"] = 1.0
    monkeypatch.setattr(build, "profile_for", lambda *_: profile)
    lookup, model = drafters()
    return [Part(lookup, 15, "lookup"), Part(model, 8, "draft_model")]


def engine_of(guess: Guess):
    opened = SimpleNamespace(target=ToyTarget(LAW, V), tokenizer=None)
    made = build.make_engine(opened, guess, EngineConfig(verify="auto", max_rows=4))
    made._detokenizer = None
    return made


def drafted(engine, name: int, prompt: int = 3) -> int:
    row = Sequence(name, [1 + k % 3 for k in range(prompt)], prompt, SamplingParams(max_tokens=60, ignore_eos=True))
    engine.add(row)
    while row.finish_reason is None:
        engine.step()
    return row.stats.num_draft_tokens


def test_a_mix_drafts_for_each_engine_that_has_it(parts):
    guess = Guess(Mixed([part.drafter for part in parts]), 15, parts=parts)
    first = engine_of(guess)
    alone = drafted(first, 1)
    second = engine_of(dataclasses.replace(guess, notes=[]))
    assert drafted(second, 2) > 10
    assert drafted(first, 3) >= alone > 10, "the second engine's controller does not know this engine's rows"


def test_a_mix_without_a_controller_of_its_own_is_its_first_drafter(parts):
    mix = Mixed([part.drafter for part in parts])
    chooses, fixed = engine_of(Guess(mix, 15, parts=parts)), engine_of(Guess(mix, 4))
    assert drafted(chooses, 1) > 10
    assert drafted(fixed, 2) > 10
    assert drafted(chooses, 3) > 10


def test_a_fixed_length_asks_nobody_whether_to_read(parts):
    model = parts[1]
    chooses = engine_of(Guess(Mixed([part.drafter for part in parts]), 15, parts=parts))
    fixed = engine_of(Guess(model.drafter, 4, parts=[model], fixed=4))
    drafted(chooses, 1)  # its controller was the last to be asked
    row = Sequence(2, [2] * 300, 300, SamplingParams(max_tokens=60, ignore_eos=True))
    assert chooses.controller.waits(1, row)
    unread = []
    propose = model.drafter.propose
    model.drafter.propose = lambda *each: (unread.extend(map(model.drafter.unread, each[0])), propose(*each))[1]
    fixed.add(row)
    fixed.step()
    assert max(unread) < 10, "it is read as it comes, where its time belongs"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("shared") / "model")


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setattr(profiles, "profiles_dir", lambda: tmp_path / "profiles")


def test_nothing_is_measured_in_the_cache_of_a_text(folder, home):
    llm = LLM(str(folder), "lookup", dtype="float32", max_rows=2)
    params = SamplingParams(max_tokens=12, ignore_eos=True)
    alone = llm.generate("the cat sat on", params).token_ids
    stream = llm.stream("the cat sat on", params)
    got = [*next(stream).token_ids]
    with pytest.raises(RequestError, match="the target is decoding"):
        profiles.measure_again(llm.opened, llm.guess.parts, llm.engine.rule, 1)
    got += [token for delta in stream for token in delta.token_ids]
    assert got == alone


def test_what_could_not_be_measured_is_measured_before_the_first_round(folder, home):
    llm = LLM(str(folder), "none", dtype="float32", max_rows=2)
    params = SamplingParams(max_tokens=6, ignore_eos=True)
    stream = llm.stream("the cat sat on", params)
    next(stream)
    other = llm.with_drafter(f"draft_model:{folder}")
    (part,) = other.guess.parts
    assert other.engine.controller.profile.draft(part.cost, 4, "greedy") == 0.0
    stream.close()
    other.generate("the cat sat on", params)
    assert other.engine.controller.profile.draft(part.cost, 4, "greedy") > 0.0
    assert other.engine.controller.profile is llm.opened.profile


def test_a_drafter_is_timed_reading_a_prompt_as_prompts_are_read(monkeypatch):
    _, model = drafters()
    roles: list[tuple[int, bool]] = []
    decoder = model._cache.decoder
    extend = decoder.extend
    monkeypatch.setattr(
        decoder, "extend", lambda slot, t, *, prompt=True: (roles.append((len(t), prompt)), extend(slot, t))[1]
    )
    model.wait(lambda row: True)
    assert control_profile.measure_reading(ToyTarget(LAW, V), model) > 0
    assert roles
    assert all(prompt for _, prompt in roles)
    assert {size for size, _ in roles} == {control_profile.CONTEXT}


@pytest.mark.parametrize("tree", [False, True])
def test_what_a_tree_promises_is_reckoned_by_its_nodes(tree):
    profile = profile_of({1: 1.0, 16: 1.1}, {"medusa@1": {n + 1: 1e-9 + 0.01 * n for n in range(4)}})
    profile.rates["medusa@1"] = {"greedy 0": [0.5, 0.3, 0.2]}
    profile.trees |= {"medusa@1"} if tree else set()
    found = profiles.promise(SimpleNamespace(profile=control_profile.from_dict(profile.as_dict())), "medusa@1")
    stands = 0.5 + 0.3 + 0.2 if tree else 0.5 + 0.5 * 0.3 + 0.5 * 0.3 * 0.2
    assert found == pytest.approx((1 + stands) / (1.02 + 0.03), rel=1e-3)
