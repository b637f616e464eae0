"""What is said of memory: this process's own numbers, a line per format, and a process that fails is an error."""

from __future__ import annotations

import mmap
import sys
from pathlib import Path

import pytest

from slipstream.measure import memory
from tiny_model import make_model

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")


def test_resident_memory_grows_with_what_is_held():
    before = memory.resident()
    size = 40 << 20
    held = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # malloc may hand out what was there
    for at in range(0, size, mmap.PAGESIZE):  # nothing is made to copy from: freed memory would come back for it
        held[at] = 1
    after = memory.resident()
    assert size * 0.9 < after["RssAnon"] - before["RssAnon"] < size * 1.5
    assert after["VmHWM"] >= after["VmRSS"] >= after["RssAnon"]


def test_every_format_is_a_process_and_a_line(tmp_path: Path, capsys):
    make_model(tmp_path)
    argv = ["--model", str(tmp_path), "--quantize", "none", "--max-len", "64"]
    assert memory.main([*argv, "--drafter", "lookup"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[3:]] == ["none"]
    weights, before, loaded, peak = map(int, lines[3].split()[2:6])
    assert 0 <= weights < before < loaded <= peak
    assert memory.main([*argv, "--drafter", "nothing-of-that-name"]) != 0
