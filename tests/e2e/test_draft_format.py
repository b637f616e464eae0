"""The draft model's weight format: its own choice, free of the target's, never seen in the text; q is its law."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from slipstream import LLM, SamplingParams, decoders, kernels
from slipstream.drafters.draft_model import DraftModel
from slipstream.sampling import RequestRngs
from slipstream.sampling.laws import draft_law, fit_vocab
from slipstream.types import RequestError, Sequence
from tiny_model import make_model

pytestmark = pytest.mark.skipif(not kernels.available(), reason=f"CPU kernels: {kernels.reason()}")

PROMPTS = ["the cat sat on", "one two three", "the dog"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("target"), layers=3)


@pytest.fixture(scope="module")
def plain(model: Path) -> LLM:
    return LLM(str(model), "none", dtype="bfloat16", max_rows=3, max_model_len=96)


def texts(llm: LLM) -> list[list[int]]:
    return [out.token_ids for out in llm.generate(PROMPTS, SamplingParams(max_tokens=20, ignore_eos=True))]


def test_four_bits_are_the_default_whatever_the_target_is_held_in() -> None:
    way = decoders.draft_way("", torch.bfloat16, "cpu")
    assert (way.kernels, way.quantize) == (True, "int4")
    assert decoders.draft_way("none", torch.bfloat16, "cpu").quantize == "none"
    assert decoders.draft_way("", torch.float32, "cpu") == decoders.Way(False), "float32 is asked for as a reference"
    assert decoders.draft_way("", torch.bfloat16, "cuda") == decoders.Way(False)
    with pytest.raises(RequestError, match=r"quantize='q4' is not one of none"):
        decoders.draft_way("q4", torch.bfloat16, "cpu")


def test_without_kernels_it_runs_on_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "_reason", "the extension is not there")
    assert not decoders.draft_way("", torch.bfloat16, "cpu").kernels
    with pytest.raises(RequestError, match="needs the CPU kernels"):
        decoders.draft_way("int4", torch.bfloat16, "cpu")


@pytest.mark.parametrize("form", ["", "none", "int4", "int8", "w8a8"])
def test_the_text_is_plain_decodings_in_every_format(form, model, plain):
    spec = f"draft_model:{model}" + (f"?quantize={form}" if form else "")
    llm = plain.with_drafter(spec, draft_tokens=3)
    assert texts(llm) == texts(plain)
    said = [note for note in llm.notes if note.startswith("draft model:")]
    assert len(said) == 1
    assert ("4-bit" in said[0]) == (form in ("", "int4"))


@pytest.mark.parametrize("form", ["none", "int4", "w8a8"])
def test_q_is_the_law_of_the_logits_that_were_used(form, model):
    way = decoders.draft_way(form, torch.bfloat16, "cpu")
    drafting, again = (decoders.open_decoder(model, way, torch.bfloat16, "cpu", max_len=64) for _ in range(2))
    vocab = drafting.config.vocab
    drafter = DraftModel(drafting, vocab=vocab, max_rows=1)
    row = Sequence(0, [3, 1, 4, 1, 5], 5, SamplingParams(temperature=0.8, top_p=0.9, seed=5), seed=5)
    draft = drafter.propose([row], [3], RequestRngs([row]))
    text = [*row.tokens, *draft.tokens[0, 1:].tolist()]
    assert draft.q is not None
    asked = len(row.tokens) - 1  # what is read as a prompt; the last token is decoded
    for depth in range(3):
        fed = text[: len(row.tokens) + depth]
        again.release(0)
        again.extend(0, fed[:asked], prompt=True)
        logits, _ = again.nodes([0], torch.tensor([fed[asked:]]))
        wanted = draft_law([row], [fed], fit_vocab(logits[:, -1].float(), vocab, logits=True))
        assert torch.equal(draft.q[:, depth], wanted)


@pytest.mark.parametrize("form", ["none", "int4"])
def test_a_head_of_the_first_ids_drafts_only_those_and_takes_less_memory(form, model, plain):
    few, whole = (
        plain.with_drafter(f"draft_model:{model}?quantize={form}&head_ids={n}", draft_tokens=3) for n in (9, 0)
    )
    drafted: list[int] = []
    few.engine.trace = lambda found: drafted.extend(found.tokens[1:])
    assert texts(few) == texts(plain) == texts(whole)
    assert drafted
    assert max(drafted) < 9
    narrow, full = (llm.engine.drafter._cache.decoder.net for llm in (few, whole))
    assert narrow.vocab == 9 < full.vocab
    assert narrow.weights.nbytes < full.weights.nbytes or form == "none", "one table serves embedding and head"
    ids = torch.arange(full.vocab)
    assert torch.equal(narrow.bare_embed(ids), full.bare_embed(ids)), "it reads every id"


def test_a_head_of_less_than_no_ids_is_refused(model, plain):
    with pytest.raises(RequestError, match=r"head_ids=-1 must be a whole number, 0 \(all ids\) or more"):
        plain.with_drafter(f"draft_model:{model}?head_ids=-1")
