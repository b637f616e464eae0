"""Peers: transformers' modes emit our tokens on a tiny model; the others are asked the right thing (stand-ins)."""

from __future__ import annotations

import dataclasses
import sys
import types
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from slipstream import LLM, RequestError, SamplingParams
from slipstream.measure.peers import Task, open_peer
from slipstream.measure.peers.hf import ended
from tiny_model import make_model

PROMPTS = [[5, 6, 7, 8, 9], [9, 8, 7]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def ours(folder: Path) -> list[list[int]]:
    llm = LLM(str(folder), "none", dtype="float32")
    return [c.token_ids for c in llm.generate(PROMPTS, SamplingParams(max_tokens=12, ignore_eos=True))]


def task(folder: Path, **changes: Any) -> Task:
    return dataclasses.replace(Task(folder, str(folder), torch.float32, "cpu", 128), **changes)


def test_plain_transformers_emit_our_tokens_batched_and_not(folder: Path, ours: list[list[int]]) -> None:
    generate = open_peer("hf", task(folder))
    assert generate(PROMPTS, [0, 1], 12) == ours
    assert [generate([p], [0], 12)[0] for p in PROMPTS] == ours


@pytest.mark.parametrize("name", ["hf-lookup", "hf-assisted"])
def test_speculative_transformers_emit_our_tokens(name: str, folder: Path, ours: list[list[int]]) -> None:
    generate = open_peer(name, task(folder, draft_folder=folder))
    assert [generate([p], [0], 12)[0] for p in PROMPTS] == ours


def test_an_end_of_text_ends_an_output_and_is_kept(folder: Path, ours: list[list[int]]) -> None:
    last = ours[0][5]
    generate = open_peer("hf", task(folder, eos_ids=(last,)))
    expected = [ended(tokens, (last,)) for tokens in ours]
    assert expected[0][-1] == last
    assert len(expected[0]) <= 6
    assert generate(PROMPTS, [0, 1], 12) == expected


def test_draws_follow_the_seed_and_leave_the_global_state_alone(folder: Path) -> None:
    generate = open_peer("hf", task(folder, temperature=1.0))
    before = torch.random.get_rng_state()
    first = generate(PROMPTS[:1], [3], 12)
    assert generate(PROMPTS[:1], [3], 12) == first
    assert generate(PROMPTS[:1], [4], 12) != first
    assert torch.equal(torch.random.get_rng_state(), before)


class FakeLlama:
    """Counts upwards from the last prompt token."""

    made: ClassVar[list[FakeLlama]] = []

    def __init__(self, path: str, **options: Any) -> None:
        self.path, self.options, self.asked = path, options, []
        self.made.append(self)

    def reset(self) -> None:
        self.asked.append("reset")

    def set_seed(self, seed: int) -> None:
        self.asked.append(seed)

    def generate(self, prompt: list[int], **sampling: Any):
        self.asked.append(sampling)
        yield from range(prompt[-1] + 1, 1000)


@pytest.fixture
def fake_llama(monkeypatch: pytest.MonkeyPatch) -> type[FakeLlama]:
    module, speculative = types.ModuleType("llama_cpp"), types.ModuleType("llama_cpp.llama_speculative")
    module.Llama = FakeLlama  # type: ignore[attr-defined]
    speculative.LlamaPromptLookupDecoding = lambda num_pred_tokens: ("lookup", num_pred_tokens)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "llama_cpp", module)
    monkeypatch.setitem(sys.modules, "llama_cpp.llama_speculative", speculative)
    FakeLlama.made.clear()
    return FakeLlama


def test_llama_cpp_starts_afresh_for_each_prompt(fake_llama: type[FakeLlama]) -> None:
    generate = open_peer("llama-cpp", task(Path("m"), name="m.gguf", temperature=0.5, eos_ids=(12,)))
    assert generate(PROMPTS, [2**33 + 1, 2], 4) == [[10, 11, 12], [8, 9, 10, 11]]
    made = fake_llama.made[0]
    assert (made.path, made.options["n_ctx"]) == ("m.gguf", 128)
    assert [what for what in made.asked if not isinstance(what, dict)] == ["reset", 1, "reset", 2]
    assert made.asked[2] == {"temp": 0.5, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repeat_penalty": 1.0}


def test_llama_cpp_lookup_and_what_it_refuses(fake_llama: type[FakeLlama]) -> None:
    open_peer("llama-cpp-lookup", task(Path("m"), name="m.gguf"))
    assert fake_llama.made[0].options["draft_model"] == ("lookup", 10)
    with pytest.raises(RequestError, match=r"give --model FILE\.gguf"):
        open_peer("llama-cpp", task(Path("m"), name="smollm2"))


def test_vllm_is_asked_for_the_same_weights_and_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}

    class Engine:
        def __init__(self, **options: Any) -> None:
            seen["engine"] = options

        def generate(self, prompts: list[Any], params: list[Any], use_tqdm: bool) -> list[Any]:
            seen["prompts"], seen["params"] = prompts, params
            return [types.SimpleNamespace(outputs=[types.SimpleNamespace(token_ids=(1, 2))]) for _ in prompts]

    module = types.ModuleType("vllm")
    module.LLM, module.SamplingParams = Engine, lambda **kwargs: kwargs  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm", module)
    generate = open_peer("vllm", task(Path("m"), eos_ids=(0,)))
    assert generate(PROMPTS, [3, 4], 8) == [[1, 2], [1, 2]]
    engine = seen["engine"]
    assert (engine["model"], engine["dtype"], engine["max_model_len"]) == ("m", "float32", 128)
    assert engine["enable_prefix_caching"] is False
    assert [p["seed"] for p in seen["params"]] == [3, 4]
    assert seen["params"][0]["stop_token_ids"] == [0]
    assert seen["params"][0]["max_tokens"] == 8
