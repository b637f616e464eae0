"""Where a target runs on threads of its own, torch keeps to one thread during a round, and only then."""

from __future__ import annotations

import dataclasses
import threading

import pytest
import torch
from cases_kit import chain_target, finish, make_engine, request

from slipstream.testing import every_toy

TEXT = [3, 4, 5, 6, 7, 8]


class Watched:
    """A toy target that notes how many threads torch has at each call."""

    def __init__(self, own_threads: bool) -> None:
        self.toy = chain_target(TEXT)
        self.caps = dataclasses.replace(self.toy.caps, own_threads=own_threads)
        self.seen: list[int] = []

    def __getattr__(self, name: str):
        if name in ("prefill", "score", "commit"):
            self.seen.append(torch.get_num_threads())
        return getattr(self.toy, name)


@pytest.fixture(autouse=True)
def _three_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("own", "during"), [(True, 1), (False, 3)])
def test_prefill_drafting_and_scoring_see_one_thread_where_the_target_has_its_own(own: bool, during: int) -> None:
    target = Watched(own)
    engine = make_engine(target, every_toy(target.toy.law, 16, 3), 4)
    target.seen.clear()
    finish(engine, request())
    assert len(target.seen) > 3
    assert set(target.seen) == {during}
    assert torch.get_num_threads() == 3


def test_the_threads_come_back_after_a_round_that_failed() -> None:
    target = Watched(True)
    target.toy.fail_at = frozenset({2})
    engine = make_engine(target, every_toy(target.toy.law, 16, 3), 4)
    with pytest.raises(RuntimeError, match="call 2"):
        finish(engine, request())
    assert torch.get_num_threads() == 3


def test_who_runs_many_rounds_opens_what_they_run_in_once() -> None:
    target = Watched(True)
    engine = make_engine(target, every_toy(target.toy.law, 16, 3), 4)
    with engine.at_work:
        finish(engine, request())
        assert torch.get_num_threads() == 1
        assert torch.is_inference_mode_enabled()
        other = threading.Thread(target=finish, args=(engine, request()))  # opens it for itself
        other.start()
        other.join()
        assert torch.is_inference_mode_enabled()
    assert set(target.seen) == {1}
    assert torch.get_num_threads() == 3
    assert not torch.is_inference_mode_enabled()
