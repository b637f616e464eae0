"""The doctor on drafters that are always right when read as trained: it finds what was broken, and only that."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from draft_zoo import shapes, tiny
from oracles import H, Kit, body, kit, with_tables
from slipstream.checkpoints.config_out import About, config_out
from slipstream.measure.doctor import readings, statistics
from slipstream.measure.doctor.examine import Diagnosis, examine
from slipstream.measure.doctor.readings import Facts, changes
from slipstream.measure.doctor.report import as_dict, lines_of
from slipstream.nets.draft_config import DraftCheckpoint, Vocab
from slipstream.nets.families import Rope
from slipstream.types import RequestError

Break = Callable[[DraftCheckpoint], DraftCheckpoint]


@pytest.fixture(scope="session")
def made() -> Kit:
    return kit()


def part(name: str, **fields: Any) -> Break:
    """Change fields of a part of the record."""

    def change(found: DraftCheckpoint) -> DraftCheckpoint:
        config = found.config
        return replace(found, config=replace(config, **{name: replace(getattr(config, name), **fields)}))

    return change


def taps(step: int) -> Break:
    return lambda c: part("features", taps=tuple(t + step for t in c.config.features.taps))(c)


def absolute_map(found: DraftCheckpoint) -> DraftCheckpoint:
    """A file that holds ids where the layout wants offsets."""
    ids = found.tensors["vocab_map"]
    return replace(found, tensors={**found.tensors, "vocab_map": ids + torch.arange(len(ids))})


def one_more_head(found: DraftCheckpoint) -> DraftCheckpoint:
    """A file whose first head is the target's own prediction."""
    heads = found.config.heads
    assert heads is not None
    moved = {f"heads.{int(n.split('.')[1]) + 1}.{n.split('.', 2)[2]}": t for n, t in found.tensors.items()}
    first = {n: t for n, t in found.tensors.items() if n.startswith("heads.0.")}
    config = replace(found.config, heads=replace(heads, count=heads.count + 1))
    return replace(found, config=config, tensors=moved | first)


def layout(name: str) -> Break:
    return lambda c: replace(c, config=replace(c.config, layout=name))


def both(*steps: Break) -> Break:
    def change(found: DraftCheckpoint) -> DraftCheckpoint:
        for step in steps:
            found = step(found)
        return found

    return change


SPECULATORS = both(lambda c: with_tables(c, kit().data), layout("speculators"))
ROPE = "transformer_layer_config.rope_parameters.rope_theta"
BROKEN = {
    "eagle3 taps +1": ("eagle3", taps(1), "taps -1", "eagle_aux_hidden_state_layer_ids: [2, 4, 6] -> [1, 3, 5]"),
    "eagle3 taps -1": ("eagle3", taps(-1), "taps +1", "eagle_aux_hidden_state_layer_ids: [0, 2, 4] -> [1, 3, 5]"),
    "eagle3 feedback": (
        "eagle3",
        part("rows", feedback="post"),
        "fed back before the norm",
        "norm_output: true -> false",
    ),
    "eagle3 residual": (
        *("eagle3", part("rows", residual_norm=True), "residual from the raw feature"),
        "norm_before_residual: true -> false",
    ),
    "eagle3 logit norm": (
        *("eagle3", both(layout("specforge"), part("rows", logit_norm=False)), "head reads the normed state"),
        "norm_output: false -> remove it (it was false)",
    ),
    "eagle3 rope": (
        *("eagle3", part("body", rope=Rope(10000.0)), "rotary base 50"),
        f"{ROPE}: 10000.0 -> 50.0",
    ),
    "eagle3 vocabulary map": (
        *("eagle3", absolute_map, "vocabulary map read as ids"),
        "tensor d2t: subtract from each entry its own index (its numbers are ids)",
    ),
    "dflash taps +1": ("dflash", taps(1), "taps -1", "dflash_config.target_layer_ids: [1, 4] -> [0, 3]"),
    "dflash anchor": (
        *("dflash", both(SPECULATORS, part("block", anchor_predicts=True)), "the anchor's slot predicts nothing"),
        "sample_from_anchor: true -> false",
    ),
    "dflash rope": ("dflash", part("body", rope=Rope(10000.0)), "rotary base 50", "rope_theta: 10000.0 -> 50.0"),
    "medusa last tap": (
        *("medusa", part("features", taps=(6,)), "last layer after the final norm"),
        "",
    ),
    "medusa heads": (
        *("medusa", one_more_head, "without the first head"),
        "tensors of head 0: drop them, and count the other heads from 0",
    ),
}


def examined(made: Kit, found: DraftCheckpoint) -> Diagnosis:
    config = found.config
    try:
        raw = config_out(config, config.layout, About(layers=6))
    except RequestError:
        raw = {}
    return examine(made.llm, found, made.prompts, raw, tokens=20)


@pytest.mark.parametrize("name", ["eagle3", "dflash", "medusa"])
def test_an_oracle_is_always_right_and_its_own_reading_stands(made: Kit, name: str) -> None:
    found = examined(made, made.oracle(name))
    assert found.winner is None
    assert found.own.first.value > 0.98
    assert found.own.mean > 0.95 * found.depth
    assert not found.poor


@pytest.mark.parametrize("case", BROKEN)
def test_what_was_broken_is_found_and_named(made: Kit, case: str) -> None:
    name, broken, fix, line = BROKEN[case]
    right = made.oracle(name)
    found = examined(made, broken(right))
    assert found.winner is not None
    assert found.winner.reading.name == fix
    assert found.winner.first.value > 0.95
    assert found.findings[0] is found.winner, "the table is best first"
    fixed = found.winner.reading.checkpoint
    undone = changes(right.config, fixed.config)
    assert {k for k in undone if not k.startswith(("layout", "vocab."))} == set(), "the fix is exactly the undo"
    assert all(torch.equal(fixed.tensors[n], t) for n, t in right.tensors.items())
    if line:
        assert list(found.winner.lines) == [line]
    text = "\n".join(lines_of(found, "drafter"))
    assert f"! {fix}" in text
    assert "* as the file says" in text
    shown = as_dict(found, "drafter", "target")
    assert shown["healthy"] is False
    assert shown["fix"]["reading"] == fix
    assert shown["readings"][0]["reading"] == fix


def test_two_changes_are_found_together(made: Kit) -> None:
    broken = both(taps(1), part("rows", feedback="post"))(made.oracle("eagle3"))
    found = examined(made, broken)
    assert found.winner is not None
    assert set(found.winner.reading.name.split(" and ")) == {"taps -1", "fed back before the norm"}
    assert set(found.winner.lines) == {
        "eagle_aux_hidden_state_layer_ids: [2, 4, 6] -> [1, 3, 5]",
        "norm_output: true -> false",
    }


def test_two_changes_are_found_together_at_the_last_layer_too(made: Kit) -> None:
    """Tap 6 is the last layer: its state after the final norm is one more reading to combine with."""
    broken = both(taps(1), part("rows", residual_norm=True))(made.oracle("eagle3"))
    found = examined(made, broken)
    assert found.winner is not None
    assert set(found.winner.reading.name.split(" and ")) == {"taps -1", "residual from the raw feature"}
    assert found.places == int((found.own.lengths >= 0).sum())


def test_a_drafter_of_another_target_gets_a_warning_and_no_fix(made: Kit) -> None:
    right = made.oracle("eagle3")
    g = torch.Generator().manual_seed(5)
    noise = {n: t if n == "vocab_map" else torch.randn(t.shape, generator=g) * 0.2 for n, t in right.tensors.items()}
    found = examined(made, replace(right, tensors=noise))
    assert found.winner is None
    assert found.poor
    *_, verdict, warning = lines_of(found, "x")
    assert "no reading can be told from another" in verdict
    assert "was this drafter trained for this target?" in warning


@pytest.mark.parametrize("algorithm", ["eagle", "peagle", "dspark"])
def test_every_other_algorithm_is_examined(made: Kit, algorithm: str) -> None:
    """Random weights: nothing to find, but every reading is built, fed and counted."""
    rows, plain = made.data.tables.rows, tiny(algorithm)
    assert plain.config.body is not None
    b = body(plain.config.body.layers, qk_norm=plain.config.body.qk_norm)
    features = replace(plain.config.features, width=H)
    block = plain.config.block and replace(plain.config.block, mask_token=rows - 1)
    vocab = Vocab(rows, rows, own_head=algorithm == "peagle")
    config = replace(plain.config, body=b, features=features, block=block, vocab=vocab)
    config = replace(config, layout="deepspec") if algorithm == "dspark" else config
    g = torch.Generator().manual_seed(3)
    tensors = {n: torch.randn(s, generator=g) * 0.3 for n, s in shapes(config).items()}
    found = examined(made, DraftCheckpoint(config, tensors))
    tried = readings.readings(found.found, Facts(6, rows, rows, 50.0))
    assert found.winner is None
    assert {r.name for r in tried} <= {f.reading.name for f in found.findings}
    assert all((f.lengths >= 0).any() for f in found.findings)


def test_numbers_that_are_not_finite_are_a_result_not_an_error(made: Kit) -> None:
    right = made.oracle("dflash")
    spoiled = {**right.tensors, "fc.weight": right.tensors["fc.weight"] * float("nan")}
    found = examined(made, replace(right, tensors=spoiled))
    assert found.own.mean == 0
    assert found.poor


def test_where_a_layout_has_no_key_the_line_says_so_and_names_one_that_has(made: Kit) -> None:
    broken = both(layout("deepspec"), part("block", anchor_predicts=True))(
        with_tables(made.oracle("dflash"), made.data)
    )
    found = examined(made, broken)
    assert found.winner is not None
    (line,) = found.winner.lines
    elsewhere = "speculators, zlab, transformers"
    assert line == f"layout 'deepspec' has no key for this (anchor_predicts); a layout that has one: {elsewhere}"


def test_answers_that_end_at_once_are_a_request_error(made: Kit) -> None:
    with pytest.raises(RequestError, match="ended every answer"):
        examine(made.llm, made.oracle("dflash"), made.prompts, tokens=2)


class TestReadings:
    facts = Facts(layers=4, vocab=12, rows=14, theta=10000.0)

    def names(self, found: DraftCheckpoint) -> list[str]:
        return [r.name for r in readings.readings(found, self.facts)]

    def test_taps_stay_within_the_target(self) -> None:
        assert "taps +1" in self.names(tiny("eagle3"))
        assert "taps -1" in self.names(tiny("eagle3"))
        high = part("features", taps=(2, 3, 4))(tiny("eagle3"))
        assert "taps +1" not in self.names(high)
        low = part("features", taps=(0, 1, 2))(tiny("eagle3"))
        assert "taps -1" not in self.names(low)

    def test_only_what_applies_to_the_algorithm_is_tried(self) -> None:
        assert self.names(tiny("medusa")) == ["last layer before the final norm", "without the first head"]
        assert "the anchor's slot predicts nothing" in self.names(tiny("dspark"))
        assert not [n for n in self.names(tiny("dflash")) if "residual" in n or "fed back" in n]
        assert not [n for n in self.names(tiny("peagle")) if "fed back" in n or "anchor" in n]

    def test_each_reading_changes_one_thing_and_leaves_the_tensors_alone(self) -> None:
        for algorithm in ("eagle", "eagle3", "peagle", "dflash", "dspark", "medusa"):
            found = tiny(algorithm)
            before = {n: t.clone() for n, t in found.tensors.items()}
            for reading in readings.readings(found, self.facts):
                changed = changes(found.config, reading.checkpoint.config)
                assert len(changed) + (reading.kind == "vocabulary map") == 1, reading.name
            assert all(torch.equal(found.tensors[n], t) for n, t in before.items())

    def test_the_vocabulary_map_has_another_reading_only_where_ids_stay_distinct_and_known(self) -> None:
        dense = tiny("eagle3")
        config = replace(dense.config, vocab=Vocab(12, 4, own_head=True))

        def names(ids: list[int]) -> list[str]:
            tensors = {**dense.tensors, "vocab_map": torch.tensor(ids)}
            return [n for n in self.names(DraftCheckpoint(config, tensors)) if "map" in n]

        assert names([0, 2, 4, 6]) == ["vocabulary map read as ids", "vocabulary map read as offsets"]
        assert names([0, 1, 4, 6]) == ["vocabulary map read as offsets"]  # as ids 0 would be there twice
        assert names([5, 8, 10, 13]) == ["vocabulary map read as ids"]  # as offsets it would leave the vocabulary

    def test_rope_bases_tried_are_the_usual_and_the_targets(self) -> None:
        facts = replace(self.facts, theta=1e6)
        found = part("body", rope=Rope(500.0))(tiny("dflash"))
        names = [r.name for r in readings.readings(found, facts) if r.kind == "rope"]
        assert names == ["rotary base 10000", "rotary base 1e+06"]


class TestStatistics:
    def test_the_sign_test_is_the_two_sided_binomial(self) -> None:
        assert statistics.sign_test(0, 0) == 1
        assert statistics.sign_test(5, 5) == 1
        assert statistics.sign_test(10, 0) == pytest.approx(2 / 1024)
        assert statistics.sign_test(1, 9) == pytest.approx(2 * 11 / 1024)

    def test_only_places_both_have_are_compared(self) -> None:
        own, other = np.array([[1, 1, -1, 2]]), np.array([[2, -1, 5, 2]])
        assert statistics.compare(own, other).gain == pytest.approx(0.5)

    def test_runs_of_neighbours_count_once(self) -> None:
        own = np.zeros((2, 8), dtype=np.int64)
        found = statistics.compare(own, own + 1)
        assert (found.better_runs, found.worse_runs) == (4, 0)

    def test_noise_is_no_clear_win(self) -> None:
        rng = np.random.default_rng(0)
        wins = 0
        for _ in range(300):
            own, other = rng.integers(0, 4, (2, 8, 28))
            wins += statistics.compare(own, other).clear(1.5, 10)
        assert wins <= 3

    def test_a_small_but_sure_gain_is_not_worth_a_change(self) -> None:
        own = np.full((8, 100), 3, dtype=np.int64)
        other = own.copy()
        other[:, ::25] += 1
        found = statistics.compare(own, other)
        assert found.p_value < 1e-6
        assert not found.clear(3.0, 1)

    def test_the_interval_holds_its_share(self) -> None:
        share = statistics.wilson(0, 100)
        assert share.low == 0
        assert 0.03 < share.high < 0.05
