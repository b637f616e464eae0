"""Small parts of the command line: quick help, colours, the trace's words, certificates."""

from __future__ import annotations

import io
import subprocess
import sys
import warnings

import pytest

from slipstream.cli import COMMANDS, PLANNED, main
from slipstream.cli.options import Parser
from slipstream.cli.paint import RESET, Painter
from slipstream.cli.trace import Tracer
from slipstream.engine.engine import RoundTrace
from slipstream.measure.certify import Certificate, judge
from slipstream.measure.suites import KNOWN
from slipstream.types import SamplingParams, Sequence


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Words:
    def decode(self, ids: list[int], skip_special: bool = True) -> str:
        return "".join(f" w{i}" if i else "\n" for i in ids)


@pytest.mark.parametrize("argv", [["--help"], ["--version"], *([name, "--help"] for name in COMMANDS)])
def test_help_needs_no_torch(argv):
    code = f"import sys; from slipstream.cli import main; s = main({argv!r}); sys.exit(s or 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "slipstream" in done.stdout


def test_the_package_runs_as_a_module():
    run = [sys.executable, "-m", "slipstream"]
    shown = subprocess.run([*run, "--version"], capture_output=True, text=True, check=False)
    assert (shown.returncode, shown.stdout.split()[0]) == (0, "slipstream")
    assert subprocess.run([*run, "nonsense"], capture_output=True, check=False).returncode == 2


def test_help_lists_only_commands_that_exist(capsys):
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    for name in COMMANDS:
        assert f"  {name} " in shown


@pytest.mark.parametrize("argv", [["serve"], ["train", "eagle3"], ["help", "serve"], ["serve", "--help"]])
def test_a_planned_command_says_that_it_is_planned(argv, capsys):
    assert set(PLANNED).isdisjoint(COMMANDS)
    assert main(argv) == 2
    shown = capsys.readouterr()
    name = argv[-1] if argv[0] == "help" else argv[0]
    assert shown.err == f"slipstream: command '{name}' is not available yet; available: {', '.join(COMMANDS)}\n"
    assert shown.out == ""


def test_help_as_a_word(capsys):
    assert main(["help"]) == 0
    overview = capsys.readouterr().out
    assert "slipstream COMMAND" in overview
    for name in COMMANDS:
        assert main(["help", name]) == 0
        shown = capsys.readouterr().out
        assert main([name, "--help"]) == 0
        assert capsys.readouterr().out == shown != overview
    assert main(["help", "genrate"]) == 2
    assert "did you mean 'generate'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "tokens"), [("generate", 256), ("chat", 256), ("audit", 256), ("explain", 32), ("predict", 128)]
)
def test_help_names_the_defaults_of_the_command(name, tokens, capsys):
    assert main([name, "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert f"end after this many tokens ({tokens})" in shown
    assert "most tokens drafted per round; 0: off (auto)" in shown


@pytest.mark.parametrize("name", ["bench", "tune", "predict", "doctor", "calibrate"])
def test_every_help_lists_the_same_suites(name, capsys):
    assert main([name, "--help"]) == 0
    assert KNOWN in " ".join(capsys.readouterr().out.split())


def test_what_was_given_is_noted_in_order_a_default_included():
    parser = Parser(prog="x")
    parser.add_argument("prompt", nargs="*")
    parser.add_argument("--seed", default="1")
    parser.add_argument("--top-k", "-k", default="2")
    assert parser.parse_args(["-k", "2", "a", "--seed=1"]).given == ("top_k", "seed")
    assert parser.parse_args([]).given == ()
    assert parser.parse_args(["--", "--seed"]).given == ()


def test_a_warning_is_one_line_said_once_and_python_gets_its_own_way_back(monkeypatch, capsys):
    def run(args):
        for depth in (1, 2):
            warnings.warn("the drafter's logits are not finite:\n  drafts end there", RuntimeWarning, stacklevel=depth)
        warnings.warn("another thing", UserWarning, stacklevel=1)
        return 0

    monkeypatch.setattr("slipstream.cli.models_cmd.run", run)
    before = warnings.showwarning
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        kept = warnings.showwarning
        assert main(["models", "list"]) == 0
        assert warnings.showwarning is kept
    assert warnings.showwarning is before
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.splitlines() == [
        "slipstream: warning: the drafter's logits are not finite: drafts end there",
        "slipstream: warning: another thing",
    ]


def test_stdin_that_is_no_text_is_a_wrong_request(monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"caf\xe9"), encoding="utf-8"))
    assert main(["generate", "-"]) == 2
    assert "stdin is not UTF-8 text" in capsys.readouterr().err


def test_unknown_option_names_the_nearest():
    parser = Parser(prog="x")
    parser.add_argument("--seed")
    with pytest.raises(ValueError, match=r"unknown option '--sed' \(did you mean '--seed'\?\); see 'x --help'"):
        parser.parse_args(["--sed=3"])


def test_colours_only_on_a_terminal_that_wants_them(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert Painter(io.StringIO())("a", "red") == "a"
    painted = Painter(Terminal())("a\nb", "red")
    assert painted.count(RESET) == 2
    assert painted.endswith(RESET)
    monkeypatch.setenv("NO_COLOR", "1")
    assert Painter(Terminal())("a", "red") == "a"


@pytest.mark.parametrize(
    ("tokens", "parents", "path", "kept", "line"),
    [
        ([9], [-1], [], 1, "#0 => [ w5] plain (1 token)"),
        ([9, 1, 2], [-1, 0, 1], [1, 2], 3, "#0 +[ w1] +[ w2] => [ w5] bonus (3 tokens)"),
        ([9, 1, 2, 3], [-1, 0, 1, 2], [1], 2, "#0 +[ w1] x[ w2] .[ w3] => [ w5] correction (2 tokens)"),
        ([9, 1, 2], [-1, 0, 1], [1, 2], 1, "#0 +[ w1] .[ w2] (1 token)"),
        ([9, 1, 2, 3], [-1, 0, 0, 2], [2, 3], 3, "#0 x[ w1] +[ w2] +[ w3] => [ w5] correction (3 tokens)"),
        ([9, 0], [-1, 0], [1], 2, "#0 +[\\n] => [ w5] bonus (2 tokens)"),
    ],
)
def test_trace_lines(tokens, parents, path, kept, line):
    stream = io.StringIO()
    tracer = Tracer(Words(), stream)
    row = Sequence(1, [9], 1, SamplingParams())
    tracer(RoundTrace(row, tokens, parents, path, 5, kept))
    assert stream.getvalue().splitlines()[1] == line


def test_certificate_counts_exact_tokens_near_ties_and_refusals():
    certificate = Certificate(tau=1e-4)
    judge(certificate, [0.0, 5e-5, 1.0], [7, 8, 9])
    assert (certificate.exact, certificate.near_ties) == (1, 1)
    assert certificate.refused == [(2, 9, 1.0)]
    assert certificate.largest_gap == 1.0
    assert not certificate.holds


def test_a_certificate_with_an_absurd_tau_does_not_hold():
    certificate = Certificate(tau=50.0)
    judge(certificate, [0.0], [0])
    assert not certificate.holds
