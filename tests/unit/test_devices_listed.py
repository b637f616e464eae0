"""What the host remembers of small tensors it made: they follow a tensor to a device; all others are read."""

from __future__ import annotations

import torch

from fake_device import FakeDevice
from slipstream.devices import listed, moved, one_each, remembered
from slipstream.drafters.chains import chain_draft
from slipstream.types import SamplingParams, Sequence
from slipstream.verify.points import walk_points


def rows(*ids: int) -> list[Sequence]:
    return [Sequence(i, [9, token], 2, SamplingParams()) for i, token in enumerate(ids)]


def test_remembered_values_are_not_read() -> None:
    x = remembered(torch.tensor([[3, 1], [4, 1]]), [[3, 1], [4, 1]])
    assert listed(x) == [[3, 1], [4, 1]]
    assert listed(x) is listed(x)
    assert listed(x + 1) == [[4, 2], [5, 2]]  # another tensor
    assert listed(x.clone().fill_(7)) == [[7, 7], [7, 7]]
    assert listed(remembered(torch.tensor([5]), [5])) == [5]


def test_what_is_read_is_not_remembered() -> None:
    x = torch.tensor([1, 2])
    assert listed(x) == [1, 2]
    x.fill_(7)
    assert listed(x) == [7, 7]


def test_a_device_is_not_asked_for_what_the_host_sent() -> None:
    with FakeDevice() as fake:
        x = moved(torch.tensor([1, 2]), "cuda")
        assert listed(x) == [1, 2]
        assert not fake.waits
        assert listed(fake.put(torch.tensor([3]))) == [3]
        assert sum(fake.waits.values()) == 1


def test_one_each_has_both_shapes() -> None:
    flat, column = one_each((5, 0, 5))
    assert flat.tolist() == listed(flat) == [5, 0, 5]
    assert column.tolist() == listed(column) == [[5], [0], [5]]
    assert one_each((5, 0, 5))[0] is flat


def test_a_plain_greedy_round_makes_no_new_tensor_for_a_token_it_had() -> None:
    draft = chain_draft(rows(4, 6), [(), ()])
    verdict = walk_points(draft, torch.tensor([[4], [6]]))
    assert verdict.next_token.tolist() == listed(verdict.next_token) == [4, 6]
    assert verdict.accepted.tolist() == [0, 0]
    assert draft.tokens.tolist() == [[4], [6]]
    assert draft.tokens.data_ptr() == verdict.next_token.data_ptr()


def test_what_a_drafter_changes_before_it_hands_over_is_what_is_read() -> None:
    draft = chain_draft(rows(4), [(1, 2)])
    draft.tokens[:, 2] = 3
    assert listed(draft.tokens) == [[4, 1, 3]]
