"""On a CUDA device: the same logits, the same draws, the same text, and caches that keep their word.

`SLIPSTREAM_TEST_DEVICE=cpu` runs the same checks without a GPU, to debug the tests themselves.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from slipstream.control.budget import FixedBudget
from slipstream.drafters.draft_model import DraftModel
from slipstream.drafters.lookup import Lookup
from slipstream.drafters.none import NoDraft
from slipstream.engine import Engine, EngineOptions
from slipstream.nets.decoder import load_decoder
from slipstream.sampling import RequestRngs, laws
from slipstream.targets.native import NativeTarget
from slipstream.types import Draft, SamplingParams, Sequence
from slipstream.verify import RULES

DEVICE = os.environ.get("SLIPSTREAM_TEST_DEVICE", "cuda")
pytestmark = [] if DEVICE == "cpu" else [pytest.mark.gpu]
VOCAB = 256


@pytest.fixture(scope="module", autouse=True)
def _exact_float32():
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(5)
    config = Qwen2Config(
        vocab_size=VOCAB,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        initializer_range=0.2,
    )
    path = tmp_path_factory.mktemp("tiny")
    Qwen2ForCausalLM(config).save_pretrained(path)
    return path


def decoder(folder: Path, device: str = DEVICE, dtype: torch.dtype = torch.float32, rows: int = 4):
    return load_decoder(folder, dtype, device, max_rows=rows, max_len=256)


def run(target: NativeTarget, drafter, nodes: int, rule: str, rows: list[Sequence]) -> list[list[int]]:
    engine = Engine(target, drafter, RULES[rule], FixedBudget(nodes), EngineOptions(max_rows=4))
    for row in rows:
        engine.add(row)
    while not engine.idle:
        engine.step()
    return [row.tokens[row.prompt_len :] for row in rows]


def requests(**params) -> list[Sequence]:
    params.setdefault("max_tokens", 60)
    prompts = [[(5 * i + 3 * j) % VOCAB for j in range(3 + 4 * i)] for i in range(6)]
    return [Sequence(i, list(p), len(p), SamplingParams(seed=i, **params)) for i, p in enumerate(prompts)]


def test_logits_equal_the_cpus(folder: Path) -> None:
    tokens = torch.randint(0, VOCAB, (2, 9))
    found = []
    for device in ("cpu", DEVICE):
        d = decoder(folder, device)
        d.extend(0, list(range(40)))
        d.extend(1, list(range(7)))
        found.append(d.nodes([0, 1], tokens.to(device))[0].cpu())
    assert (found[0] - found[1]).abs().max() < 1e-4


def test_a_tree_equals_its_paths(folder: Path) -> None:
    d = decoder(folder)
    d.extend(0, list(range(30)))
    parents = [-1, 0, 0, 1, 1, 2, 5]
    tokens = torch.randint(0, VOCAB, (1, 7), device=DEVICE)
    tree = d.nodes([0], tokens, torch.tensor([parents], device=DEVICE))[0][0]
    for node in range(7):
        path = [node]
        while parents[path[0]] >= 0:
            path.insert(0, parents[path[0]])
        alone = d.nodes([0], tokens[:, path])[0][0, -1]
        assert (tree[node] - alone).abs().max() < 1e-4


@pytest.mark.parametrize("rule", ["chain", "block", "coupled", "auto"])
def test_rules_and_laws_draw_what_they_draw_on_the_cpu(rule: str) -> None:
    g = torch.Generator().manual_seed(1)
    b, n = 3, 5
    logits = torch.randn(b, n, VOCAB, generator=g)
    q = torch.softmax(torch.randn(b, n, VOCAB, generator=g), -1)
    tokens = torch.multinomial(q.view(-1, VOCAB), 1, generator=g).view(b, n).roll(1, 1)
    parents, draw = torch.arange(-1, n - 1).repeat(b, 1), torch.ones(b, n, dtype=torch.int64)
    found = []
    for device in ("cpu", DEVICE):
        params = [SamplingParams(temperature=0.8), SamplingParams(temperature=1.0, top_p=0.9), SamplingParams()]
        rows = [Sequence(i, [1, 2], 2, p, seed=i) for i, p in enumerate(params)]
        draft = Draft(*(t.to(device) for t in (tokens, parents, torch.tensor([n, n - 1, n]), draw, q)))
        p = laws(rows, logits.to(device), draft)
        verdict = RULES[rule](draft, p, RequestRngs(rows, shared_noise=RULES[rule].shared_noise))
        found.append((verdict.path.tolist(), verdict.accepted.tolist(), verdict.next_token.tolist(), p.probs.cpu()))
    assert found[0][:3] == found[1][:3]
    assert (found[0][3] - found[1][3]).abs().max() < 1e-6


@pytest.mark.parametrize("nodes", [1, 3, 8])
def test_greedy_text_is_plain_text_in_float32(folder: Path, nodes: int) -> None:
    plain = run(NativeTarget(decoder(folder)), NoDraft(device=DEVICE), 0, "auto", requests())
    lookup = Lookup(vocab=VOCAB, device=DEVICE)
    copy = DraftModel(decoder(folder), vocab=VOCAB, max_rows=4, device=DEVICE)
    for drafter in (lookup, copy):
        assert run(NativeTarget(decoder(folder)), drafter, nodes, "auto", requests()) == plain


@pytest.mark.parametrize("rule", ["auto", "coupled"])
def test_sampled_text_is_reproducible_and_coupled_text_is_plain_text(folder: Path, rule: str) -> None:
    def sampled(drafter, nodes: int) -> list[list[int]]:
        rows = requests(temperature=0.9, top_p=0.95)
        return run(NativeTarget(decoder(folder)), drafter, nodes, rule, rows)

    def copy() -> DraftModel:
        return DraftModel(decoder(folder), vocab=VOCAB, max_rows=4, device=DEVICE)

    first = sampled(copy(), 4)
    assert sampled(copy(), 4) == first
    if rule == "coupled":
        assert sampled(NoDraft(device=DEVICE), 0) == first


def test_stale_entries_are_never_seen(folder: Path) -> None:
    d = decoder(folder, rows=2)
    d.extend(0, list(range(20)))
    d.extend(1, list(range(5)))
    tokens = torch.randint(0, VOCAB, (2, 6), device=DEVICE)
    before = d.nodes([0, 1], tokens)[0].clone()
    d.keep([0, 1], [[], []])
    for slot, length in ((0, 20), (1, 5)):
        d.truncate(slot, length)
        d.cache.keys[:, slot, :, length:] = float("nan")
        d.cache.values[:, slot, :, length:] = float("nan")
    assert torch.equal(d.nodes([0, 1], tokens)[0], before)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_runs_and_stays_close(folder: Path, dtype: torch.dtype) -> None:
    tokens = torch.randint(0, VOCAB, (1, 8), device=DEVICE)
    exact = decoder(folder).nodes([0], tokens)[0]
    near = decoder(folder, dtype=dtype).nodes([0], tokens)[0].float()
    assert (near - exact).abs().max() < 0.05 * exact.abs().max()
