"""Where the CPU kernels are missing, broken or of a lower level: the same text, and one line that says why."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import slipstream
from slipstream import kernels

ROOT = Path(__file__).resolve().parents[2]
SUFFIX = ".abi3.so" if sys.platform != "win32" else ".pyd"
needs_kernels = pytest.mark.skipif(not kernels.available(), reason=f"no kernels: {kernels.reason()}")


@pytest.fixture
def generate(tiny: Path, tmp_path: Path):
    """Generate in a process of its own, whose extension module has the given contents; none: no extension."""

    def run(extension: bytes | None, **env: str) -> tuple[str, list[str]]:
        package = tmp_path / "slipstream"
        (package / "kernels").mkdir(parents=True)
        for source in Path(slipstream.__file__).parent.iterdir():
            if source.name != "kernels":
                (package / source.name).symlink_to(source)
        for source in Path(kernels.__file__).parent.glob("*.py"):
            (package / "kernels" / source.name).symlink_to(source)
        if extension is not None:
            (package / "kernels" / f"_native{SUFFIX}").write_bytes(extension)
        return generate_here(tiny, PYTHONPATH=str(tmp_path), **env)

    return run


# An editable installation finds the extension wherever it was built, whatever lies on the path.
START = """
import sys
sys.meta_path[:] = [f for f in sys.meta_path if "editable" not in getattr(f, "__module__", type(f).__module__)]
from slipstream.cli import main
sys.exit(main(sys.argv[1:]))
"""


def generate_here(tiny: Path, **env: str) -> tuple[str, list[str]]:
    """Return the text, and the lines of stderr that are no statistics."""
    argv = ["generate", "the cat sat on", "--model", str(tiny), "--dtype", "bfloat16", "--max-tokens", "12"]
    command = ["-c", START] if "PYTHONPATH" in env else ["-m", "slipstream.cli"]
    done = subprocess.run(
        [sys.executable, *command, *argv, "--drafter", "lookup"],
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "error"} | env,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, [line for line in done.stderr.splitlines() if "target:" in line or "arning" in line]


@pytest.fixture(scope="module")
def usual(tiny: Path) -> str:
    return generate_here(tiny)[0]


@pytest.mark.parametrize("extension", [None, b"", b"\x7fELF and no more"], ids=["missing", "empty", "broken"])
def test_without_a_working_extension_torch_says_so_once(generate, usual: str, extension: bytes | None) -> None:
    text, lines = generate(extension)
    assert text == usual
    assert len(lines) == 1
    assert "torch, slower than the CPU kernels" in lines[0]
    assert "the extension is not there" in lines[0]


def test_a_level_that_is_not_here_is_torch_too(tiny: Path, usual: str) -> None:
    text, lines = generate_here(tiny, SLIPSTREAM_KERNELS="mmx")
    assert text == usual
    assert len(lines) == 1
    assert "mmx" in lines[0] or not kernels.available()


@needs_kernels
@pytest.mark.parametrize("level", ["avx2", "neon", "portable"])
def test_a_lower_level_writes_the_same_text(tiny: Path, usual: str, level: str) -> None:
    if level not in kernels.levels():
        pytest.skip(f"this machine lacks the level {level}")
    text, lines = generate_here(tiny, SLIPSTREAM_KERNELS=level)
    assert text == usual
    assert len(lines) == 1
    assert f"CPU kernels ({level})" in lines[0]


@pytest.mark.slow
def test_without_a_compiler_the_package_still_builds(tmp_path: Path) -> None:
    pytest.importorskip("scikit_build_core", reason="building without network needs scikit-build-core installed")
    pip = [sys.executable, "-m", "pip", "wheel", str(ROOT), "--no-deps", "--no-build-isolation", "-w", str(tmp_path)]
    env = os.environ | {"CC": "/bin/false", "CXX": "/bin/false", "PYTHONWARNINGS": "default"}
    done = subprocess.run(
        [*pip, "-v", "--config-settings", f"build-dir={tmp_path}/build"], env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "WITHOUT its CPU kernels" in done.stdout + done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name.endswith("-py3-none-any.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert "slipstream/kernels/__init__.py" in names
    assert not [name for name in names if "_native" in name]
