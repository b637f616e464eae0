"""The record beside a number: what was run, on what, with which weights."""

from __future__ import annotations

import json

import pytest

from slipstream.measure.record import model_hash, parameters, record
from tiny_model import make_model


@pytest.fixture
def folder(tmp_path):
    return make_model(tmp_path / "m")


def test_record_is_json_and_complete(folder):
    found = record(model=folder, drafter=None, prompts=["a"], device="cpu")
    assert json.loads(json.dumps(found)) == found
    wanted = "argv revision versions cpu cpus gpu model_hash drafter_hash prompts_hash time"
    assert list(found) == wanted.split()
    assert {"slipstream", "python", "torch"} <= set(found["versions"])
    assert found["prompts_hash"] != record(model=folder, drafter=folder, prompts=["b"], device="cpu")["prompts_hash"]


def test_model_hash_sees_config_and_tensor_names(folder, tmp_path):
    first = model_hash(folder)
    assert model_hash(make_model(tmp_path / "same")) == first
    config = folder / "config.json"
    config.write_text(config.read_text().replace("10000.0", "20000.0"))
    assert model_hash(folder) != first


def test_parameters_are_counted_from_the_headers(folder):
    vocab, h = 300, 32
    layer = 2 * h * h + 2 * 16 * h + 3 * h * 64 + 2 * h
    assert parameters(folder) == 2 * vocab * h + 2 * layer + h
