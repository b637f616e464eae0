"""`slipstream bench` on tiny models: both forms of output, resumption, refusals, peers."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest

from slipstream import LLM

TURNS = [("writing", "the cat sat"), ("writing", "and the dog"), ("maths", "one two three")]


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    lines = [{"question_id": k, "category": c, "turns": [t]} for k, (c, t) in enumerate(TURNS)]
    path = tmp_path / "suite.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture
def bench(cli, tiny: Path, suite: Path):
    def run(*argv: str):
        fixed = ["--model", str(tiny), "--dtype", "float32", "--suite", str(suite), "--max-tokens", "10"]
        return cli("bench", *fixed, *argv)

    return run


def test_one_json_object_whose_totals_reconcile(bench, other: Path) -> None:
    argv = ["--drafter", f"lookup,draft_model:{other}", "--draft-tokens", "2,4", "--temperature", "0,0.9"]
    found = bench(*argv, "--batch", "1,2", "--repeats", "1", "--ignore-eos", "--json")
    assert found.status == 0, found.err
    data = found.json
    assert data["totals_reconcile"] is True
    assert [(c["temperature"], c["batch"]) for c in data["cells"]] == [(0.0, 1), (0.0, 2), (0.9, 1), (0.9, 2)]
    for cell in data["cells"]:
        assert cell["plain"]["tokens"] == 30
        assert cell["plain"]["passes"] == 30
        names = [d["name"].split(":")[0] for d in cell["drafters"]]
        assert names == ["lookup 2", "lookup 4", "draft_model", "draft_model"]
        for drafter in cell["drafters"]:
            assert drafter["tokens"] == drafter["accepted"] + drafter["by_target"]
            assert drafter["passes"] <= 30
            assert drafter["speed_up"]["value"] > 0
            seconds = drafter["seconds"]
            assert sum(seconds[k] for k in ("prefill", "draft", "target", "other")) <= seconds["wall"] + 1e-3
    greedy, drawn = data["cells"][0], data["cells"][2]
    assert greedy["drafters"][0]["outputs"]["equal"] == 3
    assert drawn["drafters"][0]["outputs"]["equal"] == 0  # draws are not compared
    for cell in data["cells"]:  # a prediction is about one prompt at a time
        predicted = [drafter["predicted_speed_up"] for drafter in cell["drafters"]]
        if cell["batch"] == 1:
            assert all(p["low"] <= p["value"] <= p["high"] for p in predicted)
        else:
            assert predicted == [None] * 4


def test_tables_report_and_peers(bench, tiny: Path, tmp_path: Path) -> None:
    report = tmp_path / "out.html"
    argv = ["--drafter", f"draft_model:{tiny}", "--draft-tokens", "3", "--against", "hf,hf-assisted,hf-lookup"]
    found = bench(*argv, "--repeats", "1", "--ignore-eos", "--report", str(report))
    assert found.status == 0, found.err
    lines = found.out.split("\n")
    for name in ("hf", "hf-assisted", "hf-lookup"):
        assert next(line for line in lines if line.split()[:1] == [name]).endswith("identical")
    assert "totals reconcile" in found.out
    html = report.read_text()
    assert "Other engines" in html
    assert html.count("<svg") == 5
    assert [p.name for p in tmp_path.iterdir() if p.suffix == ".part"] == []


def test_a_batch_leaves_out_peers_that_take_one_prompt_at_a_time(bench) -> None:
    found = bench("--batch", "3", "--against", "hf,hf-lookup", "--repeats", "1", "--json")
    assert found.status == 0, found.err
    assert [p["name"] for p in found.json["cells"][0]["peers"]] == ["hf"]
    assert "hf-lookup decodes one prompt at a time" in found.err


def test_what_is_measured_is_not_measured_again(bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "r.jsonl"
    first = bench("--repeats", "1", "--output", str(path), "--json")
    size = len(path.read_text().splitlines())
    monkeypatch.setattr(LLM, "generate", lambda *a, **k: pytest.fail("decoded again"))
    again = bench("--repeats", "1", "--output", str(path), "--json")
    assert again.status == 0, again.err
    assert "3 of 3 measurements are in" in again.err
    assert len(path.read_text().splitlines()) == size
    assert again.json["cells"] == first.json["cells"]


def test_more_repeats_go_on_from_those_there(bench, tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    bench("--repeats", "1", "--output", str(path))
    again = bench("--repeats", "2", "--output", str(path), "--json")
    assert "3 of 6 measurements are in" in again.err
    assert again.json["cells"][0]["plain"]["repeats"] == 2
    less = bench("--repeats", "1", "--output", str(path), "--json")
    assert less.json["cells"][0]["plain"]["repeats"] == 1


def test_a_stopped_bench_loses_at_most_one_prompt(bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "r.jsonl"
    original, calls = LLM.generate, []

    def stopping(self, prompts, params=None, **kwargs):
        calls.append(len(calls))
        if len(calls) == 6:  # two of warming up, two of the first prompt; the second of the second prompt
            raise KeyboardInterrupt
        return original(self, prompts, params, **kwargs)

    monkeypatch.setattr(LLM, "generate", stopping)
    found = bench("--repeats", "1", "--output", str(path))
    assert found.status == 130
    assert "the same command goes on from there" in found.err
    monkeypatch.setattr(LLM, "generate", original)
    again = bench("--repeats", "1", "--output", str(path), "--json")
    assert again.status == 0
    assert "1 of 3 measurements are in" in again.err
    assert (
        again.json["cells"][0]["plain"]["tokens"]
        == bench("--repeats", "1", "--json").json["cells"][0]["plain"]["tokens"]
    )


def test_a_killed_bench_leaves_whole_lines(command, tiny: Path, suite: Path, tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    argv = ["bench", "--model", str(tiny), "--dtype", "float32", "--suite", str(suite), "--max-tokens", "60"]
    argv += ["--ignore-eos", "--repeats", "400", "--output", str(path)]
    process = command(*argv)
    end = time.monotonic() + 60
    while time.monotonic() < end and (not path.exists() or path.stat().st_size < 12000):
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    lines = [line for line in path.read_text().split("\n") if line]
    units = [line for line in map(json.loads, lines[:-1]) if "unit" in line]
    assert len(units) >= 2
    assert all(set(unit["runs"]) == {"plain", "lookup"} for unit in units)


def test_a_wrong_output_has_no_speed_up_and_status_1(bench, monkeypatch: pytest.MonkeyPatch) -> None:
    original = LLM.generate

    def wrong(self, prompts, params=None, **kwargs):
        found = original(self, prompts, params, **kwargs)
        if self.drafter == "lookup":
            for one in found:
                one.token_ids = [*one.token_ids[:2], one.token_ids[2] ^ 1, *one.token_ids[3:]]
        return found

    monkeypatch.setattr(LLM, "generate", wrong)
    found = bench("--repeats", "1", "--ignore-eos")
    assert found.status == 1
    assert "3 of 3 DIFFERENT" in found.out
    assert "no speed-up is stated" in found.out
    row = next(line for line in found.out.split("\n") if line.startswith("lookup")).split()
    assert row[3:5] == ["-", "-"]  # neither speed-up nor interval; what was predicted may stay


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--suite", "nope"], "unknown suite 'nope'"),
        (["--drafter", "lookupp"], "did you mean 'lookup'"),
        (["--drafter", "none"], "plain decoding is measured in every run"),
        (["--draft-tokens", "x"], "draft_tokens 'x'"),
        (["--batch", "0"], "batch=0"),
        (["--against", "hff"], "unknown peer 'hff'"),
        (["--against", "vllm"], "slipstream[vllm]"),
        (["--temperature", "hot"], "temperature 'hot'"),
        (["--limit", "0"], "limit=0"),
        (["--against", "hf-assisted"], "needs a draft model"),
        (["--against", "hf,hf-assisted", "--drafter", "lookup,auto"], "peer hf-assisted needs a draft model"),
        (["--drafter", "lookup,eagle3:/no/such"], "no such drafter folder: /no/such"),
    ],
)
def test_wrong_requests_are_one_line(bench, argv: list[str], message: str) -> None:
    found = bench(*argv)
    assert found.status == 2
    assert message in found.err
    assert found.out == ""
    assert len([line for line in found.err.strip().split("\n") if "error" not in line]) == 1


@pytest.mark.parametrize("peer", ["hf-assisted", "llama-cpp", "llama-cpp-lookup"])
def test_what_a_peer_lacks_is_said_before_anything_is_loaded(bench, monkeypatch: pytest.MonkeyPatch, peer: str) -> None:
    monkeypatch.setattr(LLM, "__init__", lambda *a, **k: pytest.fail("loaded"))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    found = bench("--against", f"hf,{peer}")
    assert found.status == 2
    assert f"peer {peer} " in found.err
    assert len(found.err.splitlines()) == 1


def test_what_does_not_fit_says_so_before_anything_is_measured(bench, tmp_path: Path) -> None:
    found = bench("--max-tokens", "128")
    assert found.status == 3
    assert "does not fit a context of 128" in found.err
    found = bench("--report", str(tmp_path / "nowhere" / "x.html"))
    assert found.status == 2
    assert "folder does not exist" in found.err


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_in_low_precision_plain_decoding_may_vouch_for_a_near_tie(
    tiny: Path, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from slipstream.measure import agreement

    asked = []
    monkeypatch.setattr(agreement, "certify", lambda *args: asked.append(args[4]))
    llm = LLM(str(tiny), "lookup", dtype=dtype)
    agreement.Notary(llm).compare([5, 6, 7], [1, 2], [1, 3])
    assert asked == [None if dtype == "float32" else llm.engine.target]


def test_a_drafter_that_cannot_be_predicted_has_a_dash(bench, monkeypatch: pytest.MonkeyPatch) -> None:
    from slipstream import RequestError
    from slipstream.measure import predict_model

    def refuse(*args, **kwargs):
        raise RequestError("not offline")

    monkeypatch.setattr(predict_model, "forecast", refuse)
    found = bench("--repeats", "1", "--json")
    assert found.status == 0, found.err
    assert found.json["cells"][0]["drafters"][0]["predicted_speed_up"] is None
