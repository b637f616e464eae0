"""DFlash against the installed transformers: its generation loop over its own drafter class, ours on the same weights.

Their generator knows one drafter class; its target here is any tiny random model. What it offers to verify is replaced
by prefixes of the target's own text, so that rounds of every accepted length happen; its logits are its own.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from native_kit import VOCAB, save, tiny, tokens
from torch import Tensor
from transformers.generation import candidate_generator as theirs

from slipstream.checkpoints.draft_reading import TargetFacts
from slipstream.checkpoints.drafters import read_drafter
from slipstream.nets.decoder import CachedDecoder, load_decoder
from slipstream.nets.dflash import DFlashNet
from slipstream.nets.draft_config import Tables
from slipstream.nets.draft_layers import Segment

TOLERANCE = 1e-4
BLOCK, MASK, LAYERS, PROMPT, NEW = 5, 96, 3, 11, 30
ACCEPTED = [0, 4, 1, 0, 2, 4, 3, 1, 0, 4]
TAPS_OF_LAYERS = [0, 2]  # outputs of layers, their spelling


@dataclass(frozen=True)
class Heard:
    """One round of their generator: the tokens so far, and its logits [B - 1, V] for the block after them."""

    tokens: list[int]
    logits: Tensor


def drafter_of(kinds: list[str], window: int, hidden: int) -> Any:
    config = transformers.MuseGlimmerAssistantConfig(
        hidden_size=hidden,
        intermediate_size=80,
        num_hidden_layers=len(kinds),
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        sliding_window=window,
        layer_types=kinds,
        rope_parameters={"rope_type": "default", "rope_theta": 5000.0},
        max_position_embeddings=256,
        block_size=BLOCK,
        mask_token_id=MASK,
        target_layer_ids=TAPS_OF_LAYERS,
    )
    model = transformers.MuseGlimmerAssistantModel(config).eval()
    generator = torch.Generator().manual_seed(11)
    for key, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        parameter.data.copy_(noise * 0.2 + (1.0 if "norm" in key else 0.0))
    return model


def their_rounds(target: Any, drafter: Any, prompt: list[int], monkeypatch: pytest.MonkeyPatch) -> list[Heard]:
    """Run their loop; every round offers so many tokens of the target's own text and then wrong ones."""
    ids = torch.tensor([prompt])
    settings = {"do_sample": False, "max_new_tokens": NEW, "eos_token_id": None, "pad_token_id": 0}
    plain = target.generate(ids, **settings)[0].tolist()
    heard: list[Heard] = []
    inner = theirs.DFlashTokenCandidateGenerator.get_candidates

    def spied(self: Any, input_ids: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
        offered, logits = inner(self, input_ids, *args, **kwargs)
        if logits is None:
            return offered, logits
        text = input_ids[0].tolist()
        heard.append(Heard(text, logits[0].clone()))
        right = plain[len(text) : len(text) + BLOCK - 1]
        right += [0] * (BLOCK - 1 - len(right))
        keep = ACCEPTED[len(heard) % len(ACCEPTED)]
        planted = right[:keep] + [(t + 1) % VOCAB for t in right[keep:]]
        return torch.cat([input_ids, torch.tensor([planted])], 1), logits

    monkeypatch.setattr(theirs.DFlashTokenCandidateGenerator, "get_candidates", spied)
    out = target.generate(ids, assistant_model=drafter, speculation_type="dflash", **settings)
    assert out[0].tolist() == plain
    return heard


def ours_of(drafter: Any, decoder: CachedDecoder, folder: Path) -> DFlashNet:
    """The same weights, read from the files transformers writes."""
    net = decoder.net
    facts = TargetFacts("tiny", net.config.hidden, net.config.layers, VOCAB, VOCAB)  # their file names no vocabulary
    found = read_drafter(save(drafter, folder), facts)
    tables = Tables(net.embed, net.logits, VOCAB, VOCAB, net.config.hidden, net.dtype, net.device)
    return DFlashNet(found.config, found.tensors, tables, max_rows=2, max_len=64, max_nodes=BLOCK)


FULL, SLIDING = "full_attention", "sliding_attention"


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("name", ["llama", "gemma3"])
@pytest.mark.parametrize(
    ("kinds", "window"),
    [([FULL] * LAYERS, 6), ([SLIDING] * LAYERS, 6), ([SLIDING, FULL, SLIDING], 9), ([SLIDING, SLIDING], 3)],
    ids=["full", "sliding", "both", "window shorter than the block"],
)
def test_every_round_gives_their_logits(
    name: str, kinds: list[str], window: int, attention: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tiny(name)
    drafter = drafter_of(kinds, window, target.config.hidden_size)
    drafter.set_attn_implementation(attention)
    heard = their_rounds(target, drafter, tokens(PROMPT), monkeypatch)
    decoder = load_decoder(save(target, tmp_path / "target"), "float32", "cpu", max_len=64)
    net = ours_of(drafter, decoder, tmp_path / "drafter")

    assert len(heard[0].tokens) == PROMPT + 1
    steps = [len(b.tokens) - len(a.tokens) for a, b in itertools.pairwise(heard)]
    assert {1, 2, 3, 5} <= set(steps), "refusals, full acceptance and what is between"
    assert heard[-1].logits.std() > 0.3  # weights large enough for the comparison to mean something
    fed = 0
    for at in heard:
        end = len(at.tokens) - 1
        taps = decoder.extend(0, at.tokens[fed:end], net.config.features.taps)
        net.context(taps, [Segment(1, fed, range(fed, end))])
        fed = end
        states = net.block(torch.tensor(at.tokens[-1:]), [1])
        assert (net.logits(states[0, 1:]) - at.logits).abs().max() < TOLERANCE, f"after {end} tokens"
