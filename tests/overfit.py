"""Overfit a block drafter on a few texts, through the second writing of its network: what an oracle is made of.

A drafter wired as it was trained is nearly always accepted on those texts; with taps or slots shifted it is not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

import block_reference
from draft_zoo import shapes
from slipstream.control.budget import FixedBudget
from slipstream.engine import Engine, EngineOptions
from slipstream.nets.decoder import CachedDecoder
from slipstream.nets.draft_config import DraftCheckpoint, DraftConfig, Tables
from slipstream.sampling import RequestRngs
from slipstream.targets.native import NativeTarget
from slipstream.types import Drafter, SamplingParams, Sequence
from slipstream.verify import RULES


@dataclass(frozen=True)
class Greedy:
    """A prompt with the target's own greedy text behind it, and what the target felt at all tokens but the last."""

    tokens: list[int]
    prompt: int
    taps: Mapping[int, Tensor]


def greedy(decoder: CachedDecoder, prompt: list[int], count: int, taps: tuple[int, ...]) -> Greedy:
    """Continue a prompt by `count` tokens in slot 0, which is emptied again."""
    text = list(prompt)
    felt = [decoder.extend(0, prompt[:-1], taps)]
    for _ in range(count):
        logits, states = decoder.nodes([0], torch.tensor([text[-1:]]), None, taps)
        decoder.keep([0], [[]])
        felt.append({tap: x[0] for tap, x in states.items()})
        text.append(int(logits[0, 0].argmax()))
    decoder.release(0)
    return Greedy(text, len(prompt), {tap: torch.cat([part[tap] for part in felt]) for tap in taps})


def tables_of(decoder: CachedDecoder) -> Tables:
    """The decoder's own embedding and head."""
    net, c = decoder.net, decoder.config
    return Tables(net.embed, net.logits, c.vocab, net.config.vocab, c.hidden, net.dtype, net.device)


def decode(
    decoder: CachedDecoder, drafter: Drafter, prompts: list[list[int]], *, tokens: int, budget: int, rule: str = "chain"
) -> list[Sequence]:
    """Continue all prompts greedily by `tokens` tokens, as one batch; return their rows."""
    target = NativeTarget(decoder, drafter.needs.taps)
    engine = Engine(target, drafter, RULES[rule], FixedBudget(budget), EngineOptions(max_rows=4), make_rngs=RequestRngs)
    params = SamplingParams(max_tokens=tokens, ignore_eos=True)
    rows = [Sequence(i, list(prompt), len(prompt), params) for i, prompt in enumerate(prompts)]
    for row in rows:
        engine.add(row)
    while not engine.idle:
        engine.step()
    assert all(row.generated == tokens for row in rows)
    return rows


def tokens_per_round(rows: list[Sequence]) -> float:
    """Mean tokens of a round."""
    return sum(row.generated for row in rows) / sum(row.rounds for row in rows)


def changed(found: DraftCheckpoint, **changes: object) -> DraftCheckpoint:
    """The drafter with other fields in its record."""
    return replace(found, config=replace(found.config, **changes))  # type: ignore[arg-type]


def minimise(tensors: dict[str, Tensor], loss: Callable[[dict[str, Tensor]], Tensor], steps: int, rate: float) -> None:
    """Train tensors in place, which need gradients; the learning rate rises to `rate` and falls again."""
    optimiser = torch.optim.Adam(tensors.values())
    plan = torch.optim.lr_scheduler.OneCycleLR(optimiser, rate, total_steps=steps)
    for _ in range(steps):
        optimiser.zero_grad()
        loss(tensors).backward()
        optimiser.step()
        plan.step()


def fit(
    config: DraftConfig, loss: Callable[[dict[str, Tensor]], Tensor], *, steps: int, rate: float = 1e-2
) -> DraftCheckpoint:
    """Minimise a loss over float32 tensors of the config's shapes."""
    g = torch.Generator().manual_seed(1)
    tensors = {}
    for name, shape in shapes(config).items():
        x = torch.randn(shape, generator=g)
        tensors[name] = (torch.ones(shape) if "norm" in name else x * shape[-1] ** -0.5).requires_grad_()
    minimise(tensors, loss, steps, rate)
    return DraftCheckpoint(config, {name: x.detach() for name, x in tensors.items()})


def block_loss(config: DraftConfig, tables: Tables, texts: list[Greedy]) -> Callable[[dict[str, Tensor]], Tensor]:
    """Cross-entropy of every slot that drafts, at every anchor from the prompt's last token on."""
    assert config.block is not None
    first = 0 if config.block.anchor_predicts else 1
    ahead = torch.arange(first, config.block.size) + 1 - first  # how far after the anchor each slot predicts
    head = tables.head(torch.eye(tables.hidden, dtype=tables.dtype))  # [H, V]; packed products know no gradient
    work = []
    for text in texts:
        last = len(text.tokens) - 1
        anchors = list(range(text.prompt - 1, last))
        at = torch.tensor(anchors)[:, None] + ahead
        wanted = torch.tensor(text.tokens)[at.clamp(max=last)].masked_fill(at > last, -100)
        work.append((text.taps, [(a, text.tokens[a]) for a in anchors], wanted))

    def loss(tensors: dict[str, Tensor]) -> Tensor:
        total = []
        for taps, anchors, wanted in work:
            states = block_reference.states(config, tensors, tables, taps, anchors)[:, first:]
            logits = states.flatten(0, 1) @ head
            total.append(torch.nn.functional.cross_entropy(logits, wanted.flatten()))
        return torch.stack(total).mean()

    return loss
