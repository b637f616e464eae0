"""How a model is run: kernels where they can, torch otherwise, and a format that cannot be had is refused."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from gguf_kit import write_tiny
from safetensors.torch import load_file

from slipstream import LLM, SamplingParams, build, decoders, kernels
from slipstream.checkpoints import gguf
from slipstream.checkpoints.gguf_file import GgufFile
from slipstream.checkpoints.gguf_rows import GgufSource
from slipstream.config import QUANTIZE, TargetConfig
from slipstream.kernels import rows
from slipstream.kernels.linear import unpack
from slipstream.kernels.load import FORMATS
from slipstream.types import RequestError, WorkError
from tiny_model import make_model

needs_kernels = pytest.mark.skipif(not kernels.available(), reason=f"no kernels: {kernels.reason()}")


def test_formats_of_the_config_are_those_of_the_kernels() -> None:
    assert set(QUANTIZE) == {"auto", *FORMATS}


@needs_kernels
def test_kernels_run_bfloat16_and_every_format_and_torch_the_rest() -> None:
    for quantize in QUANTIZE:
        way = decoders.choose_way(quantize, torch.bfloat16, "cpu")
        assert way.kernels
        assert way.quantize == ("none" if quantize == "auto" else quantize)
        assert kernels.level() in way.note
    assert decoders.choose_way("auto", torch.float32, "cpu") == decoders.Way(False)
    for dtype in (torch.bfloat16, torch.float32):  # a processor without bfloat16 still runs the published codes
        assert decoders.choose_way("auto", dtype, "cpu", codes=True).quantize == "int4"
    assert decoders.choose_way("none", torch.bfloat16, "cpu", codes=True).quantize == "none"
    assert decoders.choose_way("auto", torch.bfloat16, "cuda", codes=True) == decoders.Way(False)
    assert decoders.choose_way("int4", torch.float32, "cpu").kernels
    assert decoders.choose_way("auto", torch.bfloat16, "cuda") == decoders.Way(False)
    with pytest.raises(RequestError, match="int4 is not available on cuda"):
        decoders.choose_way("int4", torch.bfloat16, "cuda")


def test_without_the_extension_torch_runs_with_one_line_and_a_format_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "_reason", "the extension is not there")
    opened = build.open_target(TargetConfig(model=str(make_model(tmp_path)), dtype="bfloat16"), rows=1)
    assert len(opened.notes) == 1
    assert "torch" in opened.notes[0]
    assert "the extension is not there" in opened.notes[0]
    assert opened.target.prefill(0, [1, 2]) == {}
    with pytest.raises(RequestError, match="int4 needs the CPU kernels: the extension is not there"):
        build.open_target(TargetConfig(model=str(tmp_path), quantize="int4"), rows=1)


def test_a_format_is_refused_with_transformers(tmp_path: Path) -> None:
    config = TargetConfig(model=str(make_model(tmp_path)), kind="hf", quantize="int8")
    with pytest.raises(RequestError, match="int8 is not available with target hf"):
        build.open_target(config, rows=1)


TYPES = {
    "attn_q.": "Q4_1",
    "attn_k.": "Q4_0",
    "attn_v.": "Q8_0",
    "attn_output": "Q5_0",
    "ffn_gate": "Q4_0",
    "ffn_up": "Q5_1",
}


@needs_kernels
@pytest.mark.parametrize("arch", ["llama", "qwen2", "qwen3"])
def test_the_rows_of_a_gguf_stand_for_the_values_it_is_converted_to(arch: str, tmp_path: Path) -> None:
    """Name by name and value by value, in the order of the converted folder."""
    write_tiny(tmp_path / "m.gguf", arch, types=TYPES)
    gguf.convert(tmp_path / "m.gguf", tmp_path, progress=False)
    converted = load_file(tmp_path / "model.safetensors")
    source, formats = GgufSource(tmp_path / "m.gguf"), set()
    for name, expected in converted.items():
        shape = tuple(expected.shape)
        if expected.ndim == 1 or "embed" in name:
            assert torch.equal(source.values(name, shape).bfloat16(), expected), name
            continue
        rows = source.rows(name, shape)
        formats.add(rows.format)
        kind = {"q8_0": "q8", "q4_0": "q4", "q4_1": "q4"}.get(rows.format, "bf16")  # q5_0 is rounded to it
        native = kernels.native()
        packed = native.matrix(getattr(native.Kind, kind), getattr(native.Source, rows.format), *shape, 0)
        first = 0
        for block in rows.blocks():
            packed.pack(getattr(native.Source, rows.format), block.address, first, block.count)
            first += block.count
        assert first == shape[0]
        assert torch.equal(unpack(packed).bfloat16(), expected), name
        assert rows.fine == (rows.format in ("q8_0", "q5_0", "float32")), name
        source.drop_pages()
    source.finish()
    assert formats == {"q4_0", "q4_1", "q8_0", "q5_0", "float32", "bfloat16"}


@needs_kernels
@pytest.mark.parametrize("quantize", ["int4", "none", "int8"])
def test_a_gguf_runs_without_being_dequantised_to_disk(
    quantize: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLIPSTREAM_HOME", str(tmp_path / "home"))
    file = tmp_path / "m.gguf"
    write_tiny(file, types=TYPES)
    opened = build.open_target(TargetConfig(model=str(file), dtype="bfloat16", quantize=quantize), rows=1)
    assert not list((tmp_path / "home").rglob("*.safetensors"))
    whole = build.open_target(TargetConfig(model=str(file), dtype="float32"), rows=1)
    assert list((tmp_path / "home").rglob("*.safetensors"))
    ids = torch.tensor([[3, 4, 5, 6]])
    ours, theirs = opened.target.decoder.nodes([0], ids)[0], whole.target.decoder.nodes([0], ids)[0]
    most = 0.15 if quantize == "int4" else 0.03  # int4 rounds what the file holds in float32
    assert 0 < (ours - theirs).norm() < most * theirs.norm()


@needs_kernels
def test_auto_runs_published_codes_unless_a_number_format_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLIPSTREAM_HOME", str(tmp_path / "home"))
    file = tmp_path / "m.gguf"
    write_tiny(file, types=dict.fromkeys(("token_embd", "attn", "ffn_up"), "Q4_0"))
    auto = build.open_target(TargetConfig(model=str(file)), rows=1)
    assert auto.quantize == "int4"
    assert len(auto.notes) == 1
    assert "published codes" in auto.notes[0]
    assert "perplexity not measured" in auto.notes[0]
    asked = build.open_target(TargetConfig(model=str(file), quantize="int4"), rows=1)
    ids = torch.tensor([[3, 4, 5, 6]])
    assert torch.equal(auto.target.decoder.nodes([0], ids)[0], asked.target.decoder.nodes([0], ids)[0])
    assert build.open_target(TargetConfig(model=str(file), dtype="bfloat16"), rows=1).quantize == "none"
    assert build.open_target(TargetConfig(model=str(file), dtype="float32"), rows=1).notes == []
    plain = build.open_target(TargetConfig(model=str(make_model(tmp_path / "folder"))), rows=1)
    assert plain.quantize == "none"  # no codes


@needs_kernels
def test_a_draft_model_rounds_the_finer_codes_of_its_file_to_four_bits(tmp_path: Path) -> None:
    file = tmp_path / "m.gguf"
    write_tiny(file, types={"token_embd": "Q8_0", "attn_q": "Q8_0", "attn_k": "Q5_0", "ffn_up": "Q4_0"})
    ids, sizes = torch.tensor([[3, 4, 5, 6]]), {"max_len": 16}
    way = decoders.draft_way("", torch.bfloat16, "cpu")
    drafts = decoders.open_decoder(file, way, torch.bfloat16, "cpu", **sizes)
    exact = decoders.open_decoder(file, decoders.Way(True, "int4"), torch.bfloat16, "cpu", **sizes)
    ours, theirs = drafts.nodes([0], ids)[0], exact.nodes([0], ids)[0]
    assert 0 < (ours - theirs).norm() < 0.3 * theirs.norm()


@needs_kernels
def test_a_bare_gguf_drafts_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is dequantised to disk, the text is plain decoding's, and two files of one shape have their own costs."""
    monkeypatch.setenv("SLIPSTREAM_HOME", str(tmp_path / "home"))
    for seed in range(3):
        write_tiny(tmp_path / f"{seed}.gguf", types=TYPES, seed=seed)
    plain = LLM(str(tmp_path / "0.gguf"), "none", dtype="bfloat16", quantize="int4", max_rows=2)
    costs = set()
    for name in ("1.gguf", "2.gguf"):
        llm = plain.with_drafter(f"draft_model:{tmp_path / name}", draft_tokens=3)
        ours, theirs = (one.generate("hello", SamplingParams(max_tokens=12, ignore_eos=True)) for one in (llm, plain))
        assert ours.token_ids == theirs.token_ids
        assert ours.stats["num_draft_tokens"] > 0
        assert llm.drafter_folder == tmp_path / name
        costs.add(llm.guess.parts[0].cost)
    assert len(costs) == 2
    assert not list((tmp_path / "home").rglob("*.safetensors"))


@needs_kernels
def test_pages_of_a_file_are_let_go_while_it_is_packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tiny(tmp_path / "m.gguf", types=TYPES | {"token_embd": "Q8_0"})
    dropped: list[float] = []

    def watch(self: GgufFile) -> None:
        before = mapped(tmp_path / "m.gguf")
        drop(self)
        dropped.append(before - mapped(tmp_path / "m.gguf"))

    drop = GgufFile.drop_pages
    monkeypatch.setattr(GgufFile, "drop_pages", watch)
    monkeypatch.setattr(rows, "_PIECE", 64 * 32)
    decoder = decoders.open_decoder(tmp_path / "m.gguf", decoders.Way(True, "int4"), torch.bfloat16, "cpu")
    assert len(dropped) > len(decoder.net.weights.matrices), "a large weight lets go in between"
    if sys.platform == "linux":
        assert sum(dropped) > 0
        assert mapped(tmp_path / "m.gguf") == 0, "nothing keeps the file mapped"


def mapped(file: Path) -> int:
    """Kilobytes of a mapped file that count as this process's memory."""
    maps = Path("/proc/self/smaps")
    lines = maps.read_text().splitlines() if maps.is_file() else []
    starts = [k for k, line in enumerate(lines) if line.endswith(str(file))]
    return sum(int(next(x for x in lines[k:] if x.startswith("Rss:")).split()[1]) for k in starts)


@needs_kernels
def test_a_missing_or_spare_tensor_of_a_gguf_is_named(tmp_path: Path) -> None:
    write_tiny(tmp_path / "m.gguf")
    source = GgufSource(tmp_path / "m.gguf")
    with pytest.raises(WorkError, match=r"m\.gguf: tensor lm_head\.weight \[3, 4\] is missing"):
        source.rows("lm_head.weight", (3, 4))
    with pytest.raises(WorkError, match=r"m\.gguf: tensor model\.embed_tokens\.weight is unknown"):
        source.finish()
