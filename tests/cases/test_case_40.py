"""Case 40: a feature drafter fed with the wrong layers of its target. Text stays right, only the speed is gone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from layout_files import REMOVE, Sizes, write
from slipstream.checkpoints.drafters import TargetFacts, read_drafter
from slipstream.types import RequestError, WorkError

FACTS = TargetFacts("target", hidden=32, layers=2, vocab=40, real_vocab=40, rope_theta=10000.0)
KEYS = {
    "zlab/dflash": ("dflash_config.target_layer_ids", 1),
    "deepspec/dspark": ("target_layer_ids", 1),
    "transformers/dflash": ("target_layer_ids", 1),
    "specforge/eagle3": ("eagle_config.eagle_aux_hidden_state_layer_ids", 1),
    "speculators/eagle3": ("eagle_aux_hidden_state_layer_ids", 0),
    "speculators/dflash": ("aux_hidden_state_layer_ids", 0),
}
LAYOUTS = list(KEYS)


def folder(layout: str, at: Path, ids: Any) -> Path:
    """A drafter trained on two states of a target of two layers, its config changed to name `ids`."""
    return write(layout, at, sizes=Sizes(taps=(0, 1), target_layers=2), config={KEYS[layout][0]: ids})


@pytest.mark.parametrize("layout", LAYOUTS)
def test_case_40_the_ids_of_the_file_are_the_taps(layout: str, tmp_path: Path) -> None:
    shift = KEYS[layout][1]
    allowed = [0, 1] if shift == 0 else [0]
    if len(allowed) == 2:
        assert read_drafter(folder(layout, tmp_path, allowed), FACTS).config.features.taps == (0, 1)
    given = read_drafter(folder(layout, tmp_path / "given", REMOVE), FACTS, taps=(0, 1))
    assert given.config.features.taps == (0, 1)


MISSING = {
    "zlab/dflash": ([1, 9], "dflash_config.target_layer_ids is missing: [1, 9] by z-lab's rule"),
    "specforge/eagle3": ([2, 6, 9], "is missing: taps [2, 6, 9] are a guess"),
    "speculators/eagle3": ([2, 6, 9], "eagle_aux_hidden_state_layer_ids is missing: taps [2, 6, 9] are a guess"),
    "speculators/dflash": ([2, 6, 9], "aux_hidden_state_layer_ids is missing: taps [2, 6, 9] are a guess"),
}
TWELVE = TargetFacts("target", hidden=32, layers=12, vocab=40, real_vocab=40, rope_theta=10000.0)


@pytest.mark.parametrize("layout", list(MISSING))
def test_case_40_missing_ids_are_a_guess_that_is_named(layout: str, tmp_path: Path) -> None:
    ids, said = MISSING[layout]
    sizes = Sizes(target_layers=12, taps=tuple(ids))
    found = read_drafter(write(layout, tmp_path, sizes=sizes, config={KEYS[layout][0]: REMOVE}), TWELVE)
    shift = KEYS[layout][1] if layout == "zlab/dflash" else 0  # z-lab's rule speaks of outputs
    assert found.config.features.taps == tuple(i + shift for i in ids)
    assert any(said in note for note in found.notes)


def test_case_40_missing_ids_without_a_default_are_an_error(tmp_path: Path) -> None:
    bare = write("deepspec/dspark", tmp_path / "1", config={"target_layer_ids": REMOVE})
    with pytest.raises(RequestError, match="target_layer_ids is missing; no default is known"):
        read_drafter(bare, TargetFacts("target", 32, 8, 40, 40, 10000.0))
    bare = write("transformers/dflash", tmp_path / "2", config={"target_layer_ids": REMOVE})
    with pytest.raises(RequestError, match="target_layer_ids has 49; the target's layers go from 0 to 11"):
        read_drafter(bare, TWELVE)  # the class's own default is for a target of 50 layers and more


@pytest.mark.parametrize("layout", LAYOUTS)
def test_case_40_an_id_that_does_not_exist_names_the_targets_layers(layout: str, tmp_path: Path) -> None:
    key, shift = KEYS[layout]
    with pytest.raises(RequestError) as found:
        read_drafter(folder(layout, tmp_path, [0, 5]), FACTS)
    assert f"{key} has 5; the target's layers go from" in str(found.value)
    assert str(found.value).endswith(f"to {2 - shift}")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_case_40_one_and_two_is_the_last_layer_and_needs_a_word(layout: str, tmp_path: Path) -> None:
    shift = KEYS[layout][1]
    ids = [1 - shift, 2 - shift]
    wrong = folder(layout, tmp_path, ids)
    with pytest.raises(RequestError, match=r"last layer.*final norm"):
        read_drafter(wrong, FACTS)
    assert read_drafter(wrong, FACTS, final_layer=True).config.features.taps == (1, 2)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_case_40_one_id_too_few_names_the_width(layout: str, tmp_path: Path) -> None:
    with pytest.raises(WorkError) as found:
        read_drafter(folder(layout, tmp_path, [0]), FACTS)
    own = "encoder.fc.weight" if layout.startswith("transformers") else "fc.weight"
    assert f"tensor {own} is [32, 64]: it reads 2 layers of width 32, not the 1" in str(found.value)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_case_40_an_empty_list_is_not_a_missing_one(layout: str, tmp_path: Path) -> None:
    with pytest.raises(RequestError) as found:
        read_drafter(folder(layout, tmp_path, []), FACTS)
    assert f"{KEYS[layout][0]} is []" in str(found.value)


def test_case_40_a_target_of_another_depth_is_refused(tmp_path: Path) -> None:
    wrong = write("zlab/dflash", tmp_path, sizes=Sizes(target_layers=8))
    with pytest.raises(RequestError, match=r"made for a target of 8 layers \(num_target_layers\).*has 9"):
        read_drafter(wrong, TargetFacts("target", 32, 9, 40, 40, 10000.0))
