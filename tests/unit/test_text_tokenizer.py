"""A model folder's tokenizer and chat template against transformers' reading of the same files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from slipstream.text import check_vocabularies, load_tokenizer
from slipstream.text.chat_template import check_messages
from slipstream.types import RequestError, WorkError

PLAIN = "{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m.content }}{{ eos_token }}{% endfor %}"
BUSY = """{%- if messages[0].role == 'system' %}
    {%- set system = messages[0].content | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system = 'none' %}
{%- endif %}
{{- bos_token + system }}
{% for message in messages %}
    {% if loop.index0 > 7 %}{% break %}{% endif %}
    {%- if message.role not in ['user', 'assistant', 'tool'] %}
        {{- raise_exception('role ' + message.role + ' is unknown') }}
    {%- endif %}
    {% generation %}{{ message.role }}: {{ message.content }}{% endgeneration %}

{% endfor %}
{%- if tools %}{{ tools | tojson(indent=2) }}{{ {'a': '<é>'} | tojson }}{% endif %}
{%- if add_generation_prompt %}assistant:{% endif %}
{{- strftime_now('%Y')[:2] }}{{ extra | default('') }}
"""
MESSAGES = [
    {"role": "system", "content": " be brief "},
    {"role": "user", "content": "Zoë <b>&\n  한국어 👩‍👧"},
    {"role": "assistant", "content": "ok"},
    {"role": "user", "content": "again"},
]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "é": "<"}}}]


def make_folder(place: Path, template: Any = PLAIN, **settings: Any) -> Path:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Backend(models.BPE({letter: i for i, letter in enumerate(letters)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("<s>"), AddedToken("</s>"), AddedToken("<eot>")])
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 256)])
    place.mkdir(exist_ok=True)
    backend.save(str(place / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": {"__type": "AddedToken", "content": "</s>"},
    }
    config |= {"chat_template": template} | settings
    write(place / "tokenizer_config.json", {k: v for k, v in config.items() if v is not None})
    return place


def write(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content), encoding="utf-8")


def test_models_with_the_same_tokenizer_file_hold_it_once(tmp_path: Path) -> None:
    first = load_tokenizer(make_folder(tmp_path / "first"))
    again = load_tokenizer(make_folder(tmp_path / "again", eos_token="<eot>"), first)
    assert again.backend is first.backend
    assert (first.eos_ids, again.eos_ids) == ((257,), (258,)), "what else a folder says is its own"
    assert len(check_vocabularies(first, again, "first", "again")) == 1
    other = make_folder(tmp_path / "other")
    text = (other / "tokenizer.json").read_text()
    (other / "tokenizer.json").write_text(text.replace('"<eot>"', '"<end>"'))  # of the same size
    assert load_tokenizer(other, first).token_of(258) == "<end>"


def test_special_ids(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(make_folder(tmp_path))
    assert (tokenizer.vocab, tokenizer.bos_id, tokenizer.eos_ids) == (259, 256, (257,))
    assert tokenizer.special_ids == {256, 257, 258}
    assert tokenizer.encode("a") == [256, tokenizer.get_vocab()["a"]]
    assert tokenizer.encode("a", add_special=False) == [tokenizer.get_vocab()["a"]]
    assert tokenizer.decode(tokenizer.encode("é</s>")) == "é"
    assert tokenizer.decode(tokenizer.encode("é</s>"), skip_special=False) == "<s>é</s>"


@pytest.mark.parametrize(
    ("generation", "config", "expected"),
    [
        ([258, 257], 5, (258, 257)),  # generation_config.json first, config.json not asked
        (258, None, (258, 257)),  # the tokenizer's own comes last
        (None, 7, (7, 257)),
        (None, [7, 257], (7, 257)),
        (0, None, (0, 257)),  # id 0 is an id
    ],
)
def test_end_ids_come_from_all_who_know(
    tmp_path: Path, generation: Any, config: Any, expected: tuple[int, ...]
) -> None:
    folder = make_folder(tmp_path)
    if generation is not None:
        write(folder / "generation_config.json", {"eos_token_id": generation})
    write(folder / "config.json", {"eos_token_id": config})
    assert load_tokenizer(folder).eos_ids == expected


def test_a_model_without_end(tmp_path: Path) -> None:
    assert load_tokenizer(make_folder(tmp_path, eos_token=None, bos_token=None)).eos_ids == ()


def test_ids_with_gaps_count_to_the_highest(tmp_path: Path) -> None:
    backend = Backend(models.WordLevel({"a": 0, "b": 9}, unk_token="a"))
    backend.save(str(tmp_path / "tokenizer.json"))
    assert load_tokenizer(tmp_path).vocab == 10


@pytest.mark.parametrize("template", [PLAIN, BUSY])
@pytest.mark.parametrize("options", [{}, {"add_generation_prompt": False}, {"tools": TOOLS, "extra": "!"}])
def test_chat_equals_transformers(tmp_path: Path, template: str, options: dict[str, Any]) -> None:
    from transformers import AutoTokenizer

    folder = make_folder(tmp_path, template)
    theirs, ours = AutoTokenizer.from_pretrained(folder), load_tokenizer(folder)
    wanted = {"add_generation_prompt": True, **options}
    assert ours.render(MESSAGES, **options) == theirs.apply_chat_template(MESSAGES, tokenize=False, **wanted)
    ids = theirs.apply_chat_template(MESSAGES, **wanted)["input_ids"]
    assert ours.chat(MESSAGES, **options) == ids
    assert ids.count(256) == 1  # no second BOS


@pytest.mark.model
def test_chat_of_the_default_model_equals_transformers() -> None:
    from transformers import AutoTokenizer

    from slipstream import models as catalogue

    folder = catalogue.resolve(catalogue.DEFAULT)
    theirs, ours = AutoTokenizer.from_pretrained(folder), load_tokenizer(folder)
    for messages in (MESSAGES, MESSAGES[1:], MESSAGES[:2]):
        ids = theirs.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
        assert ours.chat(messages) == ids
        assert ours.decode(ids, skip_special=False) == theirs.decode(ids)
    assert ours.eos_ids[0] == theirs.eos_token_id
    assert ours.vocab == len(theirs)


def test_a_template_file_wins_and_named_templates_are_chosen(tmp_path: Path) -> None:
    named = [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}]
    tokenizer = load_tokenizer(make_folder(tmp_path, named))
    assert tokenizer.render(MESSAGES) == "D"
    assert tokenizer.render(MESSAGES, tools=TOOLS) == "T"
    (tmp_path / "chat_template.jinja").write_text("F")
    assert load_tokenizer(tmp_path).render(MESSAGES) == "F"


def test_no_template_is_a_wrong_request(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(make_folder(tmp_path, None))
    assert not tokenizer.has_chat_template
    with pytest.raises(RequestError, match="no chat template"):
        tokenizer.chat(MESSAGES)


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([], "non-empty list"),
        ("hello", "non-empty list"),
        ({"role": "user", "content": "x"}, "non-empty list"),
        (["hello"], r"messages\[0\]: an object"),
        ([{"content": "x"}], r"messages\[0\]: 'role' must be a string .*, not None"),
        ([MESSAGES[1], {"role": "user"}], r"messages\[1\]: 'content' is missing"),
        ([{"role": "user", "content": 5}], r"'content' must be a string, not int"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "content part 'image_url' is not supported"),
    ],
)
def test_malformed_messages_are_named(messages: Any, words: str) -> None:
    with pytest.raises(RequestError, match=words):
        check_messages(messages)


def test_text_parts_are_joined_and_empty_fields_dropped() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert check_messages([{"role": "user", "content": parts, "name": None}]) == [{"role": "user", "content": "ab"}]
    call = {"role": "assistant", "content": None, "tool_calls": [1]}
    assert check_messages([call]) == [{"role": "assistant", "content": "", "tool_calls": [1]}]


@pytest.mark.parametrize(
    ("template", "words"),
    [
        (BUSY, "role judge is unknown"),
        ("{{ messages.append(1) }}", "refuses"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ 1 + 'a' }}", "refuses"),
    ],
)
def test_what_a_template_refuses_is_a_wrong_request(tmp_path: Path, template: str, words: str) -> None:
    tokenizer = load_tokenizer(make_folder(tmp_path, template))
    with pytest.raises(RequestError, match=words):
        tokenizer.chat([{"role": "judge", "content": "x"}])


def test_damaged_files_are_named(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, "{% if %}")
    with pytest.raises(WorkError, match="not valid Jinja"):
        load_tokenizer(folder).chat(MESSAGES)
    (folder / "tokenizer_config.json").write_text("{")
    with pytest.raises(WorkError, match=r"tokenizer_config\.json: not valid JSON"):
        load_tokenizer(folder)
    (folder / "tokenizer_config.json").write_text("{}")
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(WorkError, match=r"tokenizer\.json: not a readable tokenizer"):
        load_tokenizer(folder)


def test_a_folder_without_any_tokenizer_is_a_wrong_request(tmp_path: Path) -> None:
    write(tmp_path / "config.json", {"model_type": "llama"})
    with pytest.raises(RequestError, match=r"no tokenizer\.json"):
        load_tokenizer(tmp_path)


def test_prompts_that_are_no_text(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(make_folder(tmp_path))
    with pytest.raises(RequestError, match="a string is needed, not list"):
        tokenizer.encode(["a"])  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="lone surrogate"):
        tokenizer.encode("a\ud800")


def test_saved_truncation_and_padding_do_not_cut_prompts(tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    backend = Backend.from_file(str(folder / "tokenizer.json"))
    backend.enable_truncation(4)
    backend.enable_padding(length=8)
    backend.save(str(folder / "tokenizer.json"))
    assert len(load_tokenizer(folder).encode("abcdefghijkl")) == 13
    assert len(load_tokenizer(folder).encode("a")) == 2


def test_a_tokenizer_that_is_code_is_refused_without_asking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Left to itself, the library would ask on the terminal whether to run the folder's code."""
    asked = []
    monkeypatch.setattr("builtins.input", lambda *text: asked.append(text) or "y")
    auto_map = {"AutoTokenizer": ["code.Tricky", None]}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "Tricky", "auto_map": auto_map}))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    (tmp_path / "code.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    with pytest.raises(RequestError, match=r"no tokenizer\.json"):
        load_tokenizer(tmp_path)
    assert not asked
    assert not (tmp_path / "ran").exists()
