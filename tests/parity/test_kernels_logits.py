"""The decoder on the kernels computes what the torch decoder computes, for every family, level and weight format."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from kernels_kit import exact, fast, needs_kernels, rounded
from native_kit import MODELS, tokens

from slipstream import kernels
from slipstream.nets.decoder import load_decoder

pytestmark = needs_kernels
TAPS = (0, 1, 3, 4, -1)


@pytest.fixture(autouse=True)
def _same_level_after() -> Iterator[None]:
    before = kernels.level()
    yield
    kernels.set_level(before)


@pytest.mark.parametrize("name", MODELS)
def test_every_family_is_as_close_to_float32_as_the_torch_decoder_in_bfloat16(name: str, tmp_path: Path) -> None:
    folder, ids = rounded(name, tmp_path), torch.tensor([tokens(24)])
    logits, states = exact(folder).nodes([0], ids, None, TAPS)
    theirs, felt = load_decoder(folder, torch.bfloat16, "cpu", max_len=96).nodes([0], ids, None, TAPS)
    ours, seen = fast(folder, max_nodes=24).nodes([0], ids, None, TAPS)
    assert ours.dtype == torch.float32
    allowed = (theirs.float() - logits).norm()
    assert 0 < (ours - logits).norm() < 1.1 * allowed
    assert torch.equal(seen[0], states[0]) or "gemma" in name  # the embedding is the table's
    for tap in TAPS:
        assert (seen[tap] - states[tap]).norm() <= 1.1 * (felt[tap].float() - states[tap]).norm() + 1e-6, f"tap {tap}"


@pytest.mark.parametrize("name", ["llama", "gemma3_capped", "qwen3_bias_sliding"])
def test_every_level_computes_the_same_up_to_rounding(name: str, tmp_path: Path) -> None:
    folder, ids = rounded(name, tmp_path), torch.tensor([tokens(16)])
    logits, _ = exact(folder).nodes([0], ids)
    theirs, _ = load_decoder(folder, torch.bfloat16, "cpu", max_len=96).nodes([0], ids)
    for level in kernels.levels():
        kernels.set_level(level)
        ours, _ = fast(folder).nodes([0], ids)
        assert (ours - logits).norm() < 1.1 * (theirs.float() - logits).norm(), level


@pytest.mark.parametrize(("quantize", "most"), [("int8", 0.04), ("w8a8", 0.06), ("int4", 0.4)])
def test_rounded_weights_stay_close(quantize: str, most: float, tmp_path: Path) -> None:
    """`most` is the error's size relative to the logits', on random weights, which round worst."""
    folder = rounded("qwen2", tmp_path)
    ids = torch.tensor([tokens(16)])
    logits, _ = exact(folder).nodes([0], ids)
    ours, _ = fast(folder, quantize).nodes([0], ids)
    assert 0 < (ours - logits).norm() / logits.norm() < most


def test_drafters_that_share_the_tables_get_the_decoders_own(tmp_path: Path) -> None:
    folder = rounded("gemma3_capped", tmp_path)
    decoder, plain = fast(folder), exact(folder)
    ids = tokens(9)
    scored, felt = decoder.nodes([0], torch.tensor([ids]), None, (0, -1))
    assert torch.equal(decoder.net.embed(torch.tensor(ids)), felt[0][0])
    assert torch.equal(decoder.net.logits(felt[-1][0]), scored[0])
    torch.testing.assert_close(decoder.net.embed(torch.tensor(ids)), plain.net.embed(torch.tensor(ids)))
    assert decoder.net.config.vocab == plain.net.config.vocab


def test_cut_vocabulary_drops_columns_and_changes_no_other(tmp_path: Path) -> None:
    folder, ids = rounded("llama3_rope", tmp_path), torch.tensor([tokens(6)])
    full, _ = fast(folder).nodes([0], ids)
    cut, _ = fast(folder, vocab=90).nodes([0], ids)
    assert cut.shape == (1, 6, 90)
    assert torch.equal(cut, full[..., :90])


def test_positions_far_out_and_many_chunks(tmp_path: Path) -> None:
    folder = rounded("mistral_sliding", tmp_path, max_position_embeddings=4096, num_hidden_layers=2)
    ids = tokens(1500)
    plain, ours = exact(folder, max_len=2048), fast(folder, max_len=2048)
    half = load_decoder(folder, torch.bfloat16, "cpu", max_len=2048)
    for decoder in (plain, ours, half):
        decoder.extend(0, ids[:-3])
    last = torch.tensor([ids[-3:]])
    logits = plain.nodes([0], last)[0]
    assert (ours.nodes([0], last)[0] - logits).norm() < 1.1 * (half.nodes([0], last)[0].float() - logits).norm()


@pytest.mark.model
@pytest.mark.parametrize("quantize", ["none", "int4", "int8"])
def test_default_model_agrees_with_float32(quantize: str) -> None:
    import os

    from tokenizers import Tokenizer

    home = os.environ.get("SLIPSTREAM_HOME", os.path.expanduser("~/.cache/slipstream"))
    folder = Path(home) / "models" / "smollm2-135m-instruct"
    text = (Path(__file__).parents[2] / "LICENSE").read_text()
    ids = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text).ids[:60]
    logits, _ = exact(folder).nodes([0], torch.tensor([ids]))
    ours, _ = fast(folder, quantize, max_nodes=64).nodes([0], torch.tensor([ids]))
    agree = (ours.argmax(-1) == logits.argmax(-1)).float().mean()
    assert agree > 0.9, f"{agree:.2f} of the argmaxes agree"
