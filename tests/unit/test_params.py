"""Every sampling parameter is inside its limits or refused by name; other libraries' names are understood."""

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from slipstream.params import ALIASES, LIMITS, check_vocab, from_dict
from slipstream.types import RequestError, SamplingParams

NAN, INF = float("nan"), float("inf")

WRONG: dict[str, list[Any]] = {
    "temperature": [-0.1, NAN, INF, "1", None, True],
    "top_k": [-2, 1.5, 3.0, "3", None, True],
    "top_p": [0.0, -0.1, 1.01, NAN, INF, "1", None, True],
    "min_p": [-0.01, 1.01, NAN, None, False],
    "repetition_penalty": [0.0, -1.0, NAN, INF, None, True],
    "presence_penalty": [-2.01, 2.01, NAN, None, True],
    "frequency_penalty": [-2.01, 2.01, NAN, None, False],
    "logit_bias": [{-1: 1.0}, {1.0: 1.0}, {True: 1.0}, {"1": 1.0}, {1: NAN}, {1: 100.5}, {1: INF}, {1: None}, [(1, 2)]],
    "min_tokens": [-1, 1.0, None, True],
    "max_tokens": [0, -1, 2.5, "3", True],
    "stop": ["", [""], ["a", ""], [1], 3, None, b"x"],
    "stop_token_ids": [[-1], [1.0], [True], "12", 5, None],
    "include_stop_str_in_output": [0, 1, None, "yes"],
    "ignore_eos": [0, 1, None, "no"],
    "n": [0, -1, 1.0, None, True],
    "seed": [1.0, "1", True, 2**63, -(2**63) - 1],
    "logprobs": [-1, 21, 1.0, True, False],
    "logits_processors": [[1], None, [lambda ids, row: row, "x"], 3],
}

RIGHT: dict[str, list[Any]] = {
    "temperature": [0, 0.0, 1e-300, 2, 100.0, np.float32(0.5)],
    "top_k": [-1, 0, 1, 10**9, np.int64(4)],
    "top_p": [1e-9, 1, 1.0],
    "min_p": [0, 0.5, 1],
    "repetition_penalty": [1e-3, 1, 50.0],
    "presence_penalty": [-2, 2.0],
    "frequency_penalty": [-2.0, 2],
    "logit_bias": [None, {}, {0: -100, 5: 100.0}],
    "min_tokens": [0, 256],
    "max_tokens": [1, None],
    "stop": ["a", [], ["a", "b"], ("c",)],
    "stop_token_ids": [[], (1, 2), {3}],
    "include_stop_str_in_output": [True],
    "ignore_eos": [True],
    "n": [1, 100],
    "seed": [None, 0, -(2**63), 2**63 - 1],
    "logprobs": [None, 0, 20],
    "logits_processors": [(), [lambda ids, row: row]],
}


def test_the_tables_cover_every_field() -> None:
    assert set(WRONG) == set(RIGHT) == set(LIMITS) == set(SamplingParams.__dataclass_fields__)


@pytest.mark.parametrize("name, value", [(name, value) for name, values in WRONG.items() for value in values])
def test_outside_the_limits_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(RequestError) as refused:
        SamplingParams(**{name: value})
    message = str(refused.value)
    assert message.startswith(f"{name}=")
    assert LIMITS[name][1] in message
    assert "\n" not in message


@pytest.mark.parametrize("name, value", [(name, value) for name, values in RIGHT.items() for value in values])
def test_the_ends_of_the_limits_are_inside(name: str, value: Any) -> None:
    SamplingParams(**{name: value})


def test_min_tokens_may_not_exceed_max_tokens() -> None:
    SamplingParams(min_tokens=5, max_tokens=5)
    SamplingParams(min_tokens=500, max_tokens=None)
    with pytest.raises(RequestError, match="min_tokens=6 is above max_tokens=5"):
        SamplingParams(min_tokens=6, max_tokens=5)


def test_a_huge_value_does_not_fill_the_message() -> None:
    with pytest.raises(RequestError) as refused:
        SamplingParams(stop=["x" * 5000, ""])
    assert len(str(refused.value)) < 250


def test_what_the_caller_changes_later_changes_nothing() -> None:
    stop, bias = ["a"], {3: 1.0}
    params = SamplingParams(stop=stop, logit_bias=bias)
    stop.append("")
    bias[-1] = 1e9
    assert (params.stop, params.logit_bias) == (("a",), {3: 1.0})


def test_an_iterator_is_read_once_and_kept() -> None:
    params = SamplingParams(stop=(text for text in "ab"), stop_token_ids=iter([3, 4]))
    assert (params.stop, params.stop_token_ids) == (("a", "b"), (3, 4))


def test_token_ids_the_target_lacks_are_refused() -> None:
    check_vocab(SamplingParams(logit_bias={9: 1.0}, stop_token_ids=[9]), 10)
    with pytest.raises(RequestError, match=r"logit_bias names token 10.* 0 to 9"):
        check_vocab(SamplingParams(logit_bias={10: 1.0}), 10)
    with pytest.raises(RequestError, match="stop_token_ids names token 12"):
        check_vocab(SamplingParams(stop_token_ids=[3, 12]), 10)


def test_names_of_other_libraries_mean_ours() -> None:
    assert from_dict({"max_new_tokens": 7, "num_return_sequences": 2, "stop_strings": ["a"], "min_new_tokens": 3}) == (
        SamplingParams(max_tokens=7, n=2, stop=["a"], min_tokens=3)
    )
    assert from_dict({"max_completion_tokens": 9}).max_tokens == 9
    assert from_dict({"top_k": 5, "top_p": 0.5}) == SamplingParams(top_k=5, top_p=0.5)


def test_every_alias_leads_to_a_field() -> None:
    assert set(ALIASES.values()) <= set(LIMITS)


@pytest.mark.parametrize(
    "options, temperature",
    [
        ({"do_sample": False}, 0.0),
        ({"do_sample": True}, 1.0),
        ({"do_sample": True, "temperature": 0.3}, 0.3),
        ({"do_sample": False, "temperature": 0}, 0.0),
        ({"do_sample": None, "temperature": 0.3}, 0.3),
    ],
)
def test_do_sample_decides_the_temperature_only_when_none_is_given(options: dict, temperature: float) -> None:
    assert from_dict(options).temperature == temperature


@pytest.mark.parametrize("options", [{"do_sample": False, "temperature": 0.7}, {"do_sample": True, "temperature": 0}])
def test_do_sample_may_not_contradict_the_temperature(options: dict) -> None:
    with pytest.raises(RequestError, match=r"do_sample.*contradicts temperature"):
        from_dict(options)


@pytest.mark.parametrize(
    "options, logprobs",
    [
        ({"logprobs": True, "top_logprobs": 3}, 3),
        ({"logprobs": True}, 0),
        ({"logprobs": False}, None),
        ({"logprobs": 4}, 4),
        ({"logprobs": None}, None),
    ],
)
def test_chat_logprobs_are_understood(options: dict, logprobs: int | None) -> None:
    assert from_dict(options).logprobs == logprobs


@pytest.mark.parametrize(
    "options", [{"top_logprobs": 3}, {"logprobs": False, "top_logprobs": 3}, {"logprobs": True, "top_logprobs": 21}]
)
def test_top_logprobs_without_logprobs_is_refused(options: dict) -> None:
    with pytest.raises(RequestError, match="top_logprobs"):
        from_dict(options)


def test_json_text_keys_of_logit_bias_become_ids() -> None:
    assert from_dict({"logit_bias": {"50": -100, 3: 1}}).logit_bias == {50: -100, 3: 1}
    with pytest.raises(RequestError, match="logit_bias"):
        from_dict({"logit_bias": {"fifty": -100}})


def test_null_is_the_default_unless_it_is_a_value() -> None:
    assert from_dict({"top_p": None, "stop": None, "n": None}) == SamplingParams()
    assert from_dict({"max_tokens": None}).max_tokens is None


@pytest.mark.parametrize("key, near", [("temprature", "temperature"), ("topk", "top_k"), ("max_token", "max_tokens")])
def test_an_unknown_key_names_the_nearest(key: str, near: str) -> None:
    with pytest.raises(RequestError, match=f"unknown sampling parameter '{key}': did you mean '{near}'"):
        from_dict({key: 1})


def test_two_names_for_one_field_must_agree() -> None:
    assert from_dict({"max_tokens": 3, "max_new_tokens": 3}).max_tokens == 3
    with pytest.raises(RequestError, match="max_new_tokens=4 contradicts max_tokens=3"):
        from_dict({"max_tokens": 3, "max_new_tokens": 4})


def test_importing_params_does_not_import_torch() -> None:
    code = "import sys, slipstream.params; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
