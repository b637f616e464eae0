"""Case 41: target and draft model in different dtypes, or a draft model whose numbers overflow."""

import itertools
import json
import warnings

import pytest
import torch
from safetensors.torch import save_file

from slipstream.control.budget import FixedBudget
from slipstream.drafters.draft_model import DraftModel
from slipstream.drafters.none import NoDraft
from slipstream.engine.engine import Engine
from slipstream.nets.decoder import load_decoder
from slipstream.sampling import RequestRngs
from slipstream.targets.native import NativeTarget
from slipstream.testing.toy_decoder import ToyDecoder, hashed_logits
from slipstream.types import SamplingParams, Sequence
from slipstream.verify import RULES

VOCAB, HIDDEN, EOS = 64, 32, 63
CONFIG = {
    "model_type": "llama",
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}
SHAPES = {
    "input_layernorm": (HIDDEN,),
    "post_attention_layernorm": (HIDDEN,),
    "self_attn.q_proj": (HIDDEN, HIDDEN),
    "self_attn.k_proj": (HIDDEN // 2, HIDDEN),
    "self_attn.v_proj": (HIDDEN // 2, HIDDEN),
    "self_attn.o_proj": (HIDDEN, HIDDEN),
    "mlp.gate_proj": (64, HIDDEN),
    "mlp.up_proj": (64, HIDDEN),
    "mlp.down_proj": (HIDDEN, 64),
}


SEED = 44  # its text varies, and every token leads by 0.4: far above what bfloat16 may move


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("tiny")
    rng = torch.Generator().manual_seed(SEED)
    weights = {"model.embed_tokens.weight": torch.randn(VOCAB, HIDDEN, generator=rng)}
    weights["lm_head.weight"] = torch.randn(VOCAB, HIDDEN, generator=rng)
    weights["model.norm.weight"] = torch.ones(HIDDEN)
    for layer, (name, shape) in itertools.product(range(2), SHAPES.items()):
        drawn = torch.ones(shape) if len(shape) == 1 else 0.2 * torch.randn(shape, generator=rng)
        weights[f"model.layers.{layer}.{name}.weight"] = drawn
    save_file(weights, path / "model.safetensors")
    (path / "config.json").write_text(json.dumps(CONFIG))
    return path


def run(folder, drafter, target_dtype, *, temperature=0.0):
    decoder = load_decoder(folder, target_dtype, max_len=96)
    engine = Engine(NativeTarget(decoder), drafter, RULES["chain"], FixedBudget(4))
    params = SamplingParams(temperature=temperature, max_tokens=30, min_tokens=8, seed=3)
    row = Sequence(0, [5, 9, 11], 3, params, eos_ids=(EOS, 60))
    engine.add(row)
    while not engine.idle:
        engine.step()
    return row


def copy_of(folder, dtype):
    return DraftModel(load_decoder(folder, dtype, max_len=96), vocab=VOCAB, max_rows=1)


@pytest.mark.parametrize("drafter_dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("target_dtype", ["float32", "bfloat16"])
def test_case_41_every_pair_of_dtypes_gives_the_plain_text(folder, target_dtype, drafter_dtype):
    plain = run(folder, NoDraft(), target_dtype)
    drafted = run(folder, copy_of(folder, drafter_dtype), target_dtype)
    assert len(set(plain.tokens)) > 10
    assert drafted.tokens == plain.tokens
    rate = drafted.stats.num_accepted_tokens / drafted.stats.num_draft_tokens
    assert rate == 1.0 if target_dtype == drafter_dtype == "float32" else rate > 0.6


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_case_41_q_of_a_narrow_model_is_a_law_in_float32(folder, dtype):
    row = Sequence(0, [5, 9, 11], 3, SamplingParams(temperature=0.7), seed=1)
    draft = copy_of(folder, dtype).propose([row], [4], RequestRngs([row]))
    assert draft.q.dtype == torch.float32
    assert torch.allclose(draft.q[0, :4].sum(-1), torch.ones(4), atol=1e-6), "softmax in half precision would be off"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e5])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_case_41_a_drafter_that_overflows_is_dropped_counted_and_told_once(folder, value, temperature):
    right = hashed_logits(VOCAB, seed=4)

    def logits(prefix):
        return (right(prefix) + (value if len(prefix) % 3 == 0 else 0.0)).half()  # 1e5 is inf in float16

    drafter = DraftModel(ToyDecoder(logits, vocab=VOCAB), vocab=VOCAB, max_rows=1)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        row = run(folder, drafter, "float32", temperature=temperature)
    assert len(told) == 1
    assert "not finite" in str(told[0].message)
    assert drafter.dropped > 5
    assert row.stats.num_draft_tokens > 5, "what was finite is still drafted"
    assert row.finish_reason == "length"
    if temperature == 0.0:
        assert row.tokens == run(folder, NoDraft(), "float32").tokens


def test_case_41_large_features_in_a_range_that_holds_them_are_no_error():
    drafter = DraftModel(ToyDecoder(lambda prefix: 1e5 * torch.eye(VOCAB)[7], vocab=VOCAB), vocab=VOCAB, max_rows=1)
    row = Sequence(0, [1], 1, SamplingParams(temperature=1.0), seed=1)
    draft = drafter.propose([row], [3], RequestRngs([row]))
    assert draft.tokens[0].tolist() == [1, 7, 7, 7]
    assert drafter.dropped == 0


@pytest.mark.gpu
@pytest.mark.parametrize("places", [("cpu", "cuda"), ("cuda", "cpu")])
def test_case_41_drafter_and_target_on_different_devices(folder, places):
    drafter_place, target_place = places
    decoder = load_decoder(folder, "float32", drafter_place, max_len=96)
    for temperature in (0.0, 1.0):
        drafter = DraftModel(decoder, vocab=VOCAB, max_rows=1, device=target_place)
        row = Sequence(0, [5, 9, 11], 3, SamplingParams(temperature=temperature), seed=1)
        draft = drafter.propose([row], [4], RequestRngs([row]))
        drafter.forget(row)
        parts = (draft.tokens, draft.parents, draft.length, draft.draw) + (() if draft.q is None else (draft.q,))
        assert {part.device.type for part in parts} == {target_place}
