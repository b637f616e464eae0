"""Perplexity through a cache in chunks is that of one whole pass; the table that is written is the one that is read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from slipstream import kernels, models
from slipstream.config import QUANTIZE
from slipstream.measure import perplexity
from slipstream.models.catalogue import CATALOGUE
from slipstream.nets.decoder import load_decoder
from tiny_model import make_model


def test_chunks_of_pieces_give_the_loss_of_whole_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(perplexity, "CHUNK", 3)
    decoder = load_decoder(make_model(tmp_path), torch.float32, "cpu", max_len=16)
    pieces = [[1, 5, 2, 7, 3, 3, 4], [9, 8], [4, 4, 4, 4]]
    total, best = 0.0, []
    for piece in pieces:
        rows = decoder.nodes([0], torch.tensor([piece]))[0][0, :-1]
        total += float(torch.nn.functional.cross_entropy(rows, torch.tensor(piece[1:]), reduction="sum"))
        best += rows.argmax(-1).tolist()
    heard: list[int] = []
    found = perplexity.score(decoder, pieces, heard.append)
    assert sum(heard) == 10
    assert found.loss == pytest.approx(total / 10, abs=1e-5)
    assert found.best.tolist() == best


def test_the_shipped_table_knows_the_catalogue() -> None:
    table = json.loads((Path(perplexity.__file__).parents[1] / "models" / "perplexity.json").read_text())
    for name in CATALOGUE:
        assert 1 < table[name]["none"] < table[name]["int4"] * 1.05
        assert table[name]["positions"] >= 500


def test_formats_are_those_of_the_option() -> None:
    assert set(QUANTIZE[1:]) < set(perplexity.FORMATS)


def test_the_table_says_what_a_format_costs() -> None:
    first = perplexity.Scored(1.0, torch.tensor([1, 2, 3, 4]))
    second = perplexity.Scored(1.1, torch.tensor([1, 2, 3, 5]))
    line = perplexity.show({"none": first, "int4": second}).splitlines()[-1]
    assert line.split() == ["int4", "3.004", "+10.52", "%", "75.0", "%"]


@pytest.mark.skipif(not kernels.available(), reason=f"no kernels: {kernels.reason()}")
def test_shipped_measures_again_all_that_the_table_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    folder, table = str(make_model(tmp_path)), tmp_path / "table.json"
    table.write_text(json.dumps({folder: {"positions": 5, "none": 1.0, "torch-float32": 2.0}}))
    monkeypatch.setattr(perplexity, "TABLE", table)
    monkeypatch.setattr(models, "pull", lambda name: pulled.append(name))
    monkeypatch.setattr(perplexity, "text_pieces", lambda model, positions: [list(range(1, positions + 2))])
    pulled: list[str] = []
    assert perplexity.main(["--shipped", "--write"]) == 0
    found = json.loads(table.read_text())[folder]
    assert pulled == [folder]
    assert found["positions"] == 5
    assert found["none"] == pytest.approx(found["torch-float32"], rel=0.1)
    assert found["none"] != 1.0
    assert "5/5" in capsys.readouterr().err, "progress is shown"
