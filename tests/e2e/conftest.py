"""Run the command line in this process, or as a process of its own, on tiny models made here."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tiny_model import make_model


@dataclass(frozen=True)
class Result:
    """What a command did."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> dict:
        return json.loads(self.out)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Same vocabulary, other weights: a draft model that is often wrong."""
    return make_model(tmp_path_factory.mktemp("other"), seed=1)


@pytest.fixture(scope="session")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another vocabulary: ids mean other strings."""
    return make_model(tmp_path_factory.mktemp("stranger"), extra=["<a>", "<b>"])


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]):
    """Run a command in this process."""
    from slipstream.cli import main

    def run(*argv: str) -> Result:
        status = main(list(argv))
        captured = capsys.readouterr()
        return Result(status, captured.out, captured.err)

    return run


@pytest.fixture
def generate(cli, tiny: Path):
    """Run `generate` on the tiny model in float32."""

    def run(*argv: str) -> Result:
        return cli("generate", "--model", str(tiny), "--dtype", "float32", *argv)

    return run


@pytest.fixture(scope="session")
def command():
    """Start the command as a process of its own."""

    def start(*argv: str, **kwargs) -> subprocess.Popen:
        env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "error"}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        # whoever runs the tests in the background may have told them to ignore Ctrl-C
        heard = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
        line = [sys.executable, "-m", "slipstream.cli", *argv]
        return subprocess.Popen(line, text=True, env=env, preexec_fn=heard, **pipes | kwargs)

    return start
