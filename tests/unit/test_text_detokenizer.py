"""Streamed text: pieces joined equal the decoding of all ids, characters come whole and as soon as they are."""

from __future__ import annotations

import functools
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend

from slipstream.text import Detokenizer, Tokenizer

CORPUS = [
    "the cat sat on the mat",
    "Zoë's café, naïve",
    "한국어 텍스트 日本語",
    "👩‍👩‍👧 😀 e\u0301",
    "  two  spaces\n\n\tx",
] * 2


def wrap(backend: Backend) -> Tokenizer:
    return Tokenizer(backend, eos_ids=(), bos_id=None, template=None)


@functools.cache
def byte_level() -> Tokenizer:
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=330, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator(CORPUS, trainer)
    backend.add_special_tokens([AddedToken("<|end|>", special=True)])
    backend.add_tokens([AddedToken("<tool call>"), AddedToken("日本")])  # outside the byte alphabet
    return wrap(backend)


@functools.cache
def sentencepiece_like(start: int = 1) -> Tokenizer:
    words = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256))]
    words += ["▁", "▁▁", "▁the", "▁cat", "s", "é", "�", ".", "한", "x"]
    backend = Backend(models.BPE({w: i for i, w in enumerate(words)}, [], unk_token="<unk>", byte_fallback=True))
    strip = [decoders.Strip(" ", start, 0)] if start else []
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip])
    backend.add_special_tokens(["<s>", "</s>"])
    return wrap(backend)


def words_with(decoder: Any, words: list[str]) -> Tokenizer:
    backend = Backend(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token=words[0]))
    if decoder is not None:
        backend.decoder = decoder
    backend.add_special_tokens(["[S]"])
    return wrap(backend)


@functools.cache
def kinds() -> dict[str, Tokenizer]:
    plain = ["[U]", "a", "b", "é", "�", "."]
    return {
        "byte level": byte_level(),
        "byte level in a sequence": with_decoder(byte_level(), decoders.Sequence([decoders.ByteLevel()])),
        "byte level then fuse and strip": with_decoder(
            byte_level(), decoders.Sequence([decoders.ByteLevel(), decoders.Strip("~", 0, 0)])
        ),
        "sentencepiece": sentencepiece_like(),
        "sentencepiece without strip": sentencepiece_like(0),
        "metaspace": words_with(decoders.Metaspace(), ["[U]", "▁", "▁a", "b", "▁é", "c▁d"]),
        "wordpiece": words_with(decoders.WordPiece(), ["[U]", "##a", "b", ".", "n't", "##."]),
        "end of word": words_with(decoders.BPEDecoder("</w>"), ["[U]", "a</w>", "b", "c</w>"]),
        "none": words_with(None, plain),
    }


def with_decoder(tokenizer: Tokenizer, decoder: Any) -> Tokenizer:
    backend = Backend.from_str(tokenizer.backend.to_str())
    backend.decoder = decoder
    return wrap(backend)


def pieces(tokenizer: Tokenizer, ids: list[int], skip_special: bool = True) -> list[str]:
    stream = Detokenizer(tokenizer, skip_special)
    return [*(stream.push(id) for id in ids), stream.flush()]


@pytest.mark.parametrize("kind", list(kinds()))
@settings(max_examples=200, deadline=None, derandomize=True)
@given(data=st.data(), skip_special=st.booleans())
def test_joined_pieces_are_the_decoding_of_all_ids(kind: str, data: st.DataObject, skip_special: bool) -> None:
    tokenizer = kinds()[kind]
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab + 1), max_size=24))  # two ids beyond the vocabulary
    assert "".join(pieces(tokenizer, ids, skip_special)) == tokenizer.decode(ids, skip_special)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    st.text(alphabet=st.one_of(st.sampled_from("👩‍👧😀한국어e\u0301ñ \n"), st.characters(codec="utf-8")), max_size=20)
)
def test_text_comes_back_whole(text: str) -> None:
    tokenizer = byte_level()
    parts = pieces(tokenizer, tokenizer.encode(text))
    assert "".join(parts) == text == tokenizer.decode(tokenizer.encode(text))
    assert parts[-1] == ""  # every character was sent when its last byte came
    if "\N{REPLACEMENT CHARACTER}" not in text:
        assert not any("\N{REPLACEMENT CHARACTER}" in part for part in parts)


def test_each_piece_comes_with_the_token_that_completes_it() -> None:
    tokenizer = byte_level()
    letters = [byte_id(tokenizer, b) for b in "a😀b".encode()]
    assert pieces(tokenizer, letters) == ["a", "", "", "", "😀", "b", ""]


def test_an_unfinished_character_is_marked_once_at_the_end() -> None:
    tokenizer = byte_level()
    letters = [byte_id(tokenizer, b) for b in "x😀".encode()[:-1]]
    assert pieces(tokenizer, letters) == ["x", "", "", "", "\N{REPLACEMENT CHARACTER}"]


def test_broken_bytes_do_not_hold_back_what_follows() -> None:
    tokenizer = byte_level()
    ids = [byte_id(tokenizer, 0xE2), byte_id(tokenizer, ord("a"))]
    assert pieces(tokenizer, ids) == ["", "\N{REPLACEMENT CHARACTER}a", ""]


def test_sentencepiece_words_stream_at_once_and_byte_runs_when_they_end() -> None:
    tokenizer = sentencepiece_like()
    vocab = tokenizer.get_vocab()
    ids = [vocab[w] for w in ("<s>", "▁the", "<0xF0>", "<0x9F>", "<0x98>", "<0x80>", "▁cat", "s")]
    assert pieces(tokenizer, ids) == ["", "the", "", "", "", "", "😀 cat", "s", ""]


def test_two_streams_do_not_share_state() -> None:
    tokenizer = byte_level()
    one, two = Detokenizer(tokenizer), Detokenizer(tokenizer)
    first, *rest = (byte_id(tokenizer, b) for b in "é".encode())
    assert one.push(first) == ""
    assert two.push(byte_id(tokenizer, ord("a"))) == "a"
    assert one.push(rest[0]) == "é"


@pytest.mark.parametrize("kind", ["byte level", "sentencepiece", "metaspace"])
def test_cost_per_token_does_not_grow_with_length(kind: str) -> None:
    """The work is counted, not timed: ids handed to the tokenizer's decoder stay linear in the length."""
    tokenizer = kinds()[kind]
    counted = 0
    decode = tokenizer.decode

    def counting(ids: list[int], skip_special: bool = True) -> str:
        nonlocal counted
        counted += len(ids)
        return decode(ids, skip_special)

    tokenizer.decode = counting  # type: ignore[method-assign]
    try:
        pieces(tokenizer, [3 + i % 250 for i in range(4000)] if kind == "sentencepiece" else [1, 2, 3] * 1333)
    finally:
        del tokenizer.decode
    assert counted <= 4 * 4000


def test_a_token_costs_microseconds() -> None:
    tokenizer = byte_level()
    ids = tokenizer.encode("the cat sat on the mat " * 400)
    stream = Detokenizer(tokenizer)
    start = time.process_time()
    for id in ids:
        stream.push(id)
    assert (time.process_time() - start) / len(ids) < 1e-4  # a fifth of the budget of a round, on a slow machine


def byte_id(tokenizer: Tokenizer, byte: int) -> int:
    from slipstream.text.detokenizer import _byte_of_letter

    letter = next(letter for letter, value in _byte_of_letter().items() if value == byte)
    return int(tokenizer.backend.token_to_id(letter))
