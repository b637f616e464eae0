"""What drafters share with a target that scales its embedding and caps its logits; and what it has stored."""

from __future__ import annotations

from types import SimpleNamespace

import native_kit
import pytest
import torch

from slipstream import learned
from slipstream.nets.decoder import load_decoder
from slipstream.nets.draft_config import Tables


@pytest.fixture(scope="module")
def model():
    return native_kit.tiny("gemma3_capped")


def tables(model, kind, folder) -> Tables:
    caps = SimpleNamespace(vocab=native_kit.VOCAB - 2, hidden=48)
    target = SimpleNamespace(caps=caps, kind="gemma3_text", model=model)
    if kind == "native":
        sizes = {"max_rows": 1, "max_len": 8, "max_nodes": 4, "vocab": caps.vocab}
        target.decoder = load_decoder(native_kit.save(model, folder), "float32", "cpu", **sizes)
    return learned.tables_of(SimpleNamespace(kind=kind, target=target, dtype=torch.float32, device="cpu"))


@pytest.mark.parametrize("kind", ["native", "hf"])
@torch.no_grad()
def test_as_the_target_reads_them_and_as_they_are_stored(kind, model, tmp_path):
    found, ids, x = tables(model, kind, tmp_path / "target"), torch.tensor([3, 96, 0]), torch.randn(4, 48)
    embed, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight[: native_kit.VOCAB - 2]
    assert found.bare_embed is not None
    assert found.bare_head is not None
    assert torch.equal(found.bare_embed(ids), embed[ids])
    torch.testing.assert_close(found.embed(ids), embed[ids] * 48**0.5)
    torch.testing.assert_close(found.bare_head(x), x @ head.T, rtol=0, atol=1e-5)
    torch.testing.assert_close(found.head(x), 5 * (x @ head.T / 5).tanh(), rtol=0, atol=1e-5)
    assert (found.vocab, found.rows, found.hidden) == (native_kit.VOCAB - 2, native_kit.VOCAB, 48)
