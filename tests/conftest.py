"""Seeds, no network, and marks that skip themselves by name."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


@pytest.fixture(autouse=True)
def _seeded() -> None:
    import torch

    torch.manual_seed(0)


@pytest.fixture(autouse=True, scope="session")
def _own_profiles(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Costs measured beside other tests are no costs to keep."""
    folder = tmp_path_factory.mktemp("profiles")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("slipstream.profiles.profiles_dir", lambda: folder)
        yield


@pytest.fixture
def same_kernels_after() -> Iterator[None]:
    """The level and the threads that a test sets on the CPU kernels are gone when it ends."""
    from slipstream import kernels

    level, threads = kernels.level(), kernels.threads()
    yield
    kernels.set_level(level)
    kernels.set_threads(threads)


@pytest.fixture(params=("amx", "avx512", "avxvnni", "avx2", "dotprod", "neon", "portable"))
def level(request: pytest.FixtureRequest, same_kernels_after: None) -> str:
    """Each level of the CPU kernels, in two threads; those that this machine lacks are skipped by name."""
    from slipstream import kernels

    if request.param not in kernels.levels():
        pytest.skip(f"this machine lacks the level {request.param}")
    kernels.set_level(request.param)
    kernels.set_threads(2)
    return str(request.param)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that need what this machine lacks are skipped, and say what it was."""
    import torch

    for item in items:
        if item.get_closest_marker("gpu") and not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))
        for mark in ("model", "big"):
            if item.get_closest_marker(mark):
                missing = [n for n in _models(mark) if not _pulled(n)]
                if missing:
                    item.add_marker(pytest.mark.skip(reason=f"not pulled: {', '.join(missing)}"))


def _models(mark: str) -> list[str]:
    if mark == "model":
        return ["smollm2-135m-instruct"]
    return ["qwen2.5-coder-0.5b-instruct", "qwen2.5-coder-1.5b-instruct"]


def _pulled(name: str) -> bool:
    home = os.environ.get("SLIPSTREAM_HOME", os.path.expanduser("~/.cache/slipstream"))
    return os.path.exists(os.path.join(home, "models", name, "config.json"))
