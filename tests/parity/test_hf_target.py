"""The transformers target forgets rejected tokens: after any history its logits are those of a fresh pass.

Tiny random models of every kind of cache: full attention, windows shorter than the text, mixed ones, recurrent states,
convolutions, a state that is a plain list. Acceptance is forced, so that nothing hides behind a lucky drafter.
"""

from __future__ import annotations

import gc
import random
import warnings
from contextlib import contextmanager
from functools import cache

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from slipstream.targets import hf_cache
from slipstream.targets.hf import HFTarget
from slipstream.types import Draft, RequestError, WorkError

V, W, N = 64, 8, 5  # vocabulary, sliding window, nodes of a usual draft
BASE = {
    "vocab_size": V,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
DELTA = {
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
EXPERTS = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
}
MIXED = {"sliding_window": W, "layer_types": ["sliding_attention", "full_attention"], "query_pre_attn_scalar": 8}
FAMILIES = {
    "llama": {},
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256},
    "opt": {"ffn_dim": 64, "word_embed_proj_dim": 32},
    "bloom": {"n_layer": 2, "n_head": 4},
    "mistral": {"sliding_window": W},
    "gemma2": MIXED,
    "gemma3_text": MIXED,
    "mamba": {"state_size": 4},
    "mamba2": {"state_size": 8, "num_heads": 8, "head_dim": 8, "n_groups": 1, "chunk_size": 8},
    "lfm2": {"layer_types": ["conv", "full_attention"], "block_multiple_of": 8},
    "qwen3_next": DELTA | EXPERTS,
    "falcon_h1": {
        "mamba_d_ssm": 32,
        "mamba_n_heads": 4,
        "mamba_d_head": 8,
        "mamba_d_state": 8,
        "mamba_chunk_size": 8,
        "mamba_n_groups": 1,
    },
    "rwkv": {"attention_hidden_size": 32, "context_length": 256},
}
CROP = {"llama", "gpt2", "opt", "bloom", "mistral", "gemma2", "gemma3_text"}
RECURRENT = set(FAMILIES) - CROP
STEPWISE = {"mamba"}  # its multi-token scan starts from zero: found by the check, not from a list
families = pytest.mark.parametrize("family", FAMILIES)


@cache
def tiny(family: str):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **(BASE | FAMILIES[family]))).float().eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.ndim > 1:
                p.mul_(3)  # untrained models barely look at their past; these do
            elif "time_" in name or name.endswith("bias"):
                p.add_(torch.randn_like(p) * 0.1)
    return model


@contextmanager
def expected_warnings(family: str):
    with warnings.catch_warnings():
        if family in STEPWISE:
            warnings.filterwarnings("ignore", message=".*one at a time", category=UserWarning)
        yield


def target_of(family: str, **options) -> HFTarget:
    with expected_warnings(family):
        return HFTarget(tiny(family), **options)


def fresh(family: str, tokens: list[int]) -> torch.Tensor:
    with torch.no_grad():
        return tiny(family)(input_ids=torch.tensor([tokens]), use_cache=False).logits[0]  # [T, V]


def chains(*rows: list[int]) -> Draft:
    width = max(map(len, rows))
    tokens = torch.tensor([[*row, *[0] * (width - len(row))] for row in rows])
    parents = torch.arange(-1, width - 1).expand(len(rows), -1)
    return Draft(tokens, parents, torch.tensor([len(row) for row in rows]), torch.zeros_like(tokens))


def close(got: torch.Tensor, want: torch.Tensor) -> None:
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


class Text:
    """A sequence driven by hand: what is committed, and its root."""

    def __init__(self, seed: int, length: int = 11) -> None:
        self.random = random.Random(seed)
        self.tokens = self.draw(length)

    def draw(self, count: int) -> list[int]:
        return [self.random.randrange(V) for _ in range(count)]

    def chain(self, nodes: int) -> list[int]:
        return [self.tokens[-1], *self.draw(nodes - 1)]

    def grow(self, chain: list[int], accepted: int) -> list[int]:
        self.tokens += [*chain[1 : accepted + 1], *self.draw(1)]
        return list(range(1, accepted + 1))


def history(seed: int) -> list[tuple[int, int]]:
    """(nodes, accepted) of each round: every accept length in random order, runs of rejections, a draft beyond W."""
    rounds = [(N, a) for a in range(N)] * 2 + [(1, 0), (W + 4, 2), (W + 4, W + 3), (N, 0), (N, N - 2)]
    random.Random(seed).shuffle(rounds)
    return rounds + [(N, N - 2)] * 6  # long enough a debt of replayed tokens to be paid off in between


@families
def test_every_history_gives_the_logits_of_a_fresh_pass(family):
    target = target_of(family)
    assert target.rollback == ("crop" if family in CROP else "replay")
    assert target.stepwise == (family in STEPWISE)
    text = Text(1)
    target.prefill(0, text.tokens[:4])
    target.prefill(0, text.tokens[4:-1])
    for nodes, accepted in history(2):
        assert target.length(0) == len(text.tokens) - 1
        chain = text.chain(nodes)
        got = target.score([0], chains(chain)).logits[0]
        close(got, fresh(family, text.tokens + chain[1:])[-nodes:])
        target.commit([0], [text.grow(chain, accepted)])
    assert len(text.tokens) > 6 * W


@families
def test_more_prompt_may_follow_a_rejection(family):
    target = target_of(family)
    text = Text(7)
    target.prefill(0, text.tokens[:-1])
    for accepted in (1, 2):
        chain = text.chain(N)
        target.score([0], chains(chain))
        target.commit([0], [text.grow(chain, accepted)])
        turn = text.draw(W)
        target.score([0], chains(text.chain(N)))  # never kept
        target.prefill(0, [text.tokens[-1], *turn[:-1]])
        text.tokens += turn
        close(target.score([0], chains(text.tokens[-1:])).logits[0], fresh(family, text.tokens)[-1:])


@families
def test_two_slots_do_not_mix_and_may_trade_places(family):
    target = target_of(family, max_rows=3)
    texts = {0: Text(3, 1), 2: Text(4, 14)}  # the first has an empty prefill
    for slot, text in texts.items():
        target.prefill(slot, text.tokens[:-1])
    for turn, accepted in enumerate([(0, 4), (4, 0), (2, 1), (1, 3), (0, 0)]):
        slots = [0, 2] if turn % 2 else [2, 0]
        lines = [texts[slot].chain(N - slot) for slot in slots]
        scores = target.score(slots, chains(*lines))
        for b, (slot, line) in enumerate(zip(slots, lines, strict=True)):
            close(scores.logits[b, : len(line)], fresh(family, texts[slot].tokens + line[1:])[-len(line) :])
            assert not scores.logits[b, len(line) :].any()
        kept = [min(a, len(line) - 1) for a, line in zip(accepted, lines, strict=True)]
        target.commit(slots, [texts[s].grow(line, a) for s, line, a in zip(slots, lines, kept, strict=True)])


@families
def test_a_failed_forward_and_a_second_score_leave_the_slots_as_they_were(family):
    target = target_of(family, max_rows=2)
    texts = [Text(5), Text(6)]
    for slot, text in enumerate(texts):
        target.prefill(slot, text.tokens[:-1])
    for turn in range(5):
        lines = [text.chain(N) for text in texts]
        if turn == 2:
            for row_that_fails in (0, 1):
                with failing_in_the_last_layer(target, row_that_fails), pytest.raises(ZeroDivisionError):
                    target.score([0, 1], chains(*lines))
                for slot in (0, 1):  # not even the row that went well
                    with pytest.raises(WorkError, match="without a score"):
                        target.commit([slot], [[]])
                with failing_in_the_last_layer(target, 0), pytest.raises(ZeroDivisionError):
                    target.prefill(0, [1, 2])
        target.score([1, 0], chains(*[text.chain(N + 2) for text in texts]))
        logits = target.score([0, 1], chains(*lines)).logits
        for b, text in enumerate(texts):
            close(logits[b], fresh(family, text.tokens + lines[b][1:])[-N:])
            assert target.length(b) == len(text.tokens) - 1
        target.commit([0, 1], [text.grow(line, turn) for text, line in zip(texts, lines, strict=True)])


@contextmanager
def failing_in_the_last_layer(target: HFTarget, good_passes: int):
    left = [good_passes * (N if target.stepwise else 1)]

    def fail(*_):
        left[0] -= 1
        if left[0] < 0:
            raise ZeroDivisionError

    layers = hf_layers(target.model)
    handle = layers[-1].register_forward_hook(fail)
    try:
        yield
    finally:
        handle.remove()


def hf_layers(model):
    from slipstream.targets.hf_taps import find_layers

    return find_layers(model, 2)


@pytest.mark.parametrize("family", ["llama", "mistral", "mamba2", "lfm2", "rwkv"])
def test_a_released_slot_holds_nothing_and_starts_again(family):
    target = target_of(family)
    counts = []
    for turn in range(3):
        text = Text(turn, 9 + turn)
        target.prefill(0, text.tokens[:-1])
        chain = text.chain(N)
        close(target.score([0], chains(chain)).logits[0], fresh(family, text.tokens + chain[1:])[-N:])
        if turn % 2:
            target.commit([0], [text.grow(chain, 1)])
        target.release(0)
        assert target.length(0) == 0
        gc.collect()
        counts.append(sum(issubclass(type(o), torch.Tensor) for o in gc.get_objects()))
    assert counts[1:] == counts[:1] * 2


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma3_text", "mamba2", "qwen3_next", "rwkv"])
def test_the_check_at_build_catches_a_rollback_that_does_nothing(family, monkeypatch):
    def keep_everything(self, count):
        self.cache, self.pending = self._open.cache, []
        self.length += count
        self._open = None

    monkeypatch.setattr(hf_cache.RowCache, "keep", keep_everything)
    with pytest.raises(RequestError, match=f"model '{family}', cache .* cannot be rolled back"):
        target_of(family)


@pytest.mark.parametrize("family", ["mamba2", "qwen3_next", "falcon_h1", "rwkv"])
def test_the_check_at_build_catches_a_snapshot_that_is_none(family, monkeypatch):
    monkeypatch.setattr(hf_cache, "fork", lambda cache, shared=(): cache)
    with pytest.raises(RequestError, match="cannot be rolled back"):
        target_of(family)


def test_scoring_does_not_copy_the_keys_of_appending_layers():
    target = target_of("qwen3_next")
    target.prefill(0, list(range(20)))
    cache = target._row(0).cache
    before = cache.layers[1].keys.data_ptr(), cache.layers[0].recurrent_states[0].data_ptr()
    twin = hf_cache.fork(cache)
    assert twin.layers[1].keys.data_ptr() == before[0]
    assert twin.layers[0].recurrent_states[0].data_ptr() != before[1]


def test_replayed_tokens_never_pile_up():
    target = target_of("mamba2")
    text = Text(8)
    target.prefill(0, text.tokens[:-1])
    for _ in range(30):
        chain = text.chain(N)
        target.score([0], chains(chain))
        target.commit([0], [text.grow(chain, 1)])
        assert len(target._row(0).pending) <= hf_cache.REPLAY_LIMIT + N
    close(target.score([0], chains(text.tokens[-1:])).logits[0], fresh("mamba2", text.tokens)[-1:])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("family", ["llama", "gemma3_text", "lfm2"])
def test_half_precision_passes_the_check(family, dtype):
    import copy

    target = HFTarget(copy.deepcopy(tiny(family)), dtype=dtype)
    target.prefill(0, [1, 2, 3])
    assert target.score([0], chains([4, 5])).logits.dtype == getattr(torch, dtype)


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma3_text"])
def test_taps_are_the_residual_stream(family):
    target = target_of(family, taps=(0, 1, 2, -1))
    text = Text(9)
    with torch.no_grad():
        states = tiny(family)(input_ids=torch.tensor([text.tokens]), output_hidden_states=True).hidden_states
    told = target.prefill(0, text.tokens[:-3])
    scored = target.score([0], chains(text.tokens[-3:])).taps
    seen = {tap: torch.cat([told[tap], scored[tap][0]]) for tap in (0, 1, 2, -1)}
    for tap, state in ((0, states[0]), (1, states[1]), (-1, states[2])):
        close(seen[tap], state[0])
    norm = tiny(family).transformer.ln_f if family == "gpt2" else tiny(family).model.norm
    with torch.no_grad():
        close(norm(seen[2]), seen[-1])
    assert not torch.allclose(seen[2], seen[-1])


@pytest.mark.parametrize("family", ["mamba", "rwkv"])
def test_taps_survive_replay_and_single_steps(family):
    target = target_of(family, taps=(1, -1))
    text = Text(10)
    assert target.prefill(0, [])[1].shape == (0, 32)
    target.prefill(0, text.tokens[:-1])
    for accepted in (1, 0, 2):
        chain = text.chain(N)
        taps = target.score([0], chains(chain)).taps
        with torch.no_grad():
            want = tiny(family)(input_ids=torch.tensor([text.tokens + chain[1:]]), output_hidden_states=True)
        for tap, state in ((1, want.hidden_states[0]), (-1, want.hidden_states[-1])):  # these list no embedding
            size = state.abs().max()
            close(taps[tap][0] / size, state[0, -N:] / size)
        target.commit([0], [text.grow(chain, accepted)])


def test_a_saved_model_is_loaded_and_missing_weights_are_refused(tmp_path):
    from safetensors.torch import load_file, save_file

    tiny("llama").save_pretrained(tmp_path)
    target = HFTarget(tmp_path, dtype="float32", device="cpu", vocab=60, max_rows=2, max_len=128)
    assert (target.caps.vocab, target.caps.max_rows, target.caps.max_len, target.caps.tree) == (60, 2, 128, False)
    assert (target.caps.layers, target.caps.hidden) == (2, 32)
    target.prefill(1, [3, 4])
    close(target.score([1], chains([5])).logits[0], fresh("llama", [3, 4, 5])[-1:, :60])
    weights = load_file(tmp_path / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(RequestError, match=r"weights missing.*layers\.1\.mlp\.up_proj"):
        HFTarget(tmp_path)


def test_what_cannot_be_a_target_is_refused_at_build(tmp_path):
    with pytest.raises(RequestError, match="cannot be loaded"):
        HFTarget(tmp_path / "nowhere")
    with pytest.raises(RequestError, match="takes no cache"):
        HFTarget(AutoModelForCausalLM.from_config(AutoConfig.for_model("openai-gpt", n_embd=32, n_layer=2, n_head=4)))
    griffin = {"lru_width": 32, "num_hidden_layers": 3, "attention_window_size": W}
    with pytest.raises(RequestError, match=r"model 'recurrent_gemma'.*returns no cache"):
        HFTarget(AutoModelForCausalLM.from_config(AutoConfig.for_model("recurrent_gemma", **(BASE | griffin))))
    with pytest.warns(UserWarning, match="model 'mamba' loses its state"):
        HFTarget(tiny("mamba"))


@pytest.mark.parametrize(
    "options, message",
    [
        ({"taps": (3,)}, "tap 3: model 'llama' has 2 layers"),
        ({"taps": (-2,)}, "tap -2"),
        ({"max_len": 257}, "max_len 257: model 'llama' has 256 positions"),
        ({"max_rows": 0}, "max_rows 0"),
        ({"vocab": 0}, "vocab 0"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(RequestError, match=message):
        target_of("llama", **options)


def test_wrong_requests_are_refused_and_change_nothing():
    target = target_of("llama", max_rows=2, vocab=60, max_len=20)
    target.prefill(0, [1, 2, 3])
    tree = Draft(
        torch.tensor([[4, 5, 6]]), torch.tensor([[-1, 0, 0]]), torch.tensor([3]), torch.zeros(1, 3), chain=False
    )
    for call, message in [
        (lambda: target.score([0], tree), "scores chains"),
        (lambda: target.score([2], chains([4])), "slot 2: this target has slots 0 to 1"),
        (lambda: target.score([0, 0], chains([4], [4])), "once per draft"),
        (lambda: target.score([0], chains([4, -1])), "token id -1 is outside the vocabulary"),
        (lambda: target.prefill(0, [60]), "token id 60 is outside the vocabulary"),
        (lambda: target.prefill(0, [1] * 18), r"3 \+ 18 tokens do not fit max_len 20"),
    ]:
        with pytest.raises(RequestError, match=message):
            call()
    target.score([0], chains([4, 5, 6]))
    for path in ([2], [1, 2, 3], [0]):
        with pytest.raises(RequestError, match="not the start of a chain"):
            target.commit([0], [path])
    target.commit([0], [[1]])
    close(target.score([0], chains([7])).logits[0], fresh("llama", [1, 2, 3, 4, 5, 7])[-1:, :60])
