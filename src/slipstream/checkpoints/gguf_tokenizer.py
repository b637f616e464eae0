"""The tokenizer inside a GGUF file as tokenizer.json and tokenizer_config.json.

Byte-level BPE files name their splitting rule; it is written out here for the families that are known, since a wrong
rule would encode prompts differently from how the model was trained. Other rules and SentencePiece are refused.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from slipstream.types import RequestError, WorkError

_CONTROL, _USER_DEFINED, _UNUSED = 3, 4, 5  # GGUF token types

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_WORDS = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|"

# splitting rule -> regular expression; None: the byte-level step's own (GPT-2's)
_SPLITS: dict[str, str | None] = {
    "default": None,
    "gpt-2": None,
    "smollm": None,
    "qwen2": _WORDS + r"\p{N}|" + _REST,
    "llama-bpe": _WORDS + r"\p{N}{1,3}|" + _REST,
}
_SINGLE_DIGITS = ("smollm",)
_WHOLE_WORDS_FIRST = ("llama-bpe",)  # a word that is a token as it stands is not merged up from bytes
_BEGIN_WITH_BOS = ("llama-bpe",)  # unless the file says otherwise


def write_tokenizer(fields: dict[str, Any], folder: Path) -> None:
    """Write tokenizer.json and tokenizer_config.json (chat template included) into `folder`."""
    model = fields.get("tokenizer.ggml.model")
    if model != "gpt2":
        raise RequestError(f"GGUF tokenizer {model!r} is not supported; 'gpt2' (byte-level BPE) is")
    build_tokenizer(fields).save(str(folder / "tokenizer.json"), pretty=False)
    text = json.dumps(tokenizer_config(fields), indent=2, ensure_ascii=False)
    (folder / "tokenizer_config.json").write_text(text + "\n", encoding="utf-8")


def build_tokenizer(fields: dict[str, Any]) -> Any:
    """Build the `tokenizers.Tokenizer` a byte-level BPE file describes, padding entries at the end left out."""
    from tokenizers import AddedToken, Tokenizer, decoders, models

    tokens, types = real_tokens(fields)
    rule = fields.get("tokenizer.ggml.pre", "default")
    merges = [tuple(merge.split(" ", 1)) for merge in fields["tokenizer.ggml.merges"]]
    try:
        bpe = models.BPE(
            vocab={token: i for i, token in enumerate(tokens)},
            merges=merges,
            fuse_unk=False,
            ignore_merges=rule in _WHOLE_WORDS_FIRST,
        )
    except Exception as error:  # the library raises bare Exception
        raise WorkError(f"GGUF tokenizer is damaged: {error}") from error
    tokenizer = Tokenizer(bpe)
    tokenizer.pre_tokenizer = _splitter(rule)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(t, normalized=False, special=True) for t, k in zip(tokens, types, strict=True) if k == _CONTROL]
    )
    tokenizer.add_tokens(
        [AddedToken(t, normalized=False) for t, k in zip(tokens, types, strict=True) if k == _USER_DEFINED]
    )
    _add_bos(tokenizer, fields, tokens)
    return tokenizer


def real_tokens(fields: dict[str, Any]) -> tuple[list[str], list[int]]:
    """Return tokens and their types without the unused entries that pad the end of the embedding table."""
    tokens = fields["tokenizer.ggml.tokens"]
    types = fields.get("tokenizer.ggml.token_type") or [1] * len(tokens)
    count = len(tokens)
    while count and types[count - 1] == _UNUSED:
        count -= 1
    return tokens[:count], types[:count]


def tokenizer_config(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the tokenizer_config.json: named special tokens and the chat template."""
    tokens = fields["tokenizer.ggml.tokens"]
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": int(fields.get(f"{fields.get('general.architecture')}.context_length", 1 << 30)),
    }
    for name, key in (("bos", "bos"), ("eos", "eos"), ("pad", "padding"), ("unk", "unknown")):
        place = fields.get(f"tokenizer.ggml.{key}_token_id")
        if place is not None:
            config[f"{name}_token"] = tokens[place]
    if template := fields.get("tokenizer.chat_template"):
        config["chat_template"] = template
    return config


def _splitter(rule: str) -> Any:
    from tokenizers import Regex, pre_tokenizers

    if rule not in _SPLITS:
        raise RequestError(f"GGUF splitting rule {rule!r} is not supported; {', '.join(_SPLITS)} are")
    pattern = _SPLITS[rule]
    steps: list[Any] = []
    if rule in _SINGLE_DIGITS:
        steps.append(pre_tokenizers.Digits(individual_digits=True))
    if pattern:
        steps.append(pre_tokenizers.Split(Regex(pattern), behavior="isolated"))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pattern is None))
    return pre_tokenizers.Sequence(steps)


def _add_bos(tokenizer: Any, fields: dict[str, Any], tokens: list[str]) -> None:
    from tokenizers import processors

    wanted = fields.get("tokenizer.ggml.add_bos_token", fields.get("tokenizer.ggml.pre") in _BEGIN_WITH_BOS)
    if not wanted or "tokenizer.ggml.bos_token_id" not in fields:
        return
    place = fields["tokenizer.ggml.bos_token_id"]
    bos = tokens[place]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[bos, "$A"], pair=[bos, "$A", bos, "$B:1"], special_tokens=[(bos, place)]
    )
