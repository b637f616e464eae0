"""The comparison with other engines: steps in turn, a child process that decodes, ratios and verdicts, the docs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from slipstream import LLM, SamplingParams, WorkError
from slipstream.measure import bench_peers
from slipstream.measure.bench_peers_text import NAMES, Measured, drawn, page
from slipstream.measure.peers.worker import Setup, Worker
from slipstream.measure.results import Results
from slipstream.measure.suites import Suite
from slipstream.measure.workloads import Prompt
from tiny_model import make_model

SUITE = Suite("s", [Prompt(f"{kind}{k}", kind, []) for kind in ("grounded", "chat") for k in (1, 2)])
SECONDS = {"plain": 1.0, "auto": 0.5, "llama-cpp": 1.25, "hf": 2.0, "hf-lookup": 4.0, "hf-assisted": 3.0}


def lines(seconds: dict[str, float], tokens: list[int] | None = None) -> list[dict[str, Any]]:
    """Ten tokens a call; decoding takes half of it and leaves the first token out."""
    found: list[dict[str, Any]] = [{"engine": "slipstream", "about": {"notes": ["target: x"]}}]
    found.insert(0, {"engine": "none", "about": bench_peers._about() | {"cpu": "C", "cpus": 2, "date": "today"}})
    for prompt in SUITE.prompts:
        runs = {
            name: {"tokens": tokens or [1] * 10, "wall": wall, "decoded": 9, "decode": wall / 2}
            for name, wall in seconds.items()
        }
        found.append({"prompt": prompt.id, "repeat": 0, "runs": runs})
    return found


def test_ratios_are_those_of_the_rates_and_the_fastest_other_counts() -> None:
    one = Measured("m", SUITE, 10, lines(SECONDS))
    assert one.ratio("auto", "plain", "wall").value == pytest.approx(2.0)
    assert one.ratio("plain", "llama-cpp", "decode").value == pytest.approx(1.25)
    said = page([one])
    rows = {row.split(" | ")[0].removeprefix("| "): row.split(" | ") for row in said.splitlines() if row[:2] == "| "}
    plain = rows["slipstream plain"]
    assert plain[1:5] == ["10.0", "10.0", "10.0", "1.00x"]
    assert plain[5] == "18.0"  # nine tokens in half a second
    assert rows["`auto` / transformers' best of assisted and lookup"][2].startswith("6.00x")
    assert rows["`auto` / transformers' best of assisted and lookup"][4] == "reached |"
    assert rows["plain / transformers plain"][2].startswith("2.00x")
    assert rows["plain / transformers plain"][4] == "not reached |"
    assert rows["`auto` / plain, grounded prompts"][4] == "not reached |"
    assert rows["`auto` / llama.cpp's lookup"][2] == "not measured"
    assert "equal the plain ones on 4 of 4 prompts. Target: x." in said
    assert "2 cores of C, today, revision" in said


def test_a_text_that_differs_and_a_prompt_that_one_engine_lacks_are_not_hidden() -> None:
    found = lines(SECONDS)
    found[2]["runs"]["auto"]["tokens"] = [2] * 10
    del found[3]["runs"]["hf"]
    one = Measured("m", SUITE, 10, found)
    assert one.equal("auto", "plain") == 2
    assert one.shared == ["grounded1", "chat1", "chat2"]
    assert "3 prompts (1 grounded, 2 chat)" in page([one])


def test_every_runner_has_a_name_and_its_turn_is_turned_round() -> None:
    assert {name for runners in bench_peers.ENGINES.values() for name in runners} == set(NAMES)
    engines = {"slipstream": ("plain", "auto"), "hf": ("hf",)}
    found = list(bench_peers.steps(SUITE, engines, repeats=2, hf_repeats=1))
    assert [(s.prompt, s.repeat) for s in found] == [(p.id, k) for k in (0, 1) for p in SUITE.prompts]
    assert found[0].runners == ("plain", "auto", "hf")
    assert found[-1].runners == ("auto", "plain")


def test_a_child_decodes_what_the_parent_would(tmp_path: Path) -> None:
    folder = make_model(tmp_path)
    llm = LLM(str(folder), "none", max_rows=1)
    expected = llm.generate([5, 6, 7], SamplingParams(max_tokens=6)).token_ids
    worker = Worker(Setup(["plain", "auto"], str(folder), str(folder), 128, []), {})
    try:
        for name in ("plain", "auto"):
            run = worker.run(name, [5, 6, 7], 6)
            assert run.tokens == expected
            assert run.decoded == len(expected)
            assert 0 < run.decode < run.wall
        assert worker.about["quantize"] == llm.opened.quantize
    finally:
        worker.close()
    with pytest.raises(WorkError, match="the process of plain, auto ended with status 1"):
        Worker(Setup(["plain", "auto"], str(tmp_path / "none"), "", 128, []), {})


def test_transformers_tells_its_first_token(tmp_path: Path) -> None:
    folder = make_model(tmp_path)
    worker = Worker(Setup(["hf", "hf-lookup", "hf-assisted"], str(folder), str(folder), 128, [], str(folder)), {})
    try:
        plain = worker.run("hf", [5, 6, 7], 6)
        assert (len(plain.tokens), plain.decoded) == (6, 5)
        assert 0 < plain.decode < plain.wall
        for name in ("hf-lookup", "hf-assisted"):
            run = worker.run(name, [5, 6, 7], 6)
            assert 0 <= run.decoded < 6
            assert 0 < run.decode < run.wall
        assert worker.run("hf", [5, 6, 7], 6).decoded == 5
    finally:
        worker.close()


def test_drawing_needs_measurements_and_puts_them_between_the_markers(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    for name in ("README.md", "docs/performance.md"):
        (tmp_path / name).write_text(f"above\n{bench_peers.BEGIN}\nold\n{bench_peers.END}\nbelow\n")
    argv = ["--models", "m", "--draw", "--output", str(tmp_path / "r.jsonl"), "--docs", str(tmp_path), "--limit", "2"]
    assert bench_peers.main(argv) == 3
    args = bench_peers.parser().parse_args(argv)
    suite = bench_peers.load_suite("peers").limited(2)
    results = Results(tmp_path / "r.jsonl", bench_peers.settings(args, suite, "m"), {})
    for line in lines(SECONDS):
        if "prompt" in line:
            line["prompt"] = suite.prompts[line["prompt"].endswith("2")].id
        results.append(line)
    assert bench_peers.main(argv) == 0
    for name in ("README.md", "docs/performance.md"):
        text = (tmp_path / name).read_text()
        assert text.startswith(f"above\n{bench_peers.BEGIN}\n**m**: 2 prompts")
        assert text.endswith(f"{bench_peers.END}\nbelow\n")
        assert "old" not in text
    (tmp_path / "README.md").write_text("no markers")
    assert bench_peers.main(argv) == 3


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout whose docs show all there is of both models, and a file of measurements that holds nothing yet."""
    (tmp_path / "docs").mkdir()
    suite = bench_peers.load_suite("peers")
    found = []
    for model in bench_peers.MODELS:
        own = bench_peers._runners(model, tuple(bench_peers.ENGINES))
        about, _, line = lines({name: 1.0 for each in own.values() for name in each})[:3]
        found.append(Measured(model, suite, 10, [about, *({**line, "prompt": p.id} for p in suite.prompts)]))
    for name in bench_peers.PAGES:
        (tmp_path / name).write_text(f"above\n{bench_peers.BEGIN}\n{page(found)}\n{bench_peers.END}\nbelow\n")
    return tmp_path


def run_docs(checkout: Path, *argv: str) -> int:
    return bench_peers.main(["--output", str(checkout / "r.jsonl"), "--docs", str(checkout), *argv])


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--models", bench_peers.MODELS[0]], f"{bench_peers.MODELS[1]} would go"),
        (["--engines", "slipstream,hf"], "would lose llama.cpp plain, llama.cpp, its prompt lookup"),
        (["--limit", "3"], "would have 3 prompts, not 30"),
    ],
)
def test_tables_are_not_replaced_by_less(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], argv: list[str], words: str
) -> None:
    monkeypatch.setattr(bench_peers, "measure", lambda *a: pytest.fail("measured"))
    before = [(checkout / name).read_text() for name in bench_peers.PAGES]
    assert run_docs(checkout, *argv) == 2
    said = capsys.readouterr().err
    assert words in said
    assert len(said.splitlines()) == 1
    assert [(checkout / name).read_text() for name in bench_peers.PAGES] == before


def test_without_an_engine_the_docs_keep_their_tables_and_say_why(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "llama_cpp" else name)

    def measure(args: Any, suite: Suite, model: str, results: Results) -> None:
        for line in lines({name: s for name, s in SECONDS.items() if name != "llama-cpp"}):
            results.append(line | ({"prompt": suite.prompts[0].id} if "prompt" in line else {}))

    monkeypatch.setattr(bench_peers, "measure", measure)
    before = [(checkout / name).read_text() for name in bench_peers.PAGES]
    assert run_docs(checkout) == 0
    shown = capsys.readouterr()
    assert "llama-cpp is not installed: the docs keep their tables" in shown.err
    assert "slipstream plain" in shown.out
    assert [(checkout / name).read_text() for name in bench_peers.PAGES] == before
    assert run_docs(checkout, "--draw") == 2  # the file itself holds less
    assert "would lose llama.cpp plain" in capsys.readouterr().err
    assert [(checkout / name).read_text() for name in bench_peers.PAGES] == before


def test_the_docs_of_this_checkout_are_read_as_they_were_drawn() -> None:
    root = Path(__file__).parents[2]
    for name in bench_peers.PAGES:
        found = drawn(bench_peers._section(root / name)[1])
        assert set(found) == set(bench_peers.MODELS), name
        for model, one in found.items():
            wanted = {
                NAMES[r] for each in bench_peers._runners(model, tuple(bench_peers.ENGINES)).values() for r in each
            }
            assert one.engines == wanted
            assert one.prompts == 30


def test_engines_may_be_chosen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chosen = bench_peers.parser().parse_args(["--engines", "slipstream"])
    assert list(bench_peers.runners_of("smollm2-135m-instruct", chosen.engines.split(","))) == ["slipstream"]
    suite = bench_peers.load_suite("peers")
    everyone = bench_peers.settings(bench_peers.parser().parse_args([]), suite, "m")
    assert bench_peers.settings(chosen, suite, "m") == {**everyone, "engines": "slipstream"}
    for wrong in ("hf", "slipstream,vllm"):
        assert bench_peers.main(["--engines", wrong, "--output", str(tmp_path / "r.jsonl")]) == 2
        assert "name slipstream, and any of slipstream, llama-cpp, hf" in capsys.readouterr().err
    assert not (tmp_path / "r.jsonl").exists()
