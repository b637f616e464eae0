"""From the folder of a learned drafter to the drafter: its network, the target's tables, the target's cost.

In: a checkpoint folder in any public layout and an opened target. Out: a drafter of `drafters/`, and notes. `build`
says which name means which algorithm; here is what each algorithm is made of.
"""

from __future__ import annotations

import importlib
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from slipstream.types import Drafter, RequestError

if TYPE_CHECKING:
    from slipstream.checkpoints.drafters import TargetFacts
    from slipstream.nets.draft_config import DraftCheckpoint, DraftConfig, Tables
    from slipstream.opened import Opened, Wanted


@dataclass(frozen=True)
class Parts:
    """What an algorithm is made of: "module:name" of its network, its drafter and its options.

    `draft_tokens` is the most it drafts per round where neither the caller nor the checkpoint says. `sized`: it weighs
    a longer draft against the target's measured cost. `calibrated`: it takes temperatures fitted for one target.
    """

    net: str
    drafter: str
    options: str
    draft_tokens: int
    sized: bool = False
    calibrated: bool = False

    def option_names(self) -> tuple[str, ...]:
        """Return the names of the drafter's options."""
        return tuple(f.name for f in fields(_load(self.options)))

    def choose(self, **options: Any) -> Any:
        """Return the drafter's options."""
        return _load(self.options)(**options)

    def make(self, net: Any, **settings: Any) -> Drafter:
        """Build the drafter on its network."""
        drafter: Drafter = _load(self.drafter)(net, **settings)
        return drafter


_EAGLE_OPTIONS = "slipstream.drafters.eagle:EagleOptions"
ALGORITHMS: Mapping[str, Parts] = MappingProxyType(
    {
        "eagle": Parts("slipstream.nets.eagle:EagleNet", "slipstream.drafters.eagle:Eagle", _EAGLE_OPTIONS, 12),
        "eagle3": Parts("slipstream.nets.eagle3:Eagle3Net", "slipstream.drafters.eagle3:Eagle3", _EAGLE_OPTIONS, 12),
        "peagle": Parts(
            "slipstream.nets.eagle3:PEagleNet",
            "slipstream.drafters.peagle:PEagle",
            "slipstream.drafters.peagle:PEagleOptions",
            6,
        ),
        "dflash": Parts(
            "slipstream.nets.dflash:DFlashNet",
            "slipstream.drafters.dflash:DFlash",
            "slipstream.drafters.dflash:DFlashOptions",
            15,
            sized=True,
        ),
        "dflash2": Parts(
            "slipstream.nets.dflash2:DFlash2Net",
            "slipstream.drafters.dflash2:DFlash2",
            "slipstream.drafters.dflash2:DFlash2Options",
            7,
        ),
        "dspark": Parts(
            "slipstream.nets.dspark:DSparkNet",
            "slipstream.drafters.dspark:DSpark",
            "slipstream.drafters.dspark:DSparkOptions",
            7,
            sized=True,
            calibrated=True,
        ),
        "medusa": Parts(
            "slipstream.nets.medusa:MedusaNet",
            "slipstream.drafters.medusa:Medusa",
            "slipstream.drafters.medusa:MedusaOptions",
            15,
            sized=True,
        ),
    }
)


def recognise(folder: Path) -> str | None:
    """Return the algorithm of a drafter folder, or None when it is not one (an ordinary model, say)."""
    from slipstream.checkpoints.layouts import recognise as found

    return found(folder)


def read(folder: Path, opened: Opened) -> DraftCheckpoint:
    """Read a drafter's checkpoint and check it against the target."""
    from slipstream.checkpoints.drafters import read_drafter

    return read_drafter(folder, facts_of(opened))


def make_net(found: DraftCheckpoint, tables: Tables, *, rows: int, max_len: int, max_nodes: int) -> Any:
    """Build the network of a checkpoint."""
    parts = ALGORITHMS[found.config.algorithm]
    sizes = {"max_rows": rows, "max_len": max_len, "max_nodes": max_nodes}
    return _load(parts.net)(found.config, found.tensors, tables, **sizes)


def make_drafter(algorithm: str, opened: Opened, wanted: Wanted) -> tuple[Drafter, int]:
    """Build the drafter of a checkpoint folder for a loaded target; return it and how many tokens it drafts."""
    from slipstream import models

    found = read(models.resolve(wanted.path, what="drafter"), opened)
    config = found.config
    if config.algorithm != algorithm:
        raise RequestError(
            f"{wanted.path} is a drafter of kind {config.algorithm}; use {config.algorithm}:{wanted.path}"
        )
    wanted.notes.extend(f"drafter {wanted.path}: {note}" for note in found.notes)
    names = ALGORITHMS[algorithm].option_names()
    options = dict(wanted.options)
    if not wanted.tree and "shape" in names and options.setdefault("shape", "chain") != "chain":
        raise RequestError(f"drafter option shape={options['shape']!r} needs a rule and a target that handle trees")
    return assemble(found, opened, rows=wanted.rows, options=options)[0], suggested(config)


def assemble(found: DraftCheckpoint, opened: Opened, *, rows: int, options: Mapping[str, Any]) -> tuple[Drafter, Any]:
    """Build the drafter of a checkpoint that was read, and its network."""
    parts, caps = ALGORITHMS[found.config.algorithm], opened.target.caps
    own = {key: value for key, value in options.items() if key != "quantize"}
    chosen = parts.choose(**own)
    tables = tables_of(opened, options.get("quantize", ""))
    net = make_net(found, tables, rows=rows, max_len=caps.max_len, max_nodes=caps.max_nodes)
    more: dict[str, Any] = {}
    weighs = parts.sized and (getattr(chosen, "shape", "") == "tree" or getattr(chosen, "schedule", "off") != "off")
    cost = RoundCost(opened.cost()) if weighs else None
    if cost is not None:
        more["seconds"] = cost
    if parts.calibrated:
        more["target"] = opened.name
    drafter = parts.make(net, vocab=caps.vocab, max_rows=rows, device=opened.device, options=chosen, **more)
    if cost is not None:
        cost.draft = _draft_seconds(drafter, opened, suggested(found.config))
    return drafter, net


@dataclass
class RoundCost:
    """Seconds of a round whose target pass reads `nodes` tokens: the measured pass, and what drafting takes anyway."""

    target: Callable[[int], float]
    draft: float = 0.0

    def __call__(self, nodes: int) -> float:
        """Return the seconds of the round."""
        return self.target(nodes) + self.draft


def _draft_seconds(drafter: Drafter, opened: Opened, tokens: int) -> float:
    """Time drafts on a row made up for it, which is forgotten again."""
    import torch

    from slipstream.sampling import RequestRngs
    from slipstream.types import SamplingParams, Sequence

    row = Sequence(-1, [0] * 9, 9, SamplingParams())
    felt = torch.zeros(8, opened.target.caps.hidden, dtype=opened.dtype, device=opened.device)
    drafter.observe([row], [[0] * 8], [dict.fromkeys(drafter.needs.taps, felt)])
    times = []
    for _ in range(4):
        start = time.perf_counter()
        drafter.propose([row], [tokens], RequestRngs([row]))
        times.append(time.perf_counter() - start)
    drafter.forget(row)
    return statistics.median(times[1:])


def suggested(config: DraftConfig) -> int:
    """Return how many tokens a drafter drafts where the caller does not say."""
    if config.block is not None and config.algorithm != "peagle":
        return config.block.drafts
    return config.claims.draft_tokens or ALGORITHMS[config.algorithm].draft_tokens


def tables_of(opened: Opened, quantize: str = "") -> Tables:
    """Return the target's embedding and head, for drafters that share them, and how their own weights are held.

    `quantize` is the format of their own where the target runs on the CPU kernels, by default the target's.
    """
    import torch

    from slipstream.nets.draft_config import Tables

    shared, rows = (_native_tables if opened.kind == "native" else _hf_tables)(opened.target)
    caps = opened.target.caps
    maps, dtype = None, opened.dtype
    if _on_kernels(opened):
        from slipstream.kernels.linear import maps_of

        maps, dtype = maps_of(quantize or opened.quantize), torch.float32
    elif quantize not in ("", "none"):
        raise RequestError(f"drafter option quantize={quantize!r} needs a target on the CPU kernels; leave it out")
    return Tables(
        **shared,
        vocab=caps.vocab,
        rows=rows,
        hidden=caps.hidden,
        dtype=dtype,
        device=torch.device(opened.device),
        maps=maps,
    )


def _on_kernels(opened: Opened) -> bool:
    return opened.kind == "native" and hasattr(opened.target.decoder.net, "native")  # type: ignore[attr-defined]


def facts_of(opened: Opened) -> TargetFacts:
    """Return what a checkpoint is checked against."""
    from slipstream.checkpoints.drafters import TargetFacts

    raw = raw_config(opened)
    caps = opened.target.caps
    theta = (raw.get("rope_parameters") or {}).get("rope_theta") or raw.get("rope_theta") or 10000.0
    return TargetFacts(
        name=opened.name,
        hidden=caps.hidden,
        layers=caps.layers,
        vocab=int(raw.get("vocab_size") or caps.vocab),
        real_vocab=caps.vocab,
        rope_theta=float(theta),
        tied=bool(raw.get("tie_word_embeddings", False)),
    )


def raw_config(opened: Opened) -> dict[str, Any]:
    """Return the target's config.json, of its text part where it has several."""
    from slipstream.machine import read_model_config

    raw = read_model_config(opened.folder)
    return raw.get("text_config") or raw


_Maps = dict[str, Callable[..., Any]]  # of `Tables`


def _native_tables(target: Any) -> tuple[_Maps, int]:
    net = target.decoder.net
    bare: _Maps = {"bare_embed": net.bare_embed, "bare_head": net.bare_logits}
    return {"embed": net.embed, "head": net.logits, **bare}, net.config.vocab


def _hf_tables(target: Any) -> tuple[_Maps, int]:
    """Embedding modules scale by themselves; the cap on logits is applied in the model's forward."""
    import torch

    model, vocab = target.model, target.caps.vocab
    embed, head = model.get_input_embeddings(), model.get_output_embeddings()
    if head is None:
        raise RequestError(f"model {target.kind!r} has no output embedding to share; use a drafter with its own head")
    config = model.config.get_text_config(decoder=True)
    cap = getattr(config, "final_logit_softcapping", None)

    def bare(x: torch.Tensor) -> torch.Tensor:
        return head(x.to(head.weight.dtype))[..., :vocab]

    def logits(x: torch.Tensor) -> torch.Tensor:
        out = bare(x)
        return out if cap is None else torch.tanh(out / cap) * cap

    def stored(ids: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.embedding(ids, embed.weight)

    maps: _Maps = {"embed": embed, "head": logits, "bare_embed": stored, "bare_head": bare}
    return maps, int(embed.weight.shape[0])


def _load(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)
