"""On a CUDA device: the same logits, the same draws, the same text, and caches that keep their word.

`SLIPSTREAM_TEST_DEVICE=cpu` runs the same checks without a GPU, to debug the tests themselves.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from slipstream.control.budget import FixedBudget
from slipstream.devices import Faults, moved
from slipstream.drafters.draft_model import DraftModel
from slipstream.drafters.lookup import Lookup
from slipstream.drafters.none import NoDraft
from slipstream.engine import Engine, EngineOptions
from slipstream.engine.commit import Round, to_host
from slipstream.nets.batch_runner import BATCHED, GRAPHS, BatchRunner
from slipstream.nets.compiling import COMPILE
from slipstream.nets.decoder import load_decoder
from slipstream.nets.quantised import QuantisedLinear, lacking
from slipstream.sampling import RequestRngs, laws
from slipstream.targets.native import NativeTarget
from slipstream.types import Draft, SamplingParams, Scores, Sequence
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


TREE = [-1, 0, 0, 1, 1, 2, 5]


@pytest.mark.parametrize("switch", [None, GRAPHS, BATCHED, COMPILE])
def test_every_way_of_running_a_pass_gives_the_same(
    folder: Path, switch: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = decoder(folder, "cpu")
    if switch is not None:
        monkeypatch.setenv(switch, "1" if switch == COMPILE else "0")
    d = decoder(folder)
    if DEVICE != "cpu":
        assert (d.runner is None) == (switch == BATCHED)
        assert d.runner is None or (d.runner.recordings is None) == (switch == GRAPHS)
    for one in (d, plain):
        for slot, n in ((0, 40), (1, 7), (2, 130)):
            one.extend(slot, [(slot + 3 * j) % VOCAB for j in range(n)])
    for turn in range(4):  # the first records, the others replay over new lengths
        tokens = torch.randint(0, VOCAB, (3, 7), generator=torch.Generator().manual_seed(turn))
        parents, counts = torch.tensor([TREE, list(range(-1, 6)), TREE]), [7, 3, 5]
        ours, taps = d.nodes([0, 1, 2], moved(tokens, DEVICE), parents.to(DEVICE), (1, -1), counts)
        theirs, their_taps = plain.nodes([0, 1, 2], tokens, parents, (1, -1), counts)
        assert (ours.cpu() - theirs).abs().max() < 1e-4
        for tap in (1, -1):
            assert (taps[tap].cpu() - their_taps[tap]).abs().max() < 1e-4
        for one in (d, plain):
            one.keep([0, 1, 2], [[1, 4], [1], []])
        if turn == 1:
            for one in (d, plain):
                one.release(2)
                one.extend(2, [9, 8, 7])
    if d.runner is not None and d.runner.recordings is not None:
        assert d.runner.recordings.recorded <= 2


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize(("outputs", "inputs"), [(960, 576), (37, 96), (4608, 1536), (5000, 64)])
def test_packed_weights_multiply_as_on_the_cpu_and_rows_keep_their_bits(bits: int, outputs: int, inputs: int) -> None:
    g = torch.Generator().manual_seed(bits)
    weight, bias, x = (
        torch.randn(size, generator=g).bfloat16() for size in ((outputs, inputs), (outputs,), (40, inputs))
    )
    here = QuantisedLinear(weight, bias, bits=bits)(x).double()
    there = QuantisedLinear(weight.to(DEVICE), bias.to(DEVICE), bits=bits)
    found = there(x.to(DEVICE))
    assert (found.cpu() - here).norm() < 0.01 * here.norm()
    for rows in (1, 2, 7, 16, 33):
        assert torch.equal(there(x[:rows].to(DEVICE)), found[:rows]) or DEVICE == "cpu"
    many = x.repeat(5, 1).to(DEVICE)  # as many as a prompt has
    assert (there(many)[160:].cpu() - here).norm() < 0.01 * here.norm()


@pytest.mark.parametrize("quantize", ["int8", "int4"])
def test_a_model_of_packed_weights_runs_recorded_and_near_the_whole_one(folder: Path, quantize: str) -> None:
    assert lacking(quantize, DEVICE) == ""
    d = load_decoder(folder, torch.bfloat16, DEVICE, max_rows=4, max_len=256, quantize=quantize)
    exact, tokens = decoder(folder), torch.randint(0, VOCAB, (1, 8), device=DEVICE)
    near = d.nodes([0], tokens)[0].float()
    assert (near - exact.nodes([0], tokens)[0]).norm() < (0.1 if quantize == "int8" else 0.5) * near.norm()
    lookup = Lookup(vocab=VOCAB, device=DEVICE)
    texts = run(NativeTarget(d), lookup, 4, "auto", requests())
    assert all(len(text) == 60 for text in texts)
    assert d.runner is None or d.runner.recordings is None or d.runner.recordings.recorded > 0


def test_ids_that_only_the_device_knows_are_scored_and_checked(folder: Path) -> None:
    d = decoder(folder)
    d.extend(0, list(range(20)))
    tokens = torch.randint(0, VOCAB, (1, 4))
    known = d.nodes([0], moved(tokens, DEVICE))[0].clone()
    assert torch.equal(d.nodes([0], tokens.to(DEVICE))[0], known)
    with pytest.raises(ValueError, match=f"token id {VOCAB} is not"):
        d.nodes([0], torch.full((1, 4), VOCAB, device=DEVICE))


@pytest.mark.skipif(DEVICE == "cpu", reason="waiting is a thing of accelerators")
@pytest.mark.parametrize("rule", ["chain", "block", "tree", "coupled", "auto"])
def test_laws_and_rules_never_wait(rule: str) -> None:
    g = torch.Generator().manual_seed(1)
    q = torch.softmax(torch.randn(3, 7, VOCAB, generator=g), -1)
    parents = TREE if rule in {"tree", "coupled"} else list(range(-1, 6))
    tokens, draw = torch.randint(0, VOCAB, (3, 7), generator=g), torch.ones(3, 7, dtype=torch.int64)
    host = (tokens, torch.tensor([parents] * 3), torch.tensor([7, 4, 7]), draw)
    cold = SamplingParams()
    rows = [Sequence(i, [1, 2], 2, p, seed=i) for i, p in enumerate([SamplingParams(temperature=0.8), cold, cold])]
    logits = torch.randn(3, 7, VOCAB, generator=g).to(DEVICE)
    draft = Draft(*(moved(t, DEVICE) for t in host), moved(q, DEVICE), parents != TREE)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        with torch.inference_mode(), Faults() as faults:
            rngs = RequestRngs(rows, shared_noise=RULES[rule].shared_noise)
            work = Round(rows, rngs, draft, scores=Scores(logits))
            work.laws = laws(rows, logits, draft)
            work.verdict = RULES[rule](draft, work.laws, rngs)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert len(to_host(work, faults)) == 3


@pytest.mark.skipif(DEVICE == "cpu", reason="waiting is a thing of accelerators")
@pytest.mark.parametrize("params", [{}, {"temperature": 0.8, "top_p": 0.9}])
def test_a_round_waits_once(folder: Path, params: dict[str, float]) -> None:
    import warnings

    engine = Engine(NativeTarget(decoder(folder)), Lookup(vocab=VOCAB, device=DEVICE), RULES["auto"], FixedBudget(4))
    engine.add(Sequence(0, [5, 6, 7] * 4, 12, SamplingParams(seed=1, max_tokens=40, **params)))
    for _ in range(3):
        engine.step()
    while not engine.idle:
        recorded = _recorded(engine)
        torch.cuda.set_sync_debug_mode("warn")
        try:
            with warnings.catch_warnings(record=True) as seen:
                warnings.simplefilter("always")
                engine.step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        if _recorded(engine) == recorded:  # a new size is recorded, which waits
            waits = [str(w.message) for w in seen if "synchroniz" in str(w.message)]
            assert len(waits) <= 1, waits


def _recorded(engine: Engine) -> int:
    runner = engine.target.decoder.runner  # type: ignore[attr-defined]
    assert isinstance(runner, BatchRunner)
    return 0 if runner.recordings is None else runner.recordings.recorded
