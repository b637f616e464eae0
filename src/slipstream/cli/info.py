"""`slipstream info`: this machine, versions and caches; or one model's family, size and memory per row."""

from __future__ import annotations

import argparse
import json
import os
from typing import Any

from slipstream import build

_CPU_OF_INTEREST = ("avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_bf16", "amx_int8", "bf16", "asimd", "sve")


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("model", nargs="?", help="a model folder or name; without it: this machine")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")


def run(args: argparse.Namespace) -> int:
    """Run the command and return its exit status."""
    facts = model_facts(args.model) if args.model else machine_facts()
    if args.json:
        print(json.dumps(facts, default=str))
    else:
        width = max(len(key) for key in facts)
        for key, value in facts.items():
            print(f"{key.replace('_', ' ').ljust(width)}  {_shown(value)}")
    return 0


def machine_facts() -> dict[str, Any]:
    """Return what matters for speed on this machine."""
    import torch

    from slipstream.measure.record import cpu_name, versions

    device = build.resolve_device("auto")
    flags = build.cpu_flags()
    return {
        "versions": versions(),
        "device": device,
        "gpu": torch.cuda.get_device_name(0) if device.startswith("cuda") else None,
        "cpu": cpu_name(),
        "cpu_features": [f for f in _CPU_OF_INTEREST if f in flags],
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "dtype_auto": str(build.resolve_dtype("auto", device)).removeprefix("torch."),
        "cache": cache_facts(),
    }


def cache_facts() -> dict[str, Any]:
    """Return the cache root and the size of each model in it."""
    from slipstream.models import home

    root = home()
    models = root / "models"
    found = sorted(p for p in models.iterdir() if p.is_dir()) if models.is_dir() else []
    sizes = {p.name: sum(f.stat().st_size for f in p.rglob("*") if f.is_file()) for p in found}
    return {"root": str(root)} | {name: _size(size) for name, size in sizes.items()}


def model_facts(name: str) -> dict[str, Any]:
    """Return family, parameters, layers, context and cache memory of a model."""
    from slipstream import models
    from slipstream.measure.record import parameters

    folder = models.resolve(name)
    config = build.read_model_config(folder)
    config = config | config.get("text_config", {})
    layers, context = config.get("num_hidden_layers"), config.get("max_position_embeddings")
    kind, note = build.target_kind(folder)
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
    return f"{_size(per_token * context)} at full context in 16 bits ({_size(per_token)} per token)"


def _size(count: float) -> str:
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
