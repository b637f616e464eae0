"""`--drafter auto`: what it finds here for a target, what it leaves alone, and that the text stays that of plain."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import layout_files
from slipstream import LLM, SamplingParams, models
from slipstream.types import WorkError
from tiny_model import CONFIG, make_model

SMALLER = "qwen2.5-coder-0.5b-instruct"
PARAMS = SamplingParams(max_tokens=30, ignore_eos=True)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of its own, where whatever is not there already cannot be fetched."""
    monkeypatch.setenv("SLIPSTREAM_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(models, "pull", _refused)
    return tmp_path / "home"


def _refused(name: str, *_: object) -> Path:
    raise AssertionError(f"{name} would have been downloaded")


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("models") / "the-target", layers=8)


def opened(target: Path, drafter: str = "auto", **more: object) -> LLM:
    return LLM(str(target), drafter, dtype="float32", max_rows=1, max_model_len=96, **more)  # type: ignore[arg-type]


def learned(target: Path, folder: Path, claim: str) -> Path:
    vocab = json.loads((target / "config.json").read_text())["vocab_size"]
    sizes = layout_files.Sizes(hidden=CONFIG["hidden_size"], vocab=vocab, draft_vocab=vocab // 2, target_layers=8)
    config = {"speculators_config.verifier.name_or_path": claim}
    return layout_files.write("speculators/eagle3", folder, sizes=sizes, config=config)


def test_with_nothing_at_hand_it_is_lookup(target, home):
    llm = opened(target)
    assert llm.drafter == "lookup"
    assert any("lookup where it pays" in note for note in llm.notes)


def test_a_smaller_model_of_the_vocabulary_joins_in(target, home):
    make_model(home / "models" / SMALLER, layers=1)
    llm = opened(target)
    assert llm.drafter == "lookup+draft_model"
    assert any(f"draft_model {SMALLER}" in note for note in llm.notes)
    plain = opened(target, "none")
    assert llm.generate("the cat sat on", PARAMS).token_ids == plain.generate("the cat sat on", PARAMS).token_ids


@pytest.mark.parametrize("what", ["too large", "another vocabulary", "not pulled"])
def test_other_models_are_left_alone(what, target, home):
    if what == "too large":
        make_model(home / "models" / SMALLER, layers=5)
    if what == "another vocabulary":
        make_model(home / "models" / SMALLER, layers=1, extra=["<a>", "<b>"])
    assert opened(target).drafter == "lookup"


def test_a_learned_drafter_that_names_the_target_comes_first(target, home):
    make_model(home / "models" / SMALLER, layers=1)
    learned(target, home / "drafters" / "stranger", "someone/Another-Target")
    mine = learned(target, home / "drafters" / "mine", "someone/The-Target")
    llm = opened(target)
    assert llm.drafter == "lookup+eagle3"
    assert llm.drafter_folder == mine
    assert any(f"eagle3 {mine}" in note for note in llm.notes)


def test_one_that_cannot_be_built_is_left_out_with_a_line(target, home, monkeypatch):
    make_model(home / "models" / SMALLER, layers=1)
    mine = learned(target, home / "drafters" / "mine", "the-target")
    (mine / "model.safetensors").write_bytes(b"nothing")
    llm = opened(target)
    assert llm.drafter == "lookup+draft_model"
    monkeypatch.setattr("slipstream.decoders.open_decoder", _broken)
    again = llm.with_drafter("auto")
    assert again.drafter == "lookup"
    assert any("is left out: no room" in note for note in again.notes)


def _broken(*_: object, **__: object) -> None:
    raise WorkError("no room")


def test_what_was_measured_to_pay_goes_first(target, home):
    """A draft model that `tune` found to be good beats a learned drafter nothing is known of."""
    from slipstream import at_hand, profiles
    from slipstream.profiles import cost_name

    smaller = make_model(home / "models" / SMALLER, layers=1)
    learned(target, home / "drafters" / "mine", "the-target")
    llm = opened(target, f"draft_model:{SMALLER}")
    names = [choice.name for choice in at_hand.found(llm.opened)]
    assert names == ["eagle3", "draft_model"]
    profile = llm.opened.profile
    assert profile is not None
    profile.rates[cost_name("draft_model", smaller, {})] = {"greedy 0": [1.0] * 8}
    slow = profile.target(1, 1) * 10
    profile.passes[1].seconds[:] = [slow] * len(profile.passes[1].seconds)
    profiles.save(llm.opened)
    assert [choice.name for choice in at_hand.found(llm.opened)] == ["draft_model", "eagle3"]


def test_options_and_lengths_of_ones_own(target, home):
    make_model(home / "models" / SMALLER, layers=1)
    assert opened(target, "auto?max_ngram=4").drafter == "lookup"
    assert opened(target, draft_tokens=0).drafter == "none"
    llm = opened(target, draft_tokens=3)
    assert llm.guess.fixed == 3
