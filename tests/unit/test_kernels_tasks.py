"""How a region's tasks are shared out among threads: the program `tests/native/check_tasks.cpp`, compiled and run."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COMPILER = shutil.which(os.environ.get("CXX", "c++")) or shutil.which("g++") or shutil.which("clang++")


@pytest.mark.skipif(COMPILER is None, reason="this machine lacks a C++ compiler")
def test_each_task_is_worked_once_and_nobody_waits_for_a_slow_thread(tmp_path: Path) -> None:
    """Threads that come late, thousands of sets of tasks without a barrier between them, and one thread that stalls."""
    program = tmp_path / "check_tasks"
    kernels = ROOT / "src/kernels"
    sources = [ROOT / "tests/native/check_tasks.cpp", kernels / "pool.cpp"]
    subprocess.run(
        [str(COMPILER), "-std=c++17", "-O1", "-pthread", f"-I{kernels}", *sources, "-o", program], check=True
    )
    done = subprocess.run([program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout
