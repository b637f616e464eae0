"""Turn a GGUF file into an ordinary Hugging Face folder: bfloat16 safetensors, config.json, tokenizer, chat template.

Weights are dequantised once, tensor by tensor and in blocks of rows, so memory stays far below the model's size.
Llama and Qwen 2/3 architectures. Nothing here runs a model.
"""

from __future__ import annotations

import json
import re
import struct
import sys
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from slipstream.checkpoints.gguf_config import config_of, generation_config_of
from slipstream.checkpoints.gguf_file import GgufTensor, damaged, open_gguf
from slipstream.checkpoints.gguf_tokenizer import write_tokenizer
from slipstream.types import RequestError

_OUTER = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_INNER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
ROTATED = re.compile(r"blk\.\d+\.attn_([qk])\.(weight|bias)")


def convert(
    gguf_file: Path, folder: Path, *, progress: bool = True, name: str | None = None, weights: bool = True
) -> None:
    """Write the model in `gguf_file` to the existing empty folder `folder`, config.json last.

    `weights` False leaves the weights out.
    """
    reader = open_gguf(gguf_file)
    fields = reader.fields
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    rope = tensors.pop("rope_freqs.weight", None)
    shapes = {name: [int(n) for n in tensor.shape] for name, tensor in tensors.items()}
    config = config_of(fields, shapes, None if rope is None else np.array(rope.data, dtype=np.float64))
    write_tokenizer(fields, folder)
    try:
        if weights:
            out = folder / "model.safetensors"
            write_weights(list(tensors.values()), config, out, progress, name or gguf_file.stem)
    except (ValueError, IndexError) as error:
        raise damaged(gguf_file, error) from error
    _write_json(folder / "generation_config.json", generation_config_of(fields))
    _write_json(folder / "config.json", config)


def tensor_name(name: str) -> str:
    """Translate a GGUF tensor name to the Hugging Face one."""
    if name in _OUTER:
        return _OUTER[name]
    found = re.fullmatch(r"blk\.(\d+)\.(\w+)\.(weight|bias)", name)
    if not found or found[2] not in _INNER:
        raise RequestError(f"GGUF tensor {name!r} is not part of a Llama or Qwen model; convert a different file")
    return f"model.layers.{found[1]}.{_INNER[found[2]]}.{found[3]}"


def write_weights(tensors: list[GgufTensor], config: dict[str, Any], out: Path, progress: bool, label: str) -> None:
    """Write GGUF tensors as one bfloat16 safetensors file, never holding more than a few of their blocks."""
    from tqdm import tqdm

    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for tensor in tensors:
        start, end = end, end + 2 * int(np.prod(tensor.shape))
        shape = [int(n) for n in reversed(tensor.shape)]
        header[tensor_name(tensor.name)] = {"dtype": "BF16", "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with (
        out.open("wb") as file,
        tqdm(
            total=end, desc=f"convert {label}", unit="B", unit_scale=True, disable=not progress, file=sys.stderr
        ) as bar,
    ):
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors:
            _write_tensor(file, tensor, config)
            bar.update(2 * int(np.prod(tensor.shape)))


def _write_tensor(file: BinaryIO, tensor: GgufTensor, config: dict[str, Any]) -> None:
    rotated = ROTATED.fullmatch(tensor.name)
    if config["model_type"] == "llama" and rotated:
        heads = config["num_attention_heads" if rotated[1] == "q" else "num_key_value_heads"]
        file.write(bfloat16(unpermute(tensor.values(), heads)).tobytes())
        return
    for _, block in tensor.blocks(bfloat16):
        file.write(block.tobytes())


def unpermute(values: np.ndarray, heads: int) -> np.ndarray:
    """Put the rows of Llama's queries or keys in the order of the Hugging Face checkpoints."""
    # GGUF keeps Llama's rotary pairs side by side (x0 y0 x1 y1 ...); Hugging Face keeps halves (x0 x1 ... y0 y1 ...)
    pairs = values.reshape(heads, values.shape[0] // heads // 2, 2, *values.shape[1:])
    return pairs.swapaxes(1, 2).reshape(values.shape)


def bfloat16(values: np.ndarray) -> np.ndarray:
    """Round float32 to the nearest bfloat16, ties to even; the result holds the bits as uint16."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    if not np.isfinite(values).all():
        raise ValueError("a weight is not finite")
    return ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype("<u2")


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
