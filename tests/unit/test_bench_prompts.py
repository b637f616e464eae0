"""The shipped prompts: ten of each kind, distinct, grounded ones with a source to copy from."""

from __future__ import annotations

import pytest

from slipstream import RequestError
from slipstream.measure.workloads import load_prompts


def test_ten_of_each_kind_with_distinct_names_and_texts() -> None:
    prompts = load_prompts()
    assert [p.kind for p in prompts] == ["grounded"] * 10 + ["free"] * 10
    assert len({p.id for p in prompts}) == 20
    assert len({p.messages[-1]["content"] for p in prompts}) == 20


def test_messages_end_with_the_user() -> None:
    for prompt in load_prompts():
        assert [m["role"] for m in prompt.messages] in (["user"], ["system", "user"])


def test_grounded_prompts_carry_a_source_and_free_ones_do_not() -> None:
    words = {p.id: len(p.messages[-1]["content"].split()) for p in load_prompts()}
    assert all(words[p.id] >= 60 for p in load_prompts("grounded"))
    assert all(words[p.id] <= 40 for p in load_prompts("free"))


def test_count_takes_the_first_of_each_kind() -> None:
    assert [p.id for p in load_prompts("all", 1)] == ["rename-argument", "explain-tides"]


def test_unknown_kind_names_the_nearest() -> None:
    with pytest.raises(RequestError, match="did you mean 'grounded'"):
        load_prompts("ground")
