"""A model folder's tokenizer: text to ids and back, chat messages to ids, and which ids mean what.

Loads tokenizer.json with the `tokenizers` library alone; only folders without one need transformers. Also compares
two vocabularies, since a draft model is of use only if its ids mean what the target's mean.
"""

from __future__ import annotations

import filecmp
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from slipstream.text.chat_template import ChatTemplate, find_template
from slipstream.types import RequestError, WorkError

_SHOWN = 3  # differing ids named in a message


class Tokenizer:
    """Text and ids of one model.

    `vocab` is the number of real ids, padding of the embedding table not counted. `eos_ids` are all ids that end a
    text, `bos_id` the one that begins it or None, `special_ids` those `decode` leaves out.
    """

    def __init__(
        self, backend: Any, *, eos_ids: Sequence[int], bos_id: int | None, template: ChatTemplate | None
    ) -> None:
        self.backend = backend  # tokenizers.Tokenizer
        self.file: Path | None = None  # what it was read from
        self.vocab = _real_ids(backend)
        self.pieces: dict[int, bytes] = {}  # of ids that a detokenizer has met, for the next one
        self.eos_ids = tuple(eos_ids)
        self.bos_id = bos_id
        self.template = template
        added = backend.get_added_tokens_decoder()
        self.special_ids = frozenset(i for i, token in added.items() if token.special)

    @property
    def has_chat_template(self) -> bool:
        """Whether `chat` can be used."""
        return self.template is not None

    def encode(self, text: str, add_special: bool = True) -> list[int]:
        """Return the ids of `text`, with the model's own BOS/EOS if it wants them and `add_special`."""
        if not isinstance(text, str):
            raise RequestError(f"prompt: a string is needed, not {type(text).__name__}")
        try:
            return list(self.backend.encode(text, add_special_tokens=add_special).ids)
        except (UnicodeEncodeError, TypeError) as error:
            raise RequestError("prompt: holds a lone surrogate, which is no text; encode it as UTF-8") from error

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        """Return the text of `ids`; U+FFFD where their bytes are not UTF-8."""
        return str(self.backend.decode(list(ids), skip_special_tokens=skip_special))

    def token_of(self, id: int) -> str | None:
        """Return the raw vocabulary entry of `id`, or None when there is none."""
        return self.backend.id_to_token(id) if id >= 0 else None  # type: ignore[no-any-return]

    def get_vocab(self) -> dict[str, int]:
        """Return raw vocabulary entries and their ids."""
        return dict(self.backend.get_vocab(with_added_tokens=True))

    def render(self, messages: Sequence[Mapping[str, Any]], **kwargs: Any) -> str:
        """Return the prompt text the chat template makes of `messages`."""
        if self.template is None:
            raise RequestError("the model has no chat template: use a plain prompt, or an instruct/chat model")
        return self.template.render(messages, **kwargs)

    def chat(self, messages: Sequence[Mapping[str, Any]], **kwargs: Any) -> list[int]:
        """Return the ids of chat `messages`; `kwargs` are the template's own (tools=..., add_generation_prompt=...)."""
        return self.encode(self.render(messages, **kwargs), add_special=False)  # the template writes its own BOS


def load_tokenizer(folder: str | Path, like: Tokenizer | None = None) -> Tokenizer:
    """Load the tokenizer of a model folder.

    `like` is another model's: where both have the same tokenizer.json it is read and held once, 100 MB for a large one.
    """
    folder = Path(folder)
    settings = _read_json(folder / "tokenizer_config.json")
    file = folder / "tokenizer.json"
    backend = like.backend if like is not None and _same_file(like.file, file) else _backend(folder)
    names = _special_names(folder, settings)
    bos = names.get("bos_token")
    made = Tokenizer(
        backend,
        eos_ids=_eos_ids(folder, backend, names),
        bos_id=backend.token_to_id(bos) if bos else None,
        template=find_template(folder, settings, names),
    )
    made.file = file if file.is_file() else None
    return made


def _same_file(one: Path | None, other: Path) -> bool:
    try:
        return one is not None and filecmp.cmp(one, other, shallow=False)
    except OSError:
        return False


def check_vocabularies(target: Tokenizer, draft: Tokenizer, target_name: str, draft_name: str) -> list[str]:
    """Raise RequestError if an id means different strings in the two models; return warnings about lesser differences.

    Ids that only one of them has are no reason to refuse: they are never drafted.
    """
    same = target.backend is draft.backend
    ours, theirs = ({}, {}) if same else (target.get_vocab(), draft.get_vocab())
    if ours != theirs:
        _refuse_differing(ours, theirs, target_name, draft_name)
    warnings = []
    for name, here, there in ((target_name, ours, theirs), (draft_name, theirs, ours)):
        alone = len(here.keys() - there.keys())
        if alone:
            warnings.append(f"{alone} ids exist only in {name}; they are never drafted")
    if set(target.eos_ids) != set(draft.eos_ids):
        warnings.append(
            f"end-of-text ids differ: {target_name} has {list(target.eos_ids)}, {draft_name} {list(draft.eos_ids)}; "
            "the target's are used"
        )
    if target.bos_id != draft.bos_id:
        warnings.append(
            f"begin-of-text ids differ: {target_name} has {target.bos_id}, {draft_name} {draft.bos_id}; "
            "the target's is used"
        )
    return warnings


def _refuse_differing(ours: dict[str, int], theirs: dict[str, int], target_name: str, draft_name: str) -> None:
    mine = {i: token for token, i in ours.items()}
    yours = {i: token for token, i in theirs.items()}
    shared = mine.keys() & yours.keys()
    wrong = sorted(i for i in shared if mine[i] != yours[i])
    if not wrong and shared:
        return
    shown = ", ".join(f"id {i} is {mine[i]!r} and {yours[i]!r}" for i in wrong[:_SHOWN])
    raise RequestError(
        f"draft model {draft_name} cannot draft for {target_name}: their tokenizers differ in {len(wrong)} of "
        f"{len(shared)} shared ids ({shown or 'no id is shared'}); choose a draft model with the target's tokenizer"
    )


def _backend(folder: Path) -> Any:
    from tokenizers import Tokenizer as Backend

    file = folder / "tokenizer.json"
    if not file.is_file():
        return _converted_backend(folder)
    try:
        backend = Backend.from_file(str(file))
    except Exception as error:  # the library raises bare Exception
        raise WorkError(f"{file}: not a readable tokenizer ({error})") from error
    backend.no_truncation()
    backend.no_padding()
    return backend


def _converted_backend(folder: Path) -> Any:
    from transformers import AutoTokenizer

    try:
        slow = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)  # unset, it would ask on the terminal
    except (OSError, ValueError, ImportError) as error:
        raise RequestError(f"model folder {folder}: no tokenizer.json, nor another tokenizer ({error})") from error
    backend = getattr(slow, "backend_tokenizer", None)
    if backend is None:
        raise RequestError(f"model folder {folder}: {type(slow).__name__} cannot be used; a tokenizer.json is needed")
    return backend


def _real_ids(backend: Any) -> int:
    count = int(backend.get_vocab_size(with_added_tokens=True))
    if count and backend.id_to_token(count - 1) is not None and backend.id_to_token(count) is None:
        return count
    return max(backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1  # ids with gaps


def _eos_ids(folder: Path, backend: Any, names: Mapping[str, str]) -> tuple[int, ...]:
    """All ids that end a text: generation_config.json's (config.json's if it has none), then the tokenizer's own."""
    ids: list[int] = []
    for file in ("generation_config.json", "config.json"):
        settings = _read_json(folder / file)
        found = settings.get("eos_token_id", settings.get("text_config", {}).get("eos_token_id"))
        if found is not None:
            ids += found if isinstance(found, list) else [found]
            break
    own = backend.token_to_id(names["eos_token"]) if "eos_token" in names else None
    if own is not None:
        ids.append(own)
    return tuple(dict.fromkeys(ids))


def _special_names(folder: Path, settings: Mapping[str, Any]) -> dict[str, str]:
    merged = {**_read_json(folder / "special_tokens_map.json"), **settings}
    names = {}
    for key, value in merged.items():
        text = value.get("content") if isinstance(value, dict) else value
        if key.endswith("_token") and isinstance(text, str):
            names[key] = text
    return names


def _read_json(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise WorkError(f"{file}: not valid JSON ({error})") from error
    return content if isinstance(content, dict) else {}
