"""The contents of a GGUF file: fields as plain values, tensors as views into the mapped file. Little-endian, v2 and v3.

In: a path. Out: a `GgufFile`, within a fraction of a second for gigabytes; nothing is dequantised. A damaged file is a
`WorkError`.
"""

from __future__ import annotations

import mmap
import struct
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from slipstream.types import WorkError

FLOATS = frozenset({"F32", "F16", "BF16", "F64"})
_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9
_TYPED = {"F32": np.float32, "F16": np.float16, "F64": np.float64}
_BLOCK_VALUES = 1 << 21  # values dequantised at a time by each thread
_WHOLE = 64  # rows of a block are a multiple of this
_THREADS = 2


@dataclass(frozen=True)
class GgufTensor:
    """One tensor: `shape` fastest dimension first, as in the file; `data` its rows: blocks as bytes, or floats."""

    name: str
    tensor_type: Any
    shape: list[int]
    data: np.ndarray

    def values(self) -> np.ndarray:
        """Return the dequantised values, float32, slowest dimension first."""
        out = np.empty([int(n) for n in reversed(self.shape)], dtype=np.float32)
        for start, block in self.blocks():
            out[start : start + len(block)] = block
        return out

    def blocks(self, change: Callable[[np.ndarray], Any] = np.asarray) -> Iterator[tuple[int, Any]]:
        """Yield (first row, `change` of its dequantised rows) in order, a few million values at a time."""
        from gguf import dequantize

        def block(start: int) -> Any:
            rows = self.data[start : start + step]
            return change(np.asarray(dequantize(rows, self.tensor_type), dtype=np.float32))

        step = len(self.data) if self.data.ndim == 1 else max(_WHOLE, _BLOCK_VALUES // self.shape[0] // _WHOLE * _WHOLE)
        starts = range(0, len(self.data), step)
        with ThreadPoolExecutor(_THREADS) as pool:  # numpy lets other threads run
            ahead = deque(pool.submit(block, start) for start in starts[:_THREADS])
            for place, start in enumerate(starts):
                ahead.extend(
                    pool.submit(block, next_one) for next_one in starts[place + _THREADS : place + _THREADS + 1]
                )
                yield start, ahead.popleft().result()


@dataclass(frozen=True)
class GgufFile:
    """An open file."""

    fields: dict[str, Any]
    tensors: list[GgufTensor]
    whole: mmap.mmap

    @property
    def coded(self) -> bool:
        """True where most of the weights are codes of a few bits, not floating-point numbers."""
        sizes = [int(np.prod(t.shape)) for t in self.tensors]
        coded = [n for n, t in zip(sizes, self.tensors, strict=True) if t.tensor_type.name not in FLOATS]
        return 2 * sum(coded) > sum(sizes)

    def drop_pages(self) -> None:
        """Take what was read out of this process's memory; if it is read again it comes from the disk's cache."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self.whole.madvise(mmap.MADV_DONTNEED)


def open_gguf(gguf_file: Path) -> GgufFile:
    """Open a GGUF file; a damaged one is a WorkError."""
    try:
        with gguf_file.open("rb") as stream:
            whole = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        return _Reader(whole).file()
    except (ValueError, IndexError, KeyError, OverflowError, struct.error, UnicodeDecodeError) as error:
        raise damaged(gguf_file, error) from error


def damaged(gguf_file: Path, error: Exception) -> WorkError:
    """Return the error for a file that does not hold what it announces."""
    reason = " ".join(str(error).split())
    return WorkError(f"{gguf_file.name}: not a complete GGUF file ({reason}); fetch it again")


class _Reader:
    """Reads from front to back; `at` is the next byte."""

    def __init__(self, whole: mmap.mmap) -> None:
        self._whole, self._at = whole, 0

    def file(self) -> GgufFile:
        if self._whole[:4] != b"GGUF":
            raise ValueError("it does not begin with GGUF")
        self._at = 4
        version = self._scalar("<I")
        if version not in (2, 3):
            raise ValueError(f"version {version} is not 2 or 3")
        tensors, entries = self._scalar("<Q"), self._scalar("<Q")
        fields = {self._string(): self._value(self._scalar("<I")) for _ in range(entries)}
        infos = [self._info() for _ in range(tensors)]
        align = int(fields.get("general.alignment", 32))
        start = -(-self._at // align) * align
        return GgufFile(fields, [self._tensor(start, *info) for info in infos], self._whole)

    def _scalar(self, form: str) -> Any:
        (value,) = struct.unpack_from(form, self._whole, self._at)
        self._at += struct.calcsize(form)
        return value

    def _string(self) -> str:
        start = self._at + 8
        end = start + self._scalar("<Q")
        if end > len(self._whole):
            raise ValueError("a text goes beyond the end")
        self._at = end
        return self._whole[start:end].decode("utf-8")

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind != _ARRAY:
            return self._scalar(_SCALARS[kind])
        kind, count = self._scalar("<I"), self._scalar("<Q")
        if kind == _STRING:
            return self._strings(count)
        if kind not in _SCALARS:
            return [self._value(kind) for _ in range(count)]
        found = np.frombuffer(self._whole, np.dtype(_SCALARS[kind]), count, self._at)
        self._at += found.nbytes
        return found.tolist()

    def _strings(self, count: int) -> list[str]:
        """Vocabularies have hundreds of thousands: one loop, without a call for each."""
        length, whole, at, found = struct.Struct("<Q").unpack_from, self._whole, self._at, []
        for _ in range(count):
            end = at + 8 + length(whole, at)[0]
            found.append(whole[at + 8 : end].decode("utf-8"))
            at = end
        if at > len(whole):
            raise ValueError("a text goes beyond the end")
        self._at = at
        return found

    def _info(self) -> tuple[str, list[int], int, int]:
        name = self._string()
        shape = [int(self._scalar("<Q")) for _ in range(self._scalar("<I"))]
        return name, shape, self._scalar("<I"), self._scalar("<Q")

    def _tensor(self, start: int, name: str, shape: list[int], kind: int, offset: int) -> GgufTensor:
        from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

        form = GGMLQuantizationType(kind)
        block, size = GGML_QUANT_SIZES[form]
        row = shape[0] // block * size
        rows = [int(n) for n in reversed(shape[1:])]
        data = np.frombuffer(self._whole, np.uint8, row * int(np.prod(rows)), start + offset).reshape([*rows, row])
        return GgufTensor(name, form, shape, data.view(_TYPED[form.name]) if form.name in _TYPED else data)
