"""Drafters that are right on given texts: overfitted on a tiny target's own greedy text, by a second writing of each
network that autograd can go through. A drafter wired as these were trained is nearly always accepted; wired otherwise
it is not.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

from draft_zoo import shapes
from oracle_target import LAYERS, THETA, make_target
from overfit import minimise
from slipstream import LLM, learned
from slipstream.measure.doctor.texts import Text, write
from slipstream.measure.workloads import Prompt
from slipstream.nets.draft_config import (
    Block,
    Body,
    DraftCheckpoint,
    DraftConfig,
    Features,
    Heads,
    Tables,
    Vocab,
)
from slipstream.nets.families import Rope

H = 32
DEPTH = 5  # as far as the doctor looks
WORDS, TOKENS = ("the", "cat", "sat", "on", "mat", "dog", "log", "one"), 32  # prompts of one token each, and answers
_folders = tempfile.TemporaryDirectory(prefix="oracles-")
Loss = Callable[[dict[str, Tensor]], Tensor]


def body(layers: int, **changes: object) -> Body:
    """Layers of a size that learns a few hundred tokens by heart in seconds."""
    sizes = {"hidden": H, "layers": layers, "heads": 4, "kv_heads": 2, "head_dim": 8, "mlp": 128}
    return Body(**sizes | {"windows": (None,) * layers, "rope": Rope(THETA)} | changes)


def fit(config: DraftConfig, loss: Loss, *, steps: int, fixed: dict[str, Tensor] | None = None) -> DraftCheckpoint:
    """Minimise a loss over tensors of the config's shapes; `fixed` ones are not trained."""
    g = torch.Generator().manual_seed(1)
    tensors: dict[str, Tensor] = {}
    for name, shape in shapes(config).items():
        x = torch.randn(shape, generator=g)
        tensors[name] = (1 + 0.4 * x) if "norm" in name else x * shape[-1] ** -0.5
        if name == "norm.weight":
            tensors[name] = x.sign() * (1 + 0.2 * x.abs())  # what was normed points elsewhere than what was not
        tensors[name].requires_grad_()
    minimise(tensors, lambda w: loss({**w, **(fixed or {})}), steps, 1e-2)
    return DraftCheckpoint(config, {k: v.detach() for k, v in tensors.items()} | (fixed or {}))


@dataclass(frozen=True, eq=False)
class Kit:
    """The target, its texts and the prompts that made them. Trained drafters are kept for the whole run."""

    folder: Path
    llm: LLM
    prompts: list[Prompt]
    data: Data

    @cache
    def oracle(self, name: str) -> DraftCheckpoint:
        """A trained drafter."""
        torch.manual_seed(0)
        return TRAINERS[name](self.data)


@cache
def kit() -> Kit:
    """Make the target and let it write."""
    folder = make_target(Path(_folders.name) / "target")
    llm = LLM(str(folder), "none", dtype="float32", device="cpu")
    prompts = [Prompt(str(k), "words", [{"role": "user", "content": word}]) for k, word in enumerate(WORDS)]
    texts = write(llm, prompts, TOKENS, range(-1, LAYERS + 1), chat=True)
    head = load_file(folder / "model.safetensors")["lm_head.weight"]
    return Kit(folder, llm, prompts, Data(texts, learned.tables_of(llm.opened), head))


def with_tables(found: DraftCheckpoint, data: Data) -> DraftCheckpoint:
    """The same drafter with copies of the target's embedding and head in its file."""
    vocab = replace(found.config.vocab, own_embed=True, own_head=True)
    table = data.tables.embed(torch.arange(data.tables.rows))
    tensors = {**found.tensors, "embed.weight": table}
    tensors.setdefault("head.weight", data.head)
    return replace(found, config=replace(found.config, vocab=vocab), tensors=tensors)


class Data:
    """Texts of one length as tensors: ids [B, T], features [B, T - 1, K * Ht], and the target's tables for autograd."""

    def __init__(self, texts: Seq[Text], tables: Tables, head: Tensor) -> None:
        self.ids = torch.tensor([t.ids for t in texts])
        self.prompt, self.length = texts[0].prompt, len(texts[0].ids)
        self.texts, self.tables, self.head = texts, tables, head
        self.ones = torch.ones(self.length, self.length, dtype=torch.bool)

    def felt(self, taps: tuple[int, ...]) -> Tensor:
        """The taps side by side."""
        return torch.stack([torch.cat([t.taps[tap] for tap in taps], -1) for t in self.texts])

    def answer(self, start: int, ids: Tensor | None = None) -> Tensor:
        """Ids from place `start` on, -100 within the prompt."""
        ids = self.ids if ids is None else ids
        places = torch.arange(self.length)
        return torch.where(places < self.prompt, -100, ids)[:, start:]


def eagle3(data: Data, *, taps: tuple[int, ...] = (1, 3, 5), steps: int = 150) -> DraftCheckpoint:
    """EAGLE-3 with a reduced vocabulary, trained through its own steps (its format, 2.1, 2.3 and 2.5)."""
    kept = data.ids[:, data.prompt :].unique()
    to = torch.full((data.tables.rows,), -100)
    to[kept] = torch.arange(len(kept))
    vocab = Vocab(data.tables.rows, len(kept), own_head=True)
    config = DraftConfig("eagle3", "speculators", Features(taps, H), vocab, body(1))
    felt, wanted, embedded = data.felt(taps), to[data.ids], data.tables.embed(data.ids)

    def loss(w: dict[str, Tensor]) -> Tensor:
        b = config.body
        assert b is not None
        rows = data.length - 2
        state = (felt @ w["fc.weight"].T)[:, :rows]
        keys, values, total = [], [], torch.zeros(())
        for s in range(DEPTH):
            # row t holds x[t + 1 + s] and the state before it, at position t + s, and predicts x[t + 2 + s]
            n = rows - s
            state = state[:, :n]
            x = norm(embedded[:, 1 + s : 1 + s + n], w["layers.0.input_layernorm.weight"], b.eps)
            u = torch.cat([x, norm(state, w["layers.0.hidden_norm.weight"], b.eps)], -1)
            q, k, v = heads(w, 0, u, torch.arange(n) + s, b)
            keys, values = [*(x[:, :, :n] for x in keys), k], [*(x[:, :, :n] for x in values), v]
            own = torch.eye(n, dtype=torch.bool)
            seen = torch.cat([data.ones[:n, :n].tril(), *[own] * s], 1)
            out = attend(q, torch.cat(keys, 2), torch.cat(values, 2), seen)
            h = state + out @ w["layers.0.self_attn.o_proj.weight"].T
            state = h + mlp(w, 0, h, b)
            logits = norm(state, w["norm.weight"], b.eps) @ w["head.weight"].T
            total = total + F.cross_entropy(logits.flatten(0, 1), data.answer(2 + s, wanted).flatten())
        return total

    return fit(config, loss, steps=steps, fixed={"vocab_map": kept})


def dflash(data: Data, *, taps: tuple[int, ...] = (1, 4), steps: int = 200) -> DraftCheckpoint:
    """DFlash: a block at every place, each seeing the context before its anchor and itself (its format, 7.1)."""
    size, rows = 5, data.length - 1
    block = Block(size, data.tables.rows - 1, False, (False, False))
    vocab = Vocab(data.tables.rows, data.tables.rows)
    config = DraftConfig("dflash", "zlab", Features(taps, H), vocab, body(2, qk_norm=True), block=block)
    anchors = torch.arange(data.prompt - 1, data.length - size + 1)
    at = anchors[:, None] + torch.arange(size)  # [A, S]
    before = (torch.arange(rows) < anchors[:, None])[:, None].expand(-1, size, -1)
    seen = torch.cat([before, torch.ones(len(anchors), size, size, dtype=torch.bool)], 2)[:, None]
    tokens = torch.full((len(data.ids), *at.shape), block.mask_token)
    tokens[:, :, 0] = data.ids[:, anchors]
    embedded, felt, wanted = data.tables.embed(tokens.flatten()), data.felt(taps), data.ids[:, at[:, 1:]]

    def loss(w: dict[str, Tensor]) -> Tensor:
        b = config.body
        assert b is not None
        context = norm(felt @ w["fc.weight"].T, w["hidden_norm.weight"], b.eps)
        h = embedded.view(*tokens.shape, H)
        for i in range(b.layers):
            u = norm(h, w[f"layers.{i}.input_layernorm.weight"], b.eps)
            q, k, v = heads(w, i, u, at[:, None], b)  # [B, A, heads, S, D]
            _, ck, cv = heads(w, i, context, torch.arange(rows), b)
            k, v = (torch.cat([c[:, None].expand(-1, len(at), -1, -1, -1), x], 3) for c, x in ((ck, k), (cv, v)))
            h = h + attend(q, k, v, seen) @ w[f"layers.{i}.self_attn.o_proj.weight"].T
            h = h + mlp(w, i, h, b)
        logits = norm(h, w["norm.weight"], b.eps)[:, :, 1:] @ data.head.T
        return F.cross_entropy(logits.flatten(0, 2), wanted.flatten())

    return fit(config, loss, steps=steps)


def medusa(data: Data, *, steps: int = 150) -> DraftCheckpoint:
    """Medusa: head i at a token sees its normed state and predicts the token i + 2 places later (its format, 10.3)."""
    count, felt = 4, data.felt((-1,))
    features, vocab = Features((-1,), H, fused=False), Vocab(data.tables.rows, data.tables.rows)
    config = DraftConfig("medusa", "medusa", features, vocab, heads=Heads(count, 1, True))

    def loss(w: dict[str, Tensor]) -> Tensor:
        total = torch.zeros(())
        for i in range(count):
            x = felt[:, : data.length - 2 - i]
            x = x + F.silu(x @ w[f"heads.{i}.blocks.0.weight"].T + w[f"heads.{i}.blocks.0.bias"])
            logits = x @ w[f"heads.{i}.head.weight"].T
            total = total + F.cross_entropy(logits.flatten(0, 1), data.answer(2 + i).flatten())
        return total

    return fit(config, loss, steps=steps)


def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Root mean square norm."""
    return x * (x.pow(2).mean(-1, keepdim=True) + eps).rsqrt() * weight


def heads(w: dict[str, Tensor], i: int, x: Tensor, positions: Tensor, b: Body) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values [..., heads, T, D] of rows x [..., T, in], rotated, keys repeated for their queries."""
    at = f"layers.{i}.self_attn"
    q, k, v = ((x @ w[f"{at}.{n}_proj.weight"].T).unflatten(-1, (-1, b.head_dim)).transpose(-2, -3) for n in "qkv")
    if b.qk_norm:
        q, k = norm(q, w[f"{at}.q_norm.weight"], b.eps), norm(k, w[f"{at}.k_norm.weight"], b.eps)
    groups = b.heads // b.kv_heads
    k, v = k.repeat_interleave(groups, -3), v.repeat_interleave(groups, -3)
    return rotated(q, positions, b), rotated(k, positions, b), v


def rotated(x: Tensor, positions: Tensor, b: Body) -> Tensor:
    """Rotate x [..., T, D] by positions [..., T]: half-split."""
    half = b.head_dim // 2
    angles = positions[..., None] * b.rope.theta ** (-torch.arange(half) / half)
    cos, sin = angles.cos(), angles.sin()
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


def attend(q: Tensor, k: Tensor, v: Tensor, seen: Tensor) -> Tensor:
    """[..., heads, T, D] -> [..., T, heads * D]; `seen` [T, K]."""
    scores = (q @ k.transpose(-1, -2)) * q.shape[-1] ** -0.5
    out = scores.masked_fill(~seen, float("-inf")).softmax(-1) @ v
    return out.transpose(-2, -3).flatten(-2)


def mlp(w: dict[str, Tensor], i: int, h: Tensor, b: Body) -> Tensor:
    """The gated MLP with its norm."""
    x = norm(h, w[f"layers.{i}.post_attention_layernorm.weight"], b.eps)
    gate, up, down = (w[f"layers.{i}.mlp.{n}_proj.weight"] for n in ("gate", "up", "down"))
    return (F.silu(x @ gate.T) * (x @ up.T)) @ down.T


TRAINERS = {"eagle3": eagle3, "dflash": dflash, "medusa": medusa}
