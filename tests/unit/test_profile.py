"""The cost profile: what it says between what was measured, and that a file that does not fit is measured again."""

import json

import pytest

from slipstream.control import profile_file
from slipstream.control.cost import CostTable
from slipstream.control.profile import (
    Profile,
    flat,
    from_dict,
    measure_around,
    measure_drafter,
    measure_reading,
    measure_rows,
    measure_target,
)
from slipstream.drafters.lookup import Lookup
from slipstream.testing import RandomLaw, ToyTarget
from slipstream.verify import RULES

KEY = {"model": "m", "threads": 2}


def example():
    tables = {"greedy": CostTable({1: 1e-6, 5: 0.004}), "sampled": CostTable({1: 1e-6, 5: 0.008})}
    return Profile(
        {1: CostTable({1: 0.01, 8: 0.017}), 4: CostTable({4: 0.02, 32: 0.048})},
        {1: 1e-6, 8: 2e-6},
        {"toy": tables},
        {"greedy": CostTable({1: 1e-4})},
        {"toy": {"greedy 0": [0.5, 0.25]}},
        {"toy": 0.002},
    )


def test_lines_between_rows_nodes_and_contexts():
    found = example()
    assert found.target(1, 4) == pytest.approx(0.013)
    assert found.target(4, 8) == pytest.approx(0.024)
    assert found.target(2, 8) == pytest.approx(0.017 + (0.024 - 0.017) / 3)
    assert found.target(8, 8) == found.target(4, 8), "beyond what was measured the largest stands in"
    assert found.target(1, 1, 1064) == pytest.approx(0.01 + 1000e-6)
    assert found.target(1, 8, 1064) == pytest.approx(0.017 + 2000e-6)
    assert found.draft("toy", 2, "sampled") == pytest.approx(0.004, rel=1e-3)
    assert found.draft("unknown", 2, "greedy") == 0.0
    assert flat(2.0).target(3, 30) == 2.0


def test_a_profile_survives_its_file(tmp_path):
    assert profile_file.load(tmp_path, KEY) == (None, "")
    assert profile_file.save(tmp_path, KEY, example()) == ""
    found, note = profile_file.load(tmp_path, KEY)
    assert note == ""
    assert found.as_dict() == example().as_dict()
    assert [path.suffix for path in tmp_path.iterdir()] == [".json"]
    assert profile_file.load(tmp_path, KEY | {"threads": 4}) == (None, "")


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: "[]",
        lambda text: text.replace("0.01,", "NaN,"),
        lambda text: text.replace("0.01,", "-1,"),
        lambda text: text.replace("0.5", "1.5"),
        lambda text: text.replace('"passes"', '"other"'),
        lambda text: json.dumps(json.loads(text) | {"format": 99}),
        lambda text: json.dumps(json.loads(text) | {"key": {"model": "other"}}),
        lambda text: "\x00\xff",
    ],
)
def test_a_damaged_or_foreign_file_is_a_note_and_no_profile(tmp_path, damage):
    profile_file.save(tmp_path, KEY, example())
    path = profile_file.path_of(tmp_path, KEY)
    changed = damage(path.read_text())
    assert changed != path.read_text()
    path.write_text(changed)
    found, note = profile_file.load(tmp_path, KEY)
    assert found is None
    assert "measured again" in note


def test_a_folder_that_cannot_be_written_is_a_note(tmp_path):
    (tmp_path / "file").write_text("")
    note = profile_file.save(tmp_path / "file", KEY, example())
    assert "cannot be kept" in note


def test_measuring_leaves_target_and_drafter_empty():
    target = ToyTarget(RandomLaw(5, 1, order=1), 5, max_rows=3)
    found = measure_target(target, seconds=0.02)
    found.around = measure_around(target, RULES["coupled"])
    assert set(found.around) == {"greedy", "coupled"}
    found.passes[3] = measure_rows(target, 3, seconds=0.02)
    lookup = Lookup(vocab=5)
    found.drafts["lookup"] = measure_drafter(target, lookup, 6, seconds=0.02)
    found.reading["lookup"] = measure_reading(target, lookup)
    assert found.reading["lookup"] > 0
    assert not any(target.cache.values())
    assert not lookup._indexes
    assert found.passes[3].nodes == [3, 6, 12]
    assert found.drafts["lookup"]["greedy"].nodes == [1, 2, 3, 5, 7]
    again = from_dict(json.loads(json.dumps(found.as_dict())))
    assert again.as_dict() == found.as_dict()


def test_a_drafter_is_timed_on_a_text_that_does_not_repeat_itself():
    copied = []

    class Listening(Lookup):
        def guess(self, row, budget):
            if len(row.tokens) <= 400:
                copied.extend(super().guess(row, budget))
            return []

    measure_drafter(ToyTarget(RandomLaw(400, 1), 400), Listening(vocab=400), 4, kinds=("greedy",), seconds=0.0)
    assert copied == []


def test_a_profile_is_measured_once_and_kept(tmp_path, monkeypatch, capsys):
    from slipstream import LLM, profiles
    from tiny_model import make_model

    folder = make_model(tmp_path / "model") if (tmp_path / "model").mkdir() is None else None
    kept = tmp_path / "profiles"
    monkeypatch.setattr(profiles, "profiles_dir", lambda: kept)
    first = LLM(str(folder), "lookup", dtype="float32", max_rows=2)
    (file,) = kept.iterdir()
    stored = file.read_text()
    assert capsys.readouterr().err == "", "errors of a script are one line; who looks is told"
    second = LLM(str(folder), "lookup", dtype="float32", max_rows=2)
    assert file.read_text() == stored
    assert capsys.readouterr().err == ""
    assert second.opened.profile.as_dict() == first.opened.profile.as_dict()
    file.write_text("{")
    third = LLM(str(folder), "lookup", dtype="float32", max_rows=2)
    assert any("damaged" in note for note in third.notes)
    assert json.loads(file.read_text())["key"] == json.loads(stored)["key"]
    mixed = third.with_drafter(f"lookup+draft_model:{folder}")
    assert mixed.drafter == "lookup+draft_model"
    assert len(json.loads(file.read_text())["profile"]["drafts"]) == 2


def test_each_sort_of_rule_has_costs_of_its_own_in_one_profile(tmp_path, monkeypatch):
    from slipstream import LLM, profiles
    from tiny_model import make_model

    monkeypatch.setattr(profiles, "profiles_dir", lambda: tmp_path / "profiles")
    make_model(tmp_path)
    asked = {}
    for verify in ("coupled", "auto", "chain"):
        llm = LLM(str(tmp_path), "lookup", dtype="float32", verify=verify)
        controller, around = llm.engine.controller, llm.opened.profile.around
        asked[verify] = controller._kind(False)
        assert asked[verify] in around
    assert asked == {"coupled": "coupled", "auto": "sampled", "chain": "sampled"}
    assert set(around) == {"greedy", "coupled", "sampled"}
    assert controller.profile.draft("lookup", 2, "coupled") == controller.profile.draft("lookup", 2, "sampled") > 0


def test_who_looks_on_is_told_that_costs_are_measured(tmp_path, monkeypatch, capsys):
    from slipstream import LLM, profiles
    from tiny_model import make_model

    monkeypatch.setattr(profiles, "profiles_dir", lambda: tmp_path / "profiles")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    make_model(tmp_path)
    LLM(str(tmp_path), "lookup", dtype="float32")
    assert "measuring what rounds cost" in capsys.readouterr().err


def test_what_costs_depend_on_is_the_key(tmp_path):
    from slipstream import build, kernels, profiles
    from slipstream.config import TargetConfig
    from tiny_model import make_model

    config = {"model": str(make_model(tmp_path)), "dtype": "bfloat16"}
    opened = build.open_target(TargetConfig(**config), rows=1)
    key, before = profiles.key_of(opened), kernels.level() if kernels.available() else ""
    assert profiles.key_of(build.open_target(TargetConfig(**config), rows=2)) == key
    assert profiles.key_of(build.open_target(TargetConfig(max_len=32, **config), rows=1)) != key
    if before:
        kernels.set_level("portable")
        assert profiles.key_of(opened) != key
        kernels.set_level(before)


def test_a_drafter_that_reads_no_taps_is_timed_without_the_target(monkeypatch):
    target = ToyTarget(RandomLaw(5, 1, order=1), 5, max_rows=1)
    monkeypatch.setattr(target, "prefill", lambda slot, tokens: pytest.fail("the target ran"))
    assert measure_drafter(target, Lookup(vocab=5), 3, seconds=0.02)["greedy"].nodes == [1, 2, 3, 4]


@pytest.mark.parametrize("spec", ["lookup", "lookup+draft_model:{}"])
def test_a_seed_gives_the_same_text_again(tmp_path, spec):
    """Sampled rows decide by counts and the stored profile, so a rerun drafts alike, in any company."""
    from slipstream import LLM
    from tiny_model import make_model

    folder = make_model(tmp_path)
    params = {"temperature": 1.0, "seed": 3, "max_tokens": 40, "ignore_eos": True}
    first = LLM(str(folder), spec.format(folder), dtype="float32", max_rows=3)
    alone = first.generate("the cat sat on the mat and the", params)
    greedy = {"max_tokens": 40, "ignore_eos": True}
    prompts = ["one two three", "the cat sat on the mat and the", "one two"]
    again = LLM(str(folder), spec.format(folder), dtype="float32", max_rows=3)
    again.generate("the dog sat on the log and the dog", greedy)
    together = again.generate(prompts, [greedy, params, greedy])[1]
    assert together.token_ids == alone.token_ids
    assert together.stats["num_draft_tokens"] == alone.stats["num_draft_tokens"]


def test_two_models_of_one_shape_have_costs_of_their_own(tmp_path):
    from slipstream.profiles import cost_name

    names = []
    for seed in (0, 1):
        folder = tmp_path / str(seed)
        folder.mkdir()
        (folder / "config.json").write_text("{}")
        (folder / "model.safetensors").write_bytes(bytes([seed]) * 100_000)
        names.append(cost_name("draft_model", folder, {}))
    assert names[0] != names[1]
    assert cost_name("draft_model", tmp_path / "0", {}) == names[0]
