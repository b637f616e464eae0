"""The one transformer decoder: every family of `families.py`, with hidden-state taps.

`Decoder` is the network: rows of hidden state in, rows out, no state of its own. `CachedDecoder` adds a static cache:
prompts go in with `extend`, drafts are scored with `nodes` (nothing committed) and kept with `keep`. The arithmetic
follows the order of casts of the reference implementation of each family. No sampling and no decoding loop here.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from slipstream.devices import known, listed, moved, refuse
from slipstream.nets.batch_runner import runner_for
from slipstream.nets.families import DecoderConfig, read_config
from slipstream.nets.kv_cache import CacheShape, KVCache
from slipstream.nets.layers import RopeTable, gated, linear, rms_norm, rotate
from slipstream.nets.passes import Nodes, Pass, Rotations, row_pass
from slipstream.nets.quantised import quantised
from slipstream.nets.weights import LayerWeights, Weights, as_dtype, load_weights, read_json
from slipstream.types import RequestError

_CHUNK = 512  # tokens of prompt per pass: bounds the mask and the activations


class Decoder:
    """The layers. Hidden states are [R, H]: the entries of each batch row, one row after the other, no padding."""

    def __init__(self, config: DecoderConfig, weights: Weights, dtype: torch.dtype, device: torch.device) -> None:
        self.config, self.weights, self.dtype, self.device = config, weights, dtype, device
        ropes = {rope for rope in config.ropes if rope is not None}
        self.ropes = {rope: RopeTable(rope, config.head_dim, dtype, device) for rope in ropes}
        scale = config.embed_scale
        self.embed_scale = None if scale is None else torch.tensor(scale).to(device, dtype)

    def embed(self, tokens: Tensor) -> Tensor:
        """Tokens [R] -> [R, H], as fed to the first layer."""
        h = self.weights.embed[tokens]
        return h if self.embed_scale is None else h * self.embed_scale

    def rotations(self, positions: Tensor, last: int) -> Rotations:
        """Return the rotary tables at positions [R], none of which is above `last`."""
        return {rope: table.rows(positions, last) for rope, table in self.ropes.items()}

    @torch.no_grad()
    def run(self, ids: Tensor, work: Pass, taps: Seq[int], head: bool) -> tuple[Tensor, dict[int, Tensor]]:
        """Run all layers over ids [R] -> logits [R, V] (empty without `head`) and taps [R, H]."""
        layers = self.config.layers
        states: dict[int, Tensor] = {}
        h = self.embed(ids)
        for index in range(layers):
            if index in taps:
                states[index] = h.clone()
            h = self.layer(index, h, work)
        if layers in taps:
            states[layers] = h
        normed = self.norm(h) if head or -1 in taps else h
        if -1 in taps:
            states[-1] = normed
        return (self.logits(normed) if head else h[:0]), states

    def layer(self, index: int, h: Tensor, work: Pass) -> Tensor:
        """Add one layer to the residual stream h [R, H] in place; the pass takes its keys and values."""
        w, heads, rope = self.weights.layers[index], self.config.heads, self.config.ropes[index]
        qk, v = self.before(h, w, None if rope is None else work.rotations[rope])
        return self.after(h, work.attend(index, qk[:, :heads], qk[:, heads:], v), w)

    def before(self, h: Tensor, w: LayerWeights, turn: tuple[Tensor, Tensor] | None) -> tuple[Tensor, Tensor]:
        """Return what a layer's attention takes of h [R, H]: queries and keys [R, heads + KV, D], values [R, KV, D]."""
        c = self.config
        qkv = w.qkv(rms_norm(h, w.attn_in, c.eps)).view(h.shape[0], c.heads + 2 * c.kv_heads, c.head_dim)
        qk, v = qkv[:, : c.heads + c.kv_heads], qkv[:, c.heads + c.kv_heads :]
        if w.q_norm is not None:
            qk = self._normed(qk, w)
        return (qk if turn is None else rotate(qk, *turn)), v

    def after(self, h: Tensor, x: Tensor, w: LayerWeights) -> Tensor:
        """Add attended heads x [R, heads * D], and what the MLP makes of the sum, to h [R, H] in place."""
        eps = self.config.eps
        x = w.out(x)
        h += x if w.attn_out is None else rms_norm(x, w.attn_out, eps)
        x = w.down(gated(w.gate_up(rms_norm(h, w.mlp_in, eps)), self.config.activation))
        h += x if w.mlp_out is None else rms_norm(x, w.mlp_out, eps)
        return h

    def norm(self, h: Tensor) -> Tensor:
        """Apply the final norm: [R, H] -> [R, H]."""
        return rms_norm(h, self.weights.norm, self.config.eps)

    def bare_embed(self, tokens: Tensor) -> Tensor:
        """Tokens [R] -> [R, H], without the model's scale."""
        return self.weights.embed[tokens]

    def bare_logits(self, x: Tensor) -> Tensor:
        """Normed states [R, H] -> logits [R, V], without the model's cap."""
        return self.weights.head(x)

    def logits(self, x: Tensor) -> Tensor:
        """Normed states [R, H] -> logits [R, V]."""
        logits, cap = self.weights.head(x), self.config.logit_cap
        return logits if cap is None else torch.tanh(logits / cap) * cap

    def _normed(self, qk: Tensor, w: LayerWeights) -> Tensor:
        heads, eps = self.config.heads, self.config.eps
        assert w.q_norm is not None
        assert w.k_norm is not None
        return torch.cat([rms_norm(qk[:, :heads], w.q_norm, eps), rms_norm(qk[:, heads:], w.k_norm, eps)], dim=1)


class CachedDecoder:
    """A decoder with one cache slot per row. Only `extend`, `keep`, `truncate` and `release` change what is committed.

    `config.vocab` is the number of real token ids (columns of the logits), `config.max_len` the longest sequence.
    """

    own_threads = False  # torch's do the work
    peaks: Tensor | None = None  # [B, N] of the last `nodes`, where the network says them (types.Scores)

    def __init__(self, net: Decoder, *, vocab: int, max_rows: int, max_len: int, max_nodes: int) -> None:
        self.net, self.max_rows, self.max_nodes = net, max_rows, max_nodes
        self.config = replace(net.config, vocab=vocab, max_len=max_len)
        c = net.config
        shape = CacheShape(c.layers, max_rows, c.kv_heads, c.head_dim, max_len, max_nodes)
        self.cache = KVCache(shape, net.dtype, net.device)
        self.runner = runner_for(net, self.cache, max_nodes)  # None: rows are run one by one
        self._scored: dict[int, list[int]] = {}  # slot -> parents of the nodes in its scratch

    @torch.no_grad()
    def extend(self, slot: int, tokens: Seq[int], taps: Seq[int] = (), *, prompt: bool = True) -> dict[int, Tensor]:
        """Commit tokens to a slot and return {tap: [T, H]}. A failure leaves the slot as it was.

        `prompt`: they are part of a prompt, else tokens that were decoded: the bits of a row may depend on that.
        """
        start = self._start(slot)
        if start + len(tokens) > self.config.max_len:
            have = f"slot {slot} holds {start} tokens"
            raise RequestError(f"{have}; {len(tokens)} more do not fit into max_len {self.config.max_len}")
        self._scored.pop(slot, None)
        felt: dict[int, list[Tensor]] = {tap: [] for tap in taps}
        self._check_taps(taps)
        for at in range(0, len(tokens), _CHUNK):
            ids = self._ids(torch.tensor(tokens[at : at + _CHUNK]))
            nodes = Nodes([slot], [start + at], [len(ids)], prompt=prompt)
            _, states = self.net.run(moved(ids, self.net.device), self._rows(nodes), taps, head=False)
            for tap in taps:
                felt[tap].append(states[tap])
        self.cache.lengths[slot] = start + len(tokens)
        empty = torch.empty(0, self.config.hidden, dtype=self.net.dtype, device=self.net.device)
        return {tap: torch.cat(parts) if parts else empty for tap, parts in felt.items()}

    def nodes(
        self,
        slots: Seq[int],
        tokens: Tensor,
        parents: Tensor | None = None,
        taps: Seq[int] = (),
        counts: Seq[int] | None = None,
    ) -> tuple[Tensor, dict[int, Tensor]]:
        """Score tokens [B, N] behind each slot; node i sits at position length + depth(i). Commits nothing.

        `parents` [B, N] (node 0: -1, others earlier than their child); None is a chain. Row b has `counts[b]` nodes
        (None: N); the rest is padding, which is neither read nor computed. Returns logits [B, N, V] in the network's
        dtype and {tap: [B, N, H]}, zeros at padding.
        """
        rows, n = tokens.shape
        starts = [self._start(slot) for slot in slots]
        if len(starts) != rows or len(set(slots)) != rows:
            raise RequestError(f"{rows} rows of tokens for slots {list(slots)}; one distinct slot per row is needed")
        if not 1 <= n <= self.max_nodes:
            raise RequestError(f"{n} nodes in one pass; this decoder was made for 1 to {self.max_nodes} (max_nodes)")
        self._check_taps(taps)
        lengths = _counts(rows, n, counts)
        ids = self._ids(tokens, lengths)
        trees = None
        if parents is not None:
            trees = [_checked(p[:m]) for p, m in zip(listed(parents), lengths, strict=True)]
        for slot in slots:
            self._scored.pop(slot, None)
        work = Nodes(list(slots), starts, lengths, trees)
        scored = self._one_by_one(work, ids, taps) if self.runner is None else self.runner(work, ids, taps)
        for b, slot in enumerate(slots):
            self._scored[slot] = trees[b] if trees else list(range(-1, lengths[b] - 1))
        return scored

    def keep(self, slots: Seq[int], paths: Seq[list[int]]) -> None:
        """Commit node 0 and the nodes of each path, in order, from the last `nodes` of those slots."""
        checked = [self._path(slot, list(path)) for slot, path in zip(slots, paths, strict=True)]
        for slot, path in zip(slots, checked, strict=True):
            self.cache.keep(slot, path)
            del self._scored[slot]

    def truncate(self, slot: int, length: int) -> None:
        """Forget the tokens of a slot from `length` on."""
        self._start(slot)
        self.cache.truncate(slot, length)
        self._scored.pop(slot, None)

    def release(self, slot: int) -> None:
        """Empty a slot."""
        self.truncate(slot, 0)

    def length(self, slot: int) -> int:
        """Return the number of committed tokens of a slot."""
        return self._start(slot)

    def memory(self) -> int:
        """Return the bytes of weights and cache (on a CPU, cache pages never written take no memory)."""
        return self.net.weights.nbytes + self.cache.nbytes

    def _start(self, slot: int) -> int:
        if not 0 <= slot < self.max_rows:
            raise RequestError(f"slot {slot} is not one of 0..{self.max_rows - 1} (max_rows)")
        return self.cache.lengths[slot]

    def _ids(self, tokens: Tensor, counts: Seq[int] | None = None) -> Tensor:
        """Check ids before the lookup: on a GPU a wrong one would take the whole process down."""
        vocab = self.net.config.vocab
        if known(tokens):
            for line in [listed(tokens)] if counts is None else real_ids(tokens, counts):
                if line and not 0 <= min(line) <= max(line) < vocab:
                    raise _no_id(next(token for token in line if not 0 <= token < vocab), vocab)
            return tokens
        wrong = (tokens < 0) | (tokens >= vocab)
        if counts is not None and min(counts, default=0) < tokens.shape[1]:
            n = torch.arange(tokens.shape[1])
            wrong = wrong & moved(n < torch.tensor(counts)[:, None], wrong.device)
        refuse(wrong, lambda: _no_id(int(tokens[wrong][0]), vocab))
        return tokens

    def _check_taps(self, taps: Seq[int]) -> None:
        for tap in taps:
            if not -1 <= tap <= self.config.layers:
                raise RequestError(f"tap {tap} is not one of -1..{self.config.layers}")

    def _path(self, slot: int, path: list[int]) -> list[int]:
        parents = self._scored.get(slot)
        if parents is None:
            raise RequestError(f"slot {slot}: nothing to keep, its last pass was not `nodes` or was already kept")
        for before, node in zip([0, *path], path, strict=False):
            if not 0 < node < len(parents) or parents[node] != before:
                raise RequestError(f"slot {slot}: path {path} does not go from node {before} to a child of it")
        length = self.cache.lengths[slot] + 1 + len(path)
        if length > self.config.max_len:
            raise RequestError(f"slot {slot}: keeping {length} tokens would pass max_len {self.config.max_len}")
        return path

    def _rows(self, nodes: Nodes) -> Pass:
        net = self.net
        return row_pass(net.config, self.cache, nodes, net.rotations, net.weights.embed)

    def _one_by_one(self, nodes: Nodes, tokens: Tensor, taps: Seq[int]) -> tuple[Tensor, dict[int, Tensor]]:
        """Score the nodes there are, without padding; pad what comes out."""
        rows, n = tokens.shape
        real = places(n, nodes.counts)
        ids = tokens.flatten() if real is None else tokens.flatten()[moved(real, tokens.device)]
        logits, states = self.net.run(ids.to(self.net.device), self._rows(nodes), taps, head=True)
        return padded(logits, rows, n, real), {tap: padded(x, rows, n, real) for tap, x in states.items()}


def real_ids(tokens: Tensor, counts: Seq[int]) -> list[list[int]]:
    """Return the ids of the nodes there are, row by row, of tokens [B, N] that the host knows."""
    return [line[:m] for line, m in zip(listed(tokens), counts, strict=True)]


def _no_id(token: int, vocab: int) -> RequestError:
    return RequestError(f"token id {token} is not one of 0..{vocab - 1}")


def _checked(parents: list[int]) -> list[int]:
    if parents[0] != -1 or any(not 0 <= parent < i for i, parent in enumerate(parents[1:], start=1)):
        raise RequestError(f"parents {parents} are not a tree: -1 first, then an earlier node for each")
    return parents


def _counts(rows: int, n: int, counts: Seq[int] | None) -> list[int]:
    lengths = [n] * rows if counts is None else list(counts)
    if len(lengths) != rows or not all(1 <= m <= n for m in lengths):
        raise RequestError(f"counts {lengths} for {rows} rows of {n} nodes; each row has 1 to {n}")
    return lengths


def places(n: int, counts: list[int]) -> Tensor | None:
    """Return which of the rows * n places hold a node; None for all of them."""
    if min(counts, default=n) == n:
        return None
    return (torch.arange(n) < torch.tensor(counts)[:, None]).flatten().nonzero()[:, 0]


def padded(x: Tensor, rows: int, n: int, real: Tensor | None) -> Tensor:
    """Put x [R, W] at its places -> [B, N, W], zeros elsewhere."""
    if real is not None:
        x = x.new_zeros(rows * n, x.shape[1]).index_copy_(0, moved(real, x.device), x)
    return x.view(rows, n, -1)


def sizes_of(
    config: DecoderConfig, vocab: int | None, *, max_rows: int, max_len: int | None, max_nodes: int
) -> tuple[int, dict[str, int]]:
    """Return the vocabulary and the sizes of a decoder's cache, checked; what is None is the model's own."""
    vocab = config.vocab if vocab is None else vocab
    sizes = {"max_rows": max_rows, "max_len": config.max_len if max_len is None else max_len, "max_nodes": max_nodes}
    if not 1 <= vocab <= config.vocab:
        raise RequestError(f"vocab {vocab} is not in 1..{config.vocab}, the rows of the model's embedding")
    for name, value in sizes.items():
        if value < 1:
            raise RequestError(f"{name} {value} must be at least 1")
    return vocab, sizes


def load_decoder(
    folder: str | Path,
    dtype: str | torch.dtype = "auto",
    device: str | torch.device = "cpu",
    *,
    vocab: int | None = None,
    max_rows: int = 1,
    max_len: int | None = None,
    max_nodes: int = 64,
    quantize: str = "none",
) -> CachedDecoder:
    """Load a model folder (config.json, safetensors) as a decoder with `max_rows` cache slots.

    `vocab` is the number of real token ids: the head is cut to it. `max_len` None is the model's own; `max_nodes`
    bounds the nodes of one pass; `quantize` is none or a format of `quantised`. The cache reserves
    max_rows * (max_len + max_nodes) tokens in every layer, sliding windows included.
    """
    path = Path(folder)
    config = read_config(read_json(path / "config.json"))
    vocab, sizes = sizes_of(config, vocab, max_rows=max_rows, max_len=max_len, max_nodes=max_nodes)
    kind, where = as_dtype(dtype, config.dtype), torch.device(device)
    weights = load_weights(path, config, vocab, kind, where, linear if quantize == "none" else quantised(quantize))
    net = Decoder(config, weights, kind, where)
    return CachedDecoder(net, vocab=vocab, **sizes)
