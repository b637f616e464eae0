"""The embedding and the head on the kernels: one table where the model has one, every id's row, in every format."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from slipstream import kernels
from slipstream.kernels.linear import unpack
from slipstream.kernels.load import FORMATS, Kinds, load_kernel_decoder
from slipstream.kernels.rows import FolderSource
from tiny_model import make_model

pytestmark = pytest.mark.skipif(not kernels.available(), reason=f"no kernels: {kernels.reason()}")

KEPT = 37  # real ids; the model has more rows


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = make_model(tmp_path_factory.mktemp("tables"), layers=2)
    config = json.loads((made / "config.json").read_text())
    (made / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": request.param}))
    return made


def load(folder: Path, quantize: str, coarse: bool = False):
    kinds = Kinds.of(quantize, coarse=coarse)
    return load_kernel_decoder(FolderSource(folder), kinds, "bfloat16", vocab=KEPT, max_len=32)


@pytest.mark.parametrize("coarse", [False, True])
@pytest.mark.parametrize("quantize", FORMATS)
def test_every_id_enters_the_first_layer_as_its_packed_row(folder, quantize, coarse):
    decoder = load(folder, quantize, coarse=coarse)
    net = decoder.net
    rows = torch.cat([unpack(part) for part in net.weights.embed.parts])
    assert rows.shape[0] == net.config.vocab > KEPT
    ids = torch.tensor([0, KEPT - 1, KEPT, net.config.vocab - 1, 5, 5])
    assert torch.equal(net.bare_embed(ids), rows[ids].to(net.dtype))
    _, taps = decoder.nodes([0], ids[None], taps=(0,))
    assert torch.equal(taps[0].reshape(len(ids), -1), net.embed(ids))
    stored = FolderSource(folder).values("model.embed_tokens.weight", rows.shape)
    stored = stored.bfloat16().float() if quantize == "none" else stored
    step = {"none": 0.0}.get(quantize, float(stored.abs().max()) / 127)
    assert (rows - stored).abs().max() <= step, "an embedding is never held in four bits"


@pytest.mark.parametrize("quantize", FORMATS)
def test_a_tied_table_is_held_once(folder, quantize):
    weights = load(folder, quantize).net.weights
    shared = weights.embed.parts[0] is weights.head[0].matrix
    assert shared == FolderSource(folder).config.tied
    assert weights.nbytes == sum(matrix.nbytes for matrix in {id(m): m for m in weights.matrices}.values())


def test_a_coarse_head_is_as_the_layers_are(folder):
    fine, coarse = (load(folder, "int4", coarse=flag).net.weights for flag in (False, True))
    assert str(fine.head[0].matrix.kind).endswith("w8a8")
    assert str(coarse.head[0].matrix.kind).endswith("q4a8")
