"""Our decoder gives the reference's logits and hidden states, for every family."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from native_kit import MODELS, reference, save, tiny, tokens

from slipstream.nets.decoder import load_decoder

TOLERANCE = 1e-4


@pytest.mark.parametrize("name", MODELS)
def test_prompt_then_single_and_many_nodes_match_the_reference(name: str, tmp_path: Path) -> None:
    model = tiny(name)
    decoder = load_decoder(save(model, tmp_path), "float32", "cpu", max_len=64)
    ids = tokens(48)
    logits, hidden = reference(model, ids)
    assert logits.std() > 0.3  # weights large enough for the comparison to mean something

    taps = decoder.extend(0, ids[:20], (0, 1, 3, -1))
    for tap in (0, 1, 3, -1):
        assert (taps[tap] - hidden[tap][:20]).abs().max() < TOLERANCE, f"tap {tap}"
    for start, width in ((20, 1), (21, 1), (22, 11), (33, 2), (35, 13)):
        draft = torch.tensor([ids[start : start + width]])
        scored, felt = decoder.nodes([0], draft, None, (2, -1))
        assert (scored[0] - logits[start : start + width]).abs().max() < TOLERANCE, f"{width} nodes at {start}"
        assert (felt[2][0] - hidden[2][start : start + width]).abs().max() < TOLERANCE
        assert (felt[-1][0] - hidden[-1][start : start + width]).abs().max() < TOLERANCE
        decoder.keep([0], [list(range(1, width))])
    assert decoder.length(0) == 48


@pytest.mark.parametrize("name", ["mistral_sliding", "gemma3", "llama"])
def test_prompt_of_several_chunks_matches_the_reference(name: str, tmp_path: Path) -> None:
    model = tiny(name, max_position_embeddings=2048, num_hidden_layers=2)
    decoder = load_decoder(save(model, tmp_path), "float32", "cpu")
    ids = tokens(1300)
    logits, hidden = reference(model, ids)
    taps = decoder.extend(0, ids[:-3], (1, -1))
    assert (taps[1] - hidden[1][:-3]).abs().max() < TOLERANCE
    assert (taps[-1] - hidden[-1][:-3]).abs().max() < TOLERANCE
    scored, _ = decoder.nodes([0], torch.tensor([ids[-3:]]))
    assert (scored[0] - logits[-3:]).abs().max() < TOLERANCE


def test_tap_before_the_final_norm_is_what_the_norm_is_applied_to(tmp_path: Path) -> None:
    model = tiny("qwen3")
    decoder = load_decoder(save(model, tmp_path), "float32", "cpu", max_len=64)
    taps = decoder.extend(0, tokens(9), (4, -1))
    with torch.no_grad():
        assert (model.model.norm(taps[4]) - taps[-1]).abs().max() < TOLERANCE
    assert (taps[4] - taps[-1]).abs().max() > 0.1


def test_sharded_checkpoint_equals_the_single_file(tmp_path: Path) -> None:
    model = tiny("qwen2")
    one = load_decoder(save(model, tmp_path / "one"), "float32", "cpu", max_len=64)
    folder = save(model, tmp_path / "many", max_shard_size="60KB")
    assert len(list(folder.glob("*.safetensors"))) > 2
    many = load_decoder(folder, "float32", "cpu", max_len=64)
    draft = torch.tensor([tokens(6)])
    assert torch.equal(one.nodes([0], draft)[0], many.nodes([0], draft)[0])


def test_cut_vocabulary_drops_columns_and_changes_no_other(tmp_path: Path) -> None:
    folder = save(tiny("llama3_rope"), tmp_path)
    draft = torch.tensor([tokens(6)])
    full, _ = load_decoder(folder, "float32", "cpu", max_len=64).nodes([0], draft)
    cut, _ = load_decoder(folder, "float32", "cpu", max_len=64, vocab=90).nodes([0], draft)
    assert cut.shape == (1, 6, 90)
    torch.testing.assert_close(cut, full[..., :90])


@pytest.mark.parametrize("name", ["llama", "gemma3_capped", "qwen3"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_as_close_to_float32_as_the_reference_is(
    name: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    model = tiny(name)
    exact, _ = reference(model, tokens(24))
    decoder = load_decoder(save(model, tmp_path), dtype, "cpu", max_len=64)
    theirs, _ = reference(model.to(dtype), tokens(24))
    ours, _ = decoder.nodes([0], torch.tensor([tokens(24)]))
    assert ours.dtype == dtype
    error, allowed = (ours[0].float() - exact).norm(), (theirs.float() - exact).norm()
    assert 0 < error < 1.3 * allowed


def test_dtype_auto_is_the_one_of_the_config(tmp_path: Path) -> None:
    folder = save(tiny("llama").to(torch.bfloat16), tmp_path)
    assert load_decoder(folder, "auto", "cpu", max_len=8).nodes([0], torch.tensor([[1]]))[0].dtype == torch.bfloat16


@pytest.mark.model
def test_default_model_matches_the_reference() -> None:
    home = os.environ.get("SLIPSTREAM_HOME", os.path.expanduser("~/.cache/slipstream"))
    folder = Path(home) / "models" / "smollm2-135m-instruct"
    from tokenizers import Tokenizer
    from transformers import AutoModelForCausalLM

    text = (Path(__file__).parents[2] / "LICENSE").read_text()
    ids = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text).ids[:60]
    logits, hidden = reference(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval(), ids)
    decoder = load_decoder(folder, "float32", "cpu", max_len=128)
    taps = decoder.extend(0, ids[:40], (0, 15, -1))
    assert all((taps[tap] - hidden[tap][:40]).abs().max() < 1e-3 for tap in (0, 15, -1))
    for i in range(40, 44):
        scored, _ = decoder.nodes([0], torch.tensor([[ids[i]]]))
        assert (scored[0, 0] - logits[i]).abs().max() < TOLERANCE
        decoder.keep([0], [[]])
    scored, _ = decoder.nodes([0], torch.tensor([ids[44:]]))
    assert (scored[0] - logits[44:]).abs().max() < TOLERANCE
