"""Case 31: the draft model's ids must mean what the target's mean; equal sizes prove nothing, other padding is fine."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

from slipstream.text import Tokenizer, check_vocabularies
from slipstream.types import RequestError

WORDS = [f"w{i}" for i in range(64)]


def backend(words: list[str]) -> Backend:
    return Backend(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token=words[0]))


def tokenizer(words: list[str], eos: tuple[int, ...] = (1,), bos: int | None = 0) -> Tokenizer:
    return Tokenizer(backend(words), eos_ids=eos, bos_id=bos, template=None)


def byte_level() -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Backend(models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    made.decoder = decoders.ByteLevel()
    return Tokenizer(made, eos_ids=(1,), bos_id=0, template=None)


def test_case_31_same_size_but_permuted_ids_are_refused_with_examples() -> None:
    shuffled = WORDS.copy()
    random.Random(0).shuffle(shuffled)
    wrong = [i for i in range(64) if WORDS[i] != shuffled[i]]
    with pytest.raises(RequestError) as caught:
        check_vocabularies(tokenizer(WORDS), tokenizer(shuffled), "big", "small")
    message = str(caught.value)
    assert "big" in message
    assert "small" in message
    assert f"{len(wrong)} of 64" in message
    for i in wrong[:3]:
        assert f"id {i} is {WORDS[i]!r} and {shuffled[i]!r}" in message
    assert "\n" not in message


def test_case_31_sixty_of_sixty_four_equal_are_refused() -> None:
    other = [*WORDS[:60], "x", "y", "z", "q"]
    with pytest.raises(RequestError, match="differ in 4 of 64 shared ids"):
        check_vocabularies(tokenizer(WORDS), tokenizer(other), "big", "small")


def test_case_31_one_moved_id_in_the_middle_is_found() -> None:
    other = WORDS.copy()
    other[17] = "elsewhere"
    with pytest.raises(RequestError, match="id 17 is 'w17' and 'elsewhere'"):
        check_vocabularies(tokenizer(WORDS), tokenizer(other), "big", "small")


def test_case_31_different_eos_and_bos_are_a_warning_and_the_targets_are_used() -> None:
    warnings = check_vocabularies(tokenizer(WORDS), tokenizer(WORDS, eos=(2, 3), bos=None), "big", "small")
    assert len(warnings) == 2
    assert all("big" in line and "small" in line and "target's" in line for line in warnings)
    assert "[1]" in warnings[0]
    assert "[2, 3]" in warnings[0]


def test_case_31_equal_tokenizers_give_no_warning() -> None:
    assert check_vocabularies(tokenizer(WORDS), tokenizer(WORDS), "big", "small") == []


def test_case_31_order_of_eos_ids_is_no_difference() -> None:
    assert check_vocabularies(tokenizer(WORDS, eos=(1, 2)), tokenizer(WORDS, eos=(2, 1)), "big", "small") == []


@pytest.mark.parametrize(("target", "draft"), [(64, 60), (60, 64)])
def test_case_31_ids_only_one_of_them_has_are_a_warning(target: int, draft: int) -> None:
    warnings = check_vocabularies(tokenizer(WORDS[:target]), tokenizer(WORDS[:draft]), "big", "small")
    assert len(warnings) == 1
    assert f"4 ids exist only in {'big' if target > draft else 'small'}" in warnings[0]


def test_case_31_another_kind_of_tokenizer_is_refused() -> None:
    with pytest.raises(RequestError, match="choose a draft model with the target's tokenizer"):
        check_vocabularies(tokenizer(WORDS), byte_level(), "big", "small")


def _model_folder(place: Path, words: list[str]) -> Path:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    sizes |= {"num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 64}
    LlamaForCausalLM(LlamaConfig(vocab_size=len(words), **sizes)).save_pretrained(place)
    made = backend(words)
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.save(str(place / "tokenizer.json"))
    (place / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    return place


def test_case_31_the_library_refuses_at_construction(tmp_path: Path) -> None:
    from slipstream import LLM

    target = _model_folder(tmp_path / "target", WORDS)
    fits = _model_folder(tmp_path / "fits", WORDS)
    wrong = _model_folder(tmp_path / "wrong", WORDS[::-1])
    with pytest.raises(RequestError, match="tokenizers differ in 64 of 64"):
        LLM(str(target), drafter=f"draft_model:{wrong}")
    LLM(str(target), drafter=f"draft_model:{fits}")
