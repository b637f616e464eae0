"""Scoring drafts on an accelerator: a pass is packed, sent in one copy, and run or replayed at its size.

In: nodes and their ids. Out: logits [B, N, V] and taps [B, N, H], zeros at padding, the caller's own. Recording can be
switched off with SLIPSTREAM_CUDA_GRAPHS=0, and all of this with SLIPSTREAM_BATCHED=0; SLIPSTREAM_COMPILE=1 compiles
the layers. A device that cannot record a pass runs it as it is, and says so once.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence as Seq
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from slipstream.devices import fill, known, on_host
from slipstream.nets.batched import BatchPass, Bucket, Frame, bucket_of, pack
from slipstream.nets.compiling import compiled, wanted
from slipstream.nets.graphs import CudaRecorder, Recorder, Recordings, Run
from slipstream.nets.kv_cache import KVCache
from slipstream.nets.passes import Nodes

if TYPE_CHECKING:
    from slipstream.nets.decoder import Decoder

GRAPHS, BATCHED = "SLIPSTREAM_CUDA_GRAPHS", "SLIPSTREAM_BATCHED"


class BatchRunner:
    """Run a decoder over all rows of a pass at once, `max_nodes` nodes a row at most."""

    def __init__(self, net: Decoder, cache: KVCache, max_nodes: int, recorder: Recorder | None = None) -> None:
        self.net, self.cache, self.max_nodes = net, cache, max_nodes
        self.recordings = None if recorder is None else Recordings(recorder)
        self._places = cache.shape.max_len + cache.shape.scratch
        self._frames: dict[Bucket, Frame] = {}
        for table in net.ropes.values():
            table.reserve(self._places)  # a table that grew would leave a recording with the old one

    def __call__(self, nodes: Nodes, tokens: Tensor, taps: Seq[int]) -> tuple[Tensor, dict[int, Tensor]]:
        """Score tokens [B, N] -> logits [B, N, V] and {tap: [B, N, H]}; real ids lie inside the vocabulary."""
        rows, n = tokens.shape
        bucket = bucket_of(nodes, max_rows=self.cache.shape.rows, max_nodes=self.max_nodes, places=self._places)
        frame = self._frame(bucket)
        ids = on_host(tokens).tolist() if known(tokens) else None
        packed = pack(
            nodes, None if ids is None else [row[:m] for row, m in zip(ids, nodes.counts, strict=True)], bucket
        )
        fill(frame.buffer, packed)
        if ids is None:
            width = max(nodes.counts)
            safe = tokens[:, :width].clamp(0, self.net.config.vocab - 1)  # padding may hold anything
            frame.tokens[:rows, :width].copy_(safe)
        wanted = sorted(set(taps))
        outputs = self._run((bucket, *wanted), lambda: self._pass(frame, wanted))
        # a recording writes its next outputs over these
        out = [_cut(x, rows, n) for x in outputs]
        return out[0], {tap: out[1 + wanted.index(tap)] for tap in taps}

    def _frame(self, bucket: Bucket) -> Frame:
        """One for each size; a recording keeps its own alive."""
        if bucket not in self._frames:
            with torch.inference_mode(False):  # or it could not be filled outside of inference mode
                buffer = torch.zeros(bucket.size, dtype=torch.int64, device=self.net.device)
            self._frames[bucket] = Frame(buffer, bucket)
        return self._frames[bucket]

    def _pass(self, frame: Frame, taps: Seq[int]) -> list[Tensor]:
        bucket = frame.bucket
        work = BatchPass(self.net.config, self.cache, frame, self.net.rotations)
        logits, states = self.net.run(frame.tokens.flatten(), work, taps, head=True)
        padding = ~frame.real()[..., None]
        shape = (bucket.rows, bucket.nodes, -1)
        return [x.view(shape).masked_fill(padding, 0) for x in (logits, *(states[tap] for tap in taps))]

    def _run(self, key: tuple[object, ...], run: Run) -> list[Tensor]:
        if self.recordings is None:
            return run()
        try:
            with torch.inference_mode(False), torch.no_grad():
                return self.recordings.run(key, run)
        except RuntimeError as error:
            self.recordings = None
            warnings.warn(
                f"a pass cannot be recorded ({error}): passes run kernel by kernel from now on, which is slower",
                RuntimeWarning,
                stacklevel=4,
            )
            return run()


def runner_for(net: Decoder, cache: KVCache, max_nodes: int) -> BatchRunner | None:
    """Return the runner for the device of a network; None: rows are run one by one (a CPU, or switched off)."""
    if net.device.type == "cpu" or os.environ.get(BATCHED) == "0":
        return None
    record = net.device.type == "cuda" and torch.cuda.is_available() and os.environ.get(GRAPHS) != "0"
    return BatchRunner(compiled(net) if wanted() else net, cache, max_nodes, CudaRecorder() if record else None)


def _cut(x: Tensor, rows: int, n: int) -> Tensor:
    """Return the part of x [B', N', W] that was asked for, in memory of its own -> [B, N, W]."""
    part = x[:rows, : min(n, x.shape[1])]
    return part.clone() if part.shape[1] == n else torch.nn.functional.pad(part, (0, 0, 0, n - part.shape[1]))
