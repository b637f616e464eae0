"""`slipstream info`: this machine, versions and caches; or what one model, or one drafter, is and what it needs."""

from __future__ import annotations

import argparse
import json
import os
from typing import Any

from slipstream import build
from slipstream.types import RequestError

_FOR_PROGRAMS = ("bytes", "tap_ids")  # in --json only: numbers behind what is said in words
_CPU_OF_INTEREST = ("avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_bf16", "amx_int8", "bf16", "asimd", "sve")


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("model", nargs="?", help="a model or drafter, folder or name; without it: this machine")
    parser.add_argument(
        "--max-model-len", type=int, metavar="N", help="a drafter's memory per row is stated for N tokens"
    )
    parser.add_argument(
        "--model",
        dest="target",
        metavar="TARGET",
        help="a drafter's target: to check, and ask what files do not say",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")


def run(args: argparse.Namespace) -> int:
    """Run the command and return its exit status."""
    facts = _facts(args.model, args.max_model_len, args.target)
    if args.json:
        print(json.dumps(facts, default=str))
    else:
        notes = facts.pop("notes", [])
        shown = {key: value for key, value in facts.items() if key not in _FOR_PROGRAMS}
        width = max(len(key) for key in shown)
        for key, value in shown.items():
            print(f"{key.replace('_', ' ').ljust(width)}  {_shown(value)}")
        for note in notes:
            print(f"note: {note}")
    return 0


def _facts(name: str | None, max_model_len: int | None, target: str | None) -> dict[str, Any]:
    if max_model_len is not None and max_model_len < 1:
        raise RequestError(f"--max-model-len {max_model_len} must be at least 1")
    if name is not None:
        from slipstream.cli.convert_cmd import drafter_folder
        from slipstream.cli.drafter_facts import drafter_facts, is_drafter

        folder = drafter_folder(name)
        if is_drafter(folder):
            return drafter_facts(name, folder, max_model_len, target)
    for flag, value in (("--max-model-len", max_model_len), ("--model", target)):
        if value is not None:
            raise RequestError(f"{flag} has no effect here: it goes with a drafter")
    return machine_facts() if name is None else model_facts(name)


def machine_facts() -> dict[str, Any]:
    """Return what matters for speed on this machine."""
    import torch

    from slipstream import kernels
    from slipstream.measure.record import cpu_name, versions

    device = build.resolve_device("auto")
    dtype = build.resolve_dtype("auto", device, kernels=kernels.available())
    flags = build.cpu_flags()
    return {
        "versions": versions(),
        "device": device,
        "gpu": torch.cuda.get_device_name(0) if device.startswith("cuda") else None,
        "cpu": cpu_name(),
        "cpu_features": [f for f in _CPU_OF_INTEREST if f in flags],
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "dtype_auto": str(dtype).removeprefix("torch."),
        "cache": cache_facts(),
    }


def cache_facts() -> dict[str, Any]:
    """Return the cache root and the size of each model in it."""
    from slipstream.models import home

    root = home()
    models = root / "models"
    found = sorted(p for p in models.iterdir() if p.is_dir()) if models.is_dir() else []
    sizes = {p.name: sum(f.stat().st_size for f in p.rglob("*") if f.is_file()) for p in found}
    return {"root": str(root)} | {name: size_text(size) for name, size in sizes.items()}


def model_facts(name: str) -> dict[str, Any]:
    """Return family, parameters, layers, context and cache memory of a model."""
    from slipstream import models
    from slipstream.measure.record import parameters

    folder = models.resolve(name)
    config = build.read_model_config(folder)
    config = config | config.get("text_config", {})
    layers, context = config.get("num_hidden_layers"), config.get("max_position_embeddings")
    kind, note = build.target_kind(folder)
    try:
        models.check_kind(folder, name)
    except RequestError as e:
        kind, note = "none", str(e)
    return {
        "model": name,
        "folder": str(folder),
        "family": config.get("model_type"),
        "parameters": parameters(folder),
        "layers": layers,
        "hidden": config.get("hidden_size"),
        "vocabulary": config.get("vocab_size"),
        "context": context,
        "target": kind + (f" ({note})" if note else ""),
        "memory_per_row": _memory(config, layers, context),
    }


def _memory(config: dict[str, Any], layers: int | None, context: int | None) -> str | None:
    heads = config.get("num_key_value_heads") or config.get("num_attention_heads")
    if not (layers and context and heads and config.get("hidden_size")):
        return None
    width = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    per_token = 2 * layers * heads * width * 2
    return f"{size_text(per_token * context)} at full context in 16 bits ({size_text(per_token)} per token)"


def size_text(count: float) -> str:
    """Write a number of bytes in the unit that suits it."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{k} {v}" for k, v in value.items())
    if isinstance(value, list):
        return " ".join(map(str, value)) or "-"
    if isinstance(value, int) and value >= 1_000_000:
        return f"{value:,}"
    return "-" if value is None else str(value)
