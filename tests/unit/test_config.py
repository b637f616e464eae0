"""Config records: unknown keys and values without effect are refused, with the nearest valid name."""

from __future__ import annotations

import re

import pytest

from slipstream.config import (
    DrafterConfig,
    EngineConfig,
    TargetConfig,
    draft_tokens_of,
    from_mapping,
    from_speculative_config,
)
from slipstream.types import RequestError


def test_unknown_key_names_the_nearest():
    with pytest.raises(RequestError, match=r"unknown target key 'dtyp' \(did you mean 'dtype'\?\)"):
        from_mapping(TargetConfig, {"dtyp": "float32"}, "target")
    assert from_mapping(TargetConfig, {"dtype": "float32"}, "target").dtype == "float32"


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (TargetConfig, {"model": ""}),
        (TargetConfig, {"model": None}),
        (TargetConfig, {"dtype": "float8"}),
        (TargetConfig, {"quantize": "int7"}),
        (TargetConfig, {"max_len": 1}),
        (TargetConfig, {"max_len": True}),
        (DrafterConfig, {"spec": ""}),
        (DrafterConfig, {"draft_tokens": -1}),
        (DrafterConfig, {"draft_tokens": 10_000}),
        (EngineConfig, {"max_rows": 0}),
        (EngineConfig, {"logprobs_mode": "raw"}),
        (EngineConfig, {"seed": 1.5}),
    ],
)
def test_wrong_values_are_refused(kind, values):
    with pytest.raises(RequestError, match=re.escape(repr(next(iter(values.values()))))):
        kind(**values)


@pytest.mark.parametrize(("value", "expected"), [("auto", None), (None, None), (0, 0), (7, 7)])
def test_draft_tokens(value, expected):
    assert draft_tokens_of(value) == expected


@pytest.mark.parametrize("value", [-1, 2.5, "3", True, 257, float("nan")])
def test_draft_tokens_are_whole_numbers(value):
    with pytest.raises(RequestError, match=r"draft_tokens=.* must be a whole number, 0 to 256, or 'auto'"):
        draft_tokens_of(value)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"method": "ngram"}, DrafterConfig(spec="lookup")),
        ({"model": "[ngram]", "num_speculative_tokens": 3}, DrafterConfig(spec="lookup", draft_tokens=3)),
        (
            {"method": "ngram", "prompt_lookup_max": 5, "prompt_lookup_min": 2},
            DrafterConfig(spec="lookup", options={"min_ngram": 2, "max_ngram": 5}),
        ),
        (
            {"method": "ngram", "prompt_lookup_max": 5},
            DrafterConfig(spec="lookup", options={"min_ngram": 5, "max_ngram": 5}),
        ),
        ({"model": "/m", "num_speculative_tokens": 4}, DrafterConfig(spec="draft_model:/m", draft_tokens=4)),
        ({"method": "draft_model", "model": "/m"}, DrafterConfig(spec="draft_model:/m")),
        ({"method": "eagle3", "model": "/m"}, DrafterConfig(spec="eagle3:/m")),
        ({"method": "ngram", "num_speculative_tokens": 0}, DrafterConfig(spec="none", draft_tokens=0)),
    ],
)
def test_speculative_config_is_read_as_vllm_reads_it(given, expected):
    assert from_speculative_config(given) == expected


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "needs a method"),
        ([], "JSON object"),
        ({"num_spec_tokens": 3, "method": "ngram"}, r"did you mean 'num_speculative_tokens'\?"),
        ({"method": "draft_model"}, 'needs a model: add "model": PATH'),
        ({"method": "eagle3", "num_speculative_tokens": 3}, "'eagle3' needs a model: add \"model\": PATH"),
        ({"method": "draft_model", "model": ""}, "model"),
        ({"method": ""}, "method"),
        ({"method": 3}, "method"),
        ({"method": "ngram", "model": "/m"}, "no effect"),
        ({"method": "draft_model", "model": "/m", "prompt_lookup_max": 3}, "no effect"),
        ({"method": "ngram", "prompt_lookup_max": 2, "prompt_lookup_min": 3}, "not be larger"),
        ({"method": "ngram", "prompt_lookup_max": 0}, "prompt_lookup_max=0"),
    ],
)
def test_speculative_config_refuses_what_it_cannot_honour(given, words):
    with pytest.raises(RequestError, match=words):
        from_speculative_config(given)
