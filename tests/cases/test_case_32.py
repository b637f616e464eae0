"""Case 32: characters of several tokens, several tokens per round, through the engine and the real detokenizer."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator

import pytest
from cases_kit import finish, make_engine, output, request
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers, trainers

from slipstream.drafters.lookup import Lookup, LookupOptions
from slipstream.testing import ToyTarget, scripted
from slipstream.text import Detokenizer, Tokenizer
from slipstream.types import Sequence

MARK = "\N{REPLACEMENT CHARACTER}"
TEXT = "a 👩‍👧 b 한국어 cafe\u0301  é 😀 end"


@functools.cache
def tokenizer() -> Tokenizer:
    """Byte-level, small enough that every character beyond ASCII takes several tokens; spaces lead words."""
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=270, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator(["the end of a cafe and an end"] * 3, trainer)
    return Tokenizer(backend, eos_ids=(), bos_id=None, template=None)


def run(ids: list[int], nodes: int, copy: bool, **params: object) -> tuple[Sequence, list[str]]:
    """Generate `ids` with lookup from a prompt that holds the same ids, or plainly; return the pieces streamed."""
    vocab = tokenizer().vocab
    prompt = [*ids, ids[0]] if copy else [ids[0]]
    target = ToyTarget(scripted(ids[1:], vocab, len(prompt)), vocab, max_len=512)
    drafter = Lookup(LookupOptions(min_ngram=1), vocab=vocab) if copy else None
    engine = make_engine(target, drafter, nodes, detokenizer=lambda: Detokenizer(tokenizer()))
    row = request(prompt=prompt, **{"max_tokens": len(ids) - 1, **params})
    return row, [delta.text for delta in finish(engine, row)]


def splits(ids: list[int], most: int) -> Iterator[list[list[int]]]:
    """Cut `ids` into blocks of `size` ids, starting at every possible place."""
    for size in range(1, most + 1):
        for first in range(1, size + 1):
            cuts = [0, *range(first, len(ids), size), len(ids)]
            yield [ids[a:b] for a, b in itertools.pairwise(cuts)]


def test_case_32_the_text_is_hard_enough() -> None:
    pieces = {char: len(tokenizer().encode(char)) for char in "👩한é😀\u0301"}
    assert min(pieces.values()) >= 2
    assert pieces["😀"] == 4
    assert any(token.startswith("Ġ") and len(token) > 1 for token in tokenizer().get_vocab())


@pytest.mark.parametrize("nodes", range(1, 9))
def test_case_32_streamed_text_is_the_decoding_of_all_ids(nodes: int) -> None:
    ids = tokenizer().encode("\n" + TEXT)
    plain, _ = run(ids, nodes, copy=False)
    row, pieces = run(ids, nodes, copy=True)
    assert output(row) == output(plain) == ids[1:]
    assert "".join(pieces) == row.text == plain.text == tokenizer().decode(ids[1:]) == TEXT
    assert not any(MARK in piece for piece in pieces)
    assert row.stats.num_accepted_tokens > 0  # the blocks really held several tokens


def test_case_32_every_block_boundary() -> None:
    ids = tokenizer().encode(TEXT)
    for blocks in splits(ids, 8):
        stream = Detokenizer(tokenizer())
        sent = ""
        for block in blocks:
            fresh = "".join(stream.push(id) for id in block)
            fresh.encode()  # valid UTF-8: half a surrogate pair would raise
            sent += fresh
            assert TEXT.startswith(sent)
        assert sent + stream.flush() == TEXT


def test_case_32_decoding_each_block_alone_is_the_defect() -> None:
    """Negative control: what this case is about really goes wrong on this text."""
    ids = tokenizer().encode(TEXT)
    wrong = ["".join(tokenizer().decode(block) for block in blocks) for blocks in splits(ids, 8)]
    assert sum(text != TEXT for text in wrong) > len(wrong) // 2


@pytest.mark.parametrize("copy", [False, True])
@pytest.mark.parametrize("missing", [1, 2, 3])
def test_case_32_an_end_inside_a_character_is_marked_once(missing: int, copy: bool) -> None:
    ids = tokenizer().encode("\nab😀")
    row, pieces = run(ids, 4, copy, max_tokens=len(ids) - 1 - missing)
    assert "".join(pieces) == row.text == "ab" + MARK == tokenizer().decode(output(row))
    assert row.finish_reason == "length"


@pytest.mark.parametrize("nodes", range(1, 9))
@pytest.mark.parametrize(
    ("stop", "left"), [(" b", "a 👩‍👧"), ("👧", "a 👩\u200d"), ("é 😀", "a 👩‍👧 b 한국어 cafe\u0301  ")]
)
def test_case_32_stop_strings_beside_and_in_emoji(nodes: int, stop: str, left: str) -> None:
    ids = tokenizer().encode("\n" + TEXT)
    plain, _ = run(ids, nodes, copy=False, stop=[stop])
    row, pieces = run(ids, nodes, copy=True, stop=[stop])
    assert "".join(pieces) == row.text == plain.text == left
    assert output(row) == output(plain)
    assert row.stop_reason == plain.stop_reason == stop


@pytest.mark.model
def test_case_32_default_model_tokenizer() -> None:
    from slipstream import models
    from slipstream.text import load_tokenizer

    real = load_tokenizer(models.resolve(models.DEFAULT))
    ids = real.encode(TEXT)
    stream = Detokenizer(real)
    pieces = [stream.push(id) for id in ids]
    assert "".join(pieces) + stream.flush() == TEXT == real.decode(ids)
    assert "" in pieces  # some character took several tokens
    assert not any(MARK in piece for piece in pieces)
