"""Case 08: temperature 0 gives the text of plain decoding: equal in float32, near-ties only in bfloat16."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from cases_kit import make_engine, output, request

from slipstream.drafters.draft_model import DraftModel
from slipstream.nets.decoder import load_decoder
from slipstream.targets.native import NativeTarget
from slipstream.testing import NoneToy, ScriptedToy

VOCAB = 64
PROMPTS = [[(7 * i + 3 * j) % VOCAB for j in range(4 + i % 5)] for i in range(20)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random two-layer model of width 32."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(5)
    path = tmp_path_factory.mktemp("tiny")
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        initializer_range=0.3,
    )
    LlamaForCausalLM(config).save_pretrained(path)
    assert json.loads((path / "config.json").read_text())["vocab_size"] == VOCAB
    return path


def run(folder: Path, dtype: torch.dtype, drafter_of, nodes: int, tokens: int) -> list[list[int]]:
    decoder = load_decoder(folder, dtype, "cpu", max_rows=4, max_len=256)
    target = NativeTarget(decoder)
    engine = make_engine(target, drafter_of(), nodes, max_rows=4)
    rows = [request(id=i, prompt=p, max_tokens=tokens) for i, p in enumerate(PROMPTS)]
    for row in rows:
        engine.add(row)
    while not engine.idle:
        engine.step()
    return [output(row) for row in rows]


def scripted_by(plain: list[list[int]], wrong_every: int):
    """An oracle of the plain run that misses at every n-th token (0: never misses)."""
    texts = {tuple(p): p + out for p, out in zip(PROMPTS, plain, strict=True)}

    def guess(prefix: tuple[int, ...], n: int) -> list[int]:
        text = next(t for p, t in texts.items() if prefix[: len(p)] == p)
        ahead = text[len(prefix) : len(prefix) + n]
        return [
            (t + 1) % VOCAB if wrong_every and (len(prefix) + i) % wrong_every == 0 else t for i, t in enumerate(ahead)
        ]

    return ScriptedToy(guess, VOCAB)


@pytest.fixture(scope="module")
def plain32(folder: Path) -> list[list[int]]:
    return run(folder, torch.float32, lambda: NoneToy(VOCAB), 0, 200)


@pytest.mark.parametrize("nodes", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("wrong_every", [0, 3, 1])
def test_case_08_float32_ids_are_equal(folder: Path, plain32: list[list[int]], nodes: int, wrong_every: int) -> None:
    assert run(folder, torch.float32, lambda: scripted_by(plain32, wrong_every), nodes, 200) == plain32


def test_case_08_float32_with_a_copy_of_the_model(folder: Path, plain32: list[list[int]]) -> None:
    def copy() -> DraftModel:
        return DraftModel(load_decoder(folder, torch.float32, "cpu", max_rows=4, max_len=256), vocab=VOCAB, max_rows=4)

    assert run(folder, torch.float32, copy, 4, 200) == plain32


@pytest.mark.parametrize("nodes", [1, 4, 8])
def test_case_08_bfloat16_differs_at_near_ties_only(folder: Path, nodes: int) -> None:
    plain = run(folder, torch.bfloat16, lambda: NoneToy(VOCAB), 0, 100)
    drafted = run(folder, torch.bfloat16, lambda: scripted_by(plain, 3), nodes, 100)
    decoder = load_decoder(folder, torch.bfloat16, "cpu", max_rows=1, max_len=256)
    for prompt, a, b in zip(PROMPTS, plain, drafted, strict=True):
        if a == b:
            continue
        at = next(i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y)
        decoder.release(0)
        decoder.extend(0, (prompt + a)[: len(prompt) + at - 1])
        with torch.inference_mode():
            logits, _ = decoder.nodes([0], torch.tensor([[(prompt + a)[len(prompt) + at - 1]]]), None)
        top = logits.float().flatten().topk(2).values
        step = 2.0 ** (torch.floor(torch.log2(top[0].abs())).item() - 7)
        assert (top[0] - top[1]).item() <= 4 * step, "the runs part where the plain run has no near-tie"
