"""Text out of a stream of token ids: each id in, the newly complete characters out.

The pieces joined are exactly `tokenizer.decode(all ids)`; nothing is sent twice or taken back. Byte-level tokenizers
are decoded byte by byte; others by decoding a short window after one token of context. Cost per token is constant.
"""

from __future__ import annotations

import codecs
import functools
import json
import re
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from slipstream.text.tokenizer import Tokenizer

_BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class Detokenizer:
    """Turn one sequence's ids into text as they come. One object per sequence."""

    def __init__(self, tokenizer: Tokenizer, skip_special: bool = True) -> None:
        self._hidden = tokenizer.special_ids if skip_special else frozenset()
        steps = _decoder_steps(tokenizer.backend)
        names = [step["type"] for step in steps]
        self._stream: _Stream
        if names in (["ByteLevel"], ["ByteLevel", "Fuse"]):
            self._stream = _Bytes(tokenizer)
        else:
            self._stream = _Window(tokenizer, byte_runs="ByteFallback" in names, byte_level="ByteLevel" in names)

    def push(self, id: int) -> str:
        """Return the characters that `id` completes; empty while a character is unfinished."""
        return "" if id in self._hidden else self._stream.push(id)

    def flush(self) -> str:
        """Return what is left when no more ids will come: U+FFFD for a character the model did not finish."""
        return self._stream.flush()


class _Stream(Protocol):
    def push(self, id: int) -> str: ...

    def flush(self) -> str: ...


class _Bytes:
    """Byte-level BPE: every token is a piece of UTF-8, so an incremental decoder is exact."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._pieces, self._token_of = tokenizer.pieces, tokenizer.token_of

    def push(self, id: int) -> str:
        piece = self._pieces.get(id)
        if piece is None:
            piece = self._pieces[id] = _bytes_of(self._token_of(id) or "")
        return self._decode(piece)

    def flush(self) -> str:
        return self._decode(b"", True)


class _Window:
    """Any other decoder: what a token adds is the text with it minus the text without it, after one token of context.

    A run of byte tokens waits for its end: the decoder shows it as text only if all of it is valid UTF-8.
    """

    def __init__(self, tokenizer: Tokenizer, byte_runs: bool, byte_level: bool) -> None:
        self._decode = functools.partial(tokenizer.decode, skip_special=False)
        self._token_of = tokenizer.token_of
        self._byte_runs, self._byte_level = byte_runs, byte_level
        self._ids: list[int] = []  # one token of context, already sent, then those not sent yet
        self._sent = ""  # text of the context

    def push(self, id: int) -> str:
        token = self._token_of(id)
        if token is None:
            return ""
        self._ids.append(id)
        if self._byte_runs and _BYTE_TOKEN.fullmatch(token):
            return ""
        text = self._decode(self._ids)
        if self._byte_level and text.endswith(_REPLACEMENT):
            return ""
        fresh = text[len(self._sent) :]
        self._ids = [id]
        self._sent = self._decode(self._ids)
        return fresh

    def flush(self) -> str:
        fresh = self._decode(self._ids)[len(self._sent) :]
        self._ids, self._sent = [], ""
        return fresh


def _decoder_steps(backend: Any) -> list[dict[str, Any]]:
    if backend.decoder is None:
        return []
    return _flat(json.loads(backend.decoder.__getstate__()))


def _flat(decoder: dict[str, Any]) -> list[dict[str, Any]]:
    if decoder["type"] != "Sequence":
        return [decoder]
    return [step for inner in decoder["decoders"] for step in _flat(inner)]


def _bytes_of(token: str) -> bytes:
    table = _byte_of_letter()
    try:
        return bytes([table[letter] for letter in token])
    except KeyError:  # an added token holds plain text, not the byte alphabet
        return token.encode()


@functools.cache
def _byte_of_letter() -> dict[str, int]:
    """The byte-level alphabet: printable Latin-1 letters stand for themselves, other bytes for U+0100 onwards."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    letters = {chr(byte): byte for byte in plain}
    return letters | {chr(0x100 + i): byte for i, byte in enumerate(others)}
