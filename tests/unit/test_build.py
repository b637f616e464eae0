"""Names become plug-ins: what a spec means, what is refused, and that all tables can be built."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from slipstream import build, decoders, kernels, learned, machine
from slipstream.config import DrafterConfig, EngineConfig, TargetConfig
from slipstream.types import RequestError, WorkError
from tiny_model import make_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("build"))


@pytest.fixture(scope="module")
def opened(folder: Path) -> build.Opened:
    return build.open_target(TargetConfig(model=str(folder), dtype="float32"), rows=2)


@pytest.mark.parametrize("name", learned.ALGORITHMS)
def test_every_option_of_a_learned_drafter_can_be_named_in_a_spec(name):
    own = set(learned.ALGORITHMS[name].option_names())
    assert set(build.DRAFTERS[name].options) == own | {"quantize"}


def test_specs(folder):
    assert build.parse_drafter("lookup") == build.DrafterChoice("lookup")
    assert build.parse_drafter("draft_model:x:y") == build.DrafterChoice("draft_model", "x:y")
    auto = build.parse_drafter("auto")
    assert auto.name == "lookup"
    assert auto.reason
    bare = build.parse_drafter(str(folder))
    assert (bare.name, bare.path) == ("draft_model", str(folder))
    assert build.parse_drafter("qwen2.5-coder-0.5b-instruct").name == "draft_model"


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("lookup:x", "must be written lookup"),
        ("draft_model", "draft_model:PATH"),
        ("suffix", "not available yet"),
        ("mtp:/x", "not available yet"),
        ("dflash", "must be written dflash:PATH"),
        ("lookup?max_ngram", "key=value"),
        ("lookup+suffix", "not available yet"),
        ("lookup+lookup", "twice"),
        ("lookup+none", "leave 'none' out"),
        ("auto:none", "leave 'none' out"),
        ("lookup+draft_modle:/x", "did you mean 'draft_model'"),
        ("/no/such", "no such model folder"),
        ("draft_modle:/x", "did you mean 'draft_model'"),
    ],
)
def test_specs_that_mean_nothing(spec, words):
    with pytest.raises(RequestError, match=words):
        build.parse_drafter(spec)


def test_mixes(folder, tmp_path):
    mix = build.parse_drafter("lookup?max_ngram=4+draft_model:a+b")
    assert [part.name for part in mix.parts] == ["lookup", "draft_model"]
    assert mix.parts[0].options == {"max_ngram": 4}
    assert mix.parts[1].path == "a+b", "a path may hold a +"
    assert "lookup, draft_model" in mix.reason
    auto = build.parse_drafter(f"auto:{folder}")
    assert [(part.name, part.path) for part in auto.parts] == [("lookup", ""), ("draft_model", str(folder))]
    odd = tmp_path / "lookup+x"
    odd.mkdir()
    (odd / "config.json").write_text("{}")
    assert build.parse_drafter(str(odd)).name == "draft_model", "a folder of that name is meant"


def test_every_rule_of_the_table_exists_and_every_rule_is_in_the_table():
    from slipstream import verify

    assert set(build.RULES) == set(verify.RULES)
    for name in build.RULES:
        assert build.make_rule(name).lossless


def test_every_drafter_of_the_table_can_be_built(opened, folder):
    for name, plug in build.DRAFTERS.items():
        if plug.learned:  # tests/e2e/test_learned.py has a checkpoint of each
            continue
        spec = f"{name}:{folder}" if plug.path else name
        guess = build.open_drafter(DrafterConfig(spec=spec), opened, rows=2)
        assert guess.drafter.name == name
        assert guess.draft_tokens == (plug.most or plug.draft_tokens)
        assert build.make_engine(opened, guess, EngineConfig()).idle


def test_lookup_options_arrive(opened):
    config = DrafterConfig(spec="lookup", options={"min_ngram": 3, "max_ngram": 4})
    drafter = build.open_drafter(config, opened, rows=1).drafter
    assert (drafter.options.min_ngram, drafter.options.max_ngram) == (3, 4)
    with pytest.raises(RequestError, match="option of drafter none"):
        build.open_drafter(DrafterConfig(spec="none", options={"min_ngram": 3}), opened, rows=1)


def test_zero_draft_tokens_is_plain_decoding(opened):
    assert build.open_drafter(DrafterConfig(spec="lookup", draft_tokens=0), opened, rows=1).drafter.name == "none"


def test_a_draft_wider_than_the_target_scores_is_refused(opened, folder):
    with pytest.raises(RequestError, match="at most 63"):
        build.open_drafter(DrafterConfig(spec="lookup", draft_tokens=64), opened, rows=1)
    wide = build.open_target(TargetConfig(model=str(folder), dtype="float32"), rows=1, draft_tokens=100)
    assert build.open_drafter(DrafterConfig(spec="lookup", draft_tokens=100), wide, rows=1).draft_tokens == 100


def test_unknown_family_falls_back_to_transformers_with_a_note(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    kind, note = build.target_kind(tmp_path)
    assert kind == "hf"
    assert "gpt2" in note


def test_number_formats(monkeypatch):
    monkeypatch.setattr(machine, "cpu_flags", frozenset)
    assert build.resolve_dtype("auto", "cpu") is torch.float32
    assert build.resolve_dtype("auto", "cuda") is torch.bfloat16
    monkeypatch.setattr(machine, "cpu_flags", lambda: frozenset({"avx512_bf16"}))
    assert build.resolve_dtype("auto", "cpu") is torch.bfloat16
    assert build.resolve_dtype("float32", "cuda") is torch.float32


def test_on_a_processor_without_bfloat16_the_kernels_hold_it_and_torch_does_not(folder, monkeypatch):
    monkeypatch.setattr(machine, "cpu_flags", frozenset)
    config = TargetConfig(model=str(folder))
    if kernels.available():
        opened = build.open_target(config, rows=1)
        assert opened.dtype is torch.bfloat16
        assert learned._on_kernels(opened)
        assert decoders.draft_way("", opened.dtype, opened.device).quantize == "int4"
    assert build.open_target(replace(config, kind="hf"), rows=1).dtype is torch.float32
    monkeypatch.setattr(kernels, "_reason", "the extension is not there")
    opened = build.open_target(config, rows=1)
    assert opened.dtype is torch.float32
    assert "the extension is not there" in " ".join(opened.notes)


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")])
def test_running_out_of_memory_names_what_to_lower(error):
    with pytest.raises(WorkError, match="--max-model-len"), build.memory_guard("decoding"):
        raise error
    with pytest.raises(RuntimeError, match="shape"), build.memory_guard("decoding"):
        raise RuntimeError("shape mismatch")


def test_which_rule_auto_applies():
    assert build.rule_used("auto", "lookup", 10, greedy=False) == "chain"
    assert build.rule_used("auto", "draft_model", 4, greedy=False) == "block"
    assert build.rule_used("auto", "draft_model", 1, greedy=False) == "chain"
    assert build.rule_used("auto", "draft_model", 4, greedy=True) == "chain"
    assert build.rule_used("coupled", "lookup", 4, greedy=True) == "coupled"


class Feeling:
    """A drafter that reads hidden states, and guesses nothing."""

    name = "feeling"

    def __init__(self, taps: tuple[int, ...]) -> None:
        from slipstream.types import Needs

        self.needs = Needs(taps=taps)
        self.felt: list[tuple[int, ...]] = []

    def propose(self, rows, budget, rngs):
        from slipstream.drafters.chains import chain_draft

        return chain_draft(rows, [[] for _ in rows])

    def observe(self, rows, tokens, taps) -> None:
        for new, felt in zip(tokens, taps, strict=True):
            self.felt += [(tap, len(new), *x.shape) for tap, x in felt.items()]

    def forget(self, row) -> None:
        pass


def test_a_drafter_object_gets_the_taps_it_needs(folder) -> None:
    from slipstream import LLM

    drafter = Feeling((0, 2))
    llm = LLM(str(folder), drafter, dtype="float32")
    llm.generate([1, 2, 3], {"max_tokens": 2})
    assert {tap for tap, *_ in drafter.felt} == {0, 2}
    assert all(n == rows for _, n, rows, _ in drafter.felt)


@pytest.mark.parametrize("target", ["native", "hf"])
def test_taps_that_a_target_does_not_have_are_refused(folder, target) -> None:
    from slipstream import LLM

    with pytest.raises(RequestError, match="tap 99"):
        LLM(str(folder), Feeling((99,)), dtype="float32", target=target).generate("the cat")
