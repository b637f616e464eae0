"""Run by the interpreter of `.venv-speculators`: what the `speculators` package computes, written down for comparison.

`make OUT`: tiny random drafters in the package's public layout, a tiny target for them, and the package's own logits
on given tokens and features. `read OUT FOLDERS...`: the same logits from folders written by someone else, loaded with
the package's `from_pretrained`. All its code runs as it is; patched are only the places where it picks positions at
random (they get ours) and where it would hand logits to a loss (they are kept instead).
"""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import os
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"


class _Absent(types.ModuleType):
    """Stands in for what the package's training data readers import; nothing here reads training data."""

    __path__ = ()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name.split(".")[0] in ("datasets", "openai"):
            return importlib.machinery.ModuleSpec(name, self)
        return None

    def create_module(self, spec: Any) -> types.ModuleType:
        return _Absent(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


import transformers  # noqa: E402 - it looks for `datasets` itself, and must not find the stand-in

sys.meta_path.insert(0, _Finder())

import speculators  # noqa: E402
import torch  # noqa: E402
from safetensors.torch import save_file  # noqa: E402
from speculators.models.dflash import core as dflash_core  # noqa: E402
from speculators.models.dflash2 import core as dflash2_core  # noqa: E402
from speculators.models.dspark import core as dspark_core  # noqa: E402
from speculators.models.eagle3 import shift_batch  # noqa: E402
from speculators.models.peagle import core as peagle_core  # noqa: E402
from speculators.proposals.greedy import GreedyTokenProposalConfig  # noqa: E402
from speculators_cases import BODY, CASES, LENGTHS, MASK, STEPS, VD, H, N, V  # noqa: E402


def texts(seed: int = 3) -> dict[str, torch.Tensor]:
    """Tokens and features of a few texts: {"0.tokens": [T], "0.tap.2": [T, H], ...}."""
    g = torch.Generator().manual_seed(seed)
    out = {}
    for i, length in enumerate(LENGTHS):
        out[f"{i}.tokens"] = torch.randint(0, V, (length,), generator=g)
        for tap in range(N + 1):
            out[f"{i}.tap.{tap}"] = torch.randn(length, H, generator=g) * (1 + tap)
    return out


def main() -> None:
    """`make OUT` or `read OUT FOLDERS...`."""
    command, out, *folders = sys.argv[1:]
    if command == "make":
        make(Path(out))
    else:
        read(Path(out), [Path(folder) for folder in folders])


def make(out: Path) -> None:
    """Write the target, the drafters and what they say."""
    out.mkdir(parents=True, exist_ok=True)
    target = _target(out / "target")
    tensors = {f"text.{name}": x for name, x in texts().items()}
    tensors |= {f"target.{name}": x for name, x in target.state_dict().items() if "layers" not in name}
    for index, (name, case) in enumerate(CASES.items()):
        model = _drafter(case, out / "target", seed=index)
        model.save_pretrained(out / name)
        tensors |= {f"{name}.{key}": x for key, x in said(model).items()}
    save_file({name: x.contiguous() for name, x in tensors.items()}, out / "reference.safetensors")


def read(out: Path, folders: list[Path]) -> None:
    """Load each folder as the package does and write what it says to `out`."""
    tensors = {}
    for folder in folders:
        model = speculators.SpeculatorModel.from_pretrained(folder).eval()
        if bare := [name for name, x in model.state_dict().items() if x.isnan().any()]:
            raise SystemExit(f"{folder}: never loaded: {', '.join(bare)}")
        tensors |= {f"{folder.name}.{key}": x.contiguous() for key, x in said(_eager(model)).items()}
    save_file(tensors, out)


@torch.no_grad()
def said(model: Any) -> dict[str, torch.Tensor]:
    """The package's logits on every text: {"0.logits": ..., ...}."""
    kind = model.config.speculators_model_type
    ask = {"eagle3": _eagle3, "peagle": _peagle, "dflash": _block, "dflash2": _paths, "dspark": _block}[kind]
    given, out = texts(), {}
    for i in range(len(LENGTHS)):
        features = torch.cat([given[f"{i}.tap.{tap}"] for tap in model.target_layer_ids], -1)
        tokens = given[f"{i}.tokens"]
        found = ask(model, tokens, features)
        found["drafts"] = _drafts(
            model, found["logits"], lambda text, x=features: ask(model, text, x)["logits"], tokens
        )
        out |= {f"{i}.{key}": x for key, x in found.items()}
    return out


def _drafts(model: Any, logits: torch.Tensor, ask: Any, tokens: torch.Tensor) -> torch.Tensor:
    """Token ids [2, 1 + D]: a place in the text, and the D most probable tokens, one after the other, behind it.

    Where a token changes what is said after it, it is written into the text and the package asked again.
    """
    block = hasattr(model, "block_size")
    first = 0 if not block or model.config.sample_from_anchor else 1
    depth = model.block_size - first if block else STEPS
    reads = model.config.speculators_model_type in ("eagle3", "dflash2", "dspark")
    ids = torch.arange(V) if model.d2t is None else model.d2t + torch.arange(len(model.d2t))
    out = []
    for root in (2, len(tokens) - 9):
        text, now = tokens.clone(), logits
        for j in range(depth):
            now = ask(text) if reads and j > 0 else now
            text[root + 1 + j] = ids[(now[root - 1, first + j] if block else now[j, root - 1]).argmax()]
        out.append([root, *text[root + 1 : root + 1 + depth].tolist()])
    return torch.tensor(out)


def _eagle3(model: Any, tokens: torch.Tensor, features: torch.Tensor) -> dict[str, torch.Tensor]:
    """Logits [steps, T - 1, Vd]: step s of row i has been fed x[i + 1] .. x[i + 1 + s], from the state after it on.

    This is the training loop with its teacher's tokens: what a chain drafted from prefix i would compute if it drew
    exactly those.
    """
    batch = _shifted(tokens, features)
    with _kept(model.lm_head) as logits:
        model(**batch, document_ids=torch.zeros_like(batch["input_ids"]), ttt_steps=STEPS)
    return {"logits": torch.stack(logits)[:, 0]}


def _peagle(model: Any, tokens: torch.Tensor, features: torch.Tensor) -> dict[str, torch.Tensor]:
    """Logits [depths, T - 1, Vd] of depth d of the rollout that starts behind row i; NaN where it leaves the text."""
    batch = _shifted(tokens, features)
    rows = batch["input_ids"].shape[1]
    pairs = [(a, d) for d in range(STEPS) for a in range(rows) if a + d < rows]
    anchors, depths = (torch.tensor(x) for x in zip(*pairs, strict=True))
    batch["verifier_last_hidden_states"] = features.new_zeros(1, rows, H)
    instead = {"generate_cod_sample_indices": lambda **_: (anchors, depths), "compute_metrics": lambda **_: (None, {})}
    with _kept(model.lm_head) as logits, _patched(peagle_core, **instead):
        model(**batch, document_ids=torch.zeros_like(batch["input_ids"]), num_depths=STEPS)
    out = torch.full((STEPS, rows, logits[0].shape[-1]), torch.nan)
    out[depths, anchors] = logits[0][0]
    return {"logits": out}


def _paths(model: Any, tokens: torch.Tensor, features: torch.Tensor) -> dict[str, torch.Tensor]:
    """Scores [anchors, S, V] of each slot's likeliest tokens behind the text's own, -inf for others; `unary` logits."""
    kept: dict[str, torch.Tensor] = {}

    def keep(unary_logits: Any, training_candidate_ids: Any, candidate_logits: Any, **_: Any) -> Any:
        every = torch.full_like(unary_logits, -torch.inf)
        kept["logits"] = every.scatter(-1, training_candidate_ids, candidate_logits)
        kept["unary"] = unary_logits
        return None, {}

    # trained are the tokens that are served, and the right one among them where it is missing
    as_served = {"selector_training_candidates": lambda few, _: (few, None, None)}
    with _patched(dflash2_core, compute_metrics=keep, **as_served):
        anchors = _blocks_of(model, tokens, features)
    return {name: x.view(anchors, model.block_size, V) for name, x in kept.items()}


def _blocks_of(model: Any, tokens: torch.Tensor, features: torch.Tensor) -> int:
    """Run the model on the blocks at anchors 1, 2, ...; return how many there are."""
    length = len(tokens)
    mask = torch.zeros(1, length)
    mask[0, 1 : length - model.block_size] = 1
    model(
        hidden_states=features[None],
        input_ids=tokens[None],
        loss_mask=mask,
        verifier_last_hidden_states=features.new_zeros(1, length, H),
        document_ids=torch.zeros(1, length, dtype=torch.long),
        max_anchors=length - model.block_size - 1,
    )
    return length - model.block_size - 1


def _block(model: Any, tokens: torch.Tensor, features: torch.Tensor) -> dict[str, torch.Tensor]:
    """Logits [anchors, S, Vd] of the blocks at anchors 1, 2, ...: what is behind an anchor is its context.

    DSpark's are corrected by the text's own tokens as the previous ones; `confidence` [anchors, S] where it has one.
    """
    kept: dict[str, torch.Tensor] = {}

    def keep(logits: torch.Tensor, targets: Any, *rest: Any, **_: Any) -> Any:
        kept["logits"] = logits
        if len(rest) == 3 and rest[0] is not None:
            kept["confidence"] = rest[0]
        return None, {}

    with _patched(dflash_core, compute_metrics=keep), _patched(dspark_core, compute_metrics=keep):
        anchors = _blocks_of(model, tokens, features)
    return {name: x.view(anchors, model.block_size, *x.shape[2:]) for name, x in kept.items()}


def _shifted(tokens: torch.Tensor, features: torch.Tensor) -> dict[str, torch.Tensor]:
    """A batch of one text as the package's trainer shifts it: row i has token i + 1 and the feature of token i."""
    length = len(tokens)
    batch = shift_batch(
        {
            "input_ids": tokens,
            "hidden_states": features,
            "verifier_last_hidden_states": features[:, :H],
            "loss_mask": torch.ones(length),
            "lengths": torch.tensor([length]),
            "position_ids": torch.arange(length),
        }
    )
    return {name: batch[name][None] for name in ("input_ids", "hidden_states", "position_ids")}


def _target(folder: Path) -> Any:
    torch.manual_seed(1)
    config = transformers.LlamaConfig(**{**BODY, "num_hidden_layers": N})
    target = transformers.LlamaForCausalLM(config)
    _shake(target, seed=100)
    target.save_pretrained(folder)
    return target


def _drafter(case: tuple[str, str, dict[str, Any], dict[str, Any]], target: Path, seed: int) -> Any:
    kind, body, differs, own = case
    own = {"draft_vocab_size": V, **own}
    body_config = {"llama": transformers.LlamaConfig, "qwen3": transformers.Qwen3Config}[body]
    settings = {**BODY, **differs}
    if "rope_parameters" in settings:
        del settings["rope_theta"]
    taps = own.pop("taps", [1, 3, 5])
    block = kind in ("dflash", "dflash2", "dspark")
    own["aux_hidden_state_layer_ids" if block else "eagle_aux_hidden_state_layer_ids"] = taps
    if kind != "eagle3":
        own["mask_token_id"] = MASK
    if kind == "dspark":
        own = {"markov_rank": 6, "block_size": 5, **own}
    if kind == "dflash2":
        own = {"block_size": 5, "selector_rank": 6, "selector_top_k": 6, **own}
    name = {"eagle3": "Eagle3", "peagle": "PEagle", "dflash": "DFlash", "dflash2": "DFlash2", "dspark": "DSpark"}[kind]
    config = getattr(speculators, f"{name}SpeculatorConfig")(
        transformer_layer_config=body_config(**settings),
        speculators_config=speculators.SpeculatorsConfig(
            algorithm=kind,
            proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=STEPS)],
            default_proposal_method="greedy",
            verifier=speculators.VerifierConfig.from_pretrained(str(target)),
        ),
        **own,
    )
    config.transformer_layer_config._attn_implementation = "eager"
    model = getattr(speculators, f"{name}DraftModel")(config).eval()
    _shake(model, seed)
    if own["draft_vocab_size"] != V:
        ids = torch.randperm(V, generator=torch.Generator().manual_seed(seed))[:VD].sort().values
        model.load_vocab_mappings(torch.zeros(V, dtype=torch.bool).index_fill(0, ids, True), ids - torch.arange(VD))
    model.load_verifier_weights()
    if getattr(config, "embed_requires_grad", False):  # trained: its own, no longer the target's
        model.embed_tokens.weight.data.mul_(0.7)
    return model


def _shake(model: Any, seed: int) -> None:
    """Random weights large enough that every part moves the logits; tables still to be loaded stay NaN."""
    g = torch.Generator().manual_seed(seed)
    for name, p in model.named_parameters():
        noise = torch.randn(p.shape, generator=g)
        if not p.isnan().any():
            p.data.copy_(
                1 + 0.2 * noise if "norm" in name else (0.8 if "markov" in name or "codebook" in name else 0.25) * noise
            )


def _eager(model: Any) -> Any:
    """The package's mask for the plain attention: same rules as its block-sparse one."""
    from speculators.models.attention import create_float_mask

    model.config.transformer_layer_config._attn_implementation = "eager"
    model._attn_impl, model._create_mask_fn = "eager", create_float_mask
    return model


@contextlib.contextmanager
def _kept(module: Any) -> Iterator[list[torch.Tensor]]:
    """The outputs of a module, call by call."""
    outputs: list[torch.Tensor] = []
    hook = module.register_forward_hook(lambda _module, _inputs, output: outputs.append(output.detach().clone()))
    try:
        yield outputs
    finally:
        hook.remove()


@contextlib.contextmanager
def _patched(module: Any, **changes: Any) -> Iterator[None]:
    before = {name: getattr(module, name) for name in changes}
    for name, change in changes.items():
        setattr(module, name, change)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(module, name, value)


if __name__ == "__main__":
    main()
