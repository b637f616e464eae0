"""Draft networks on the packed kernels: close to float64, closer the finer the format, and no row heeds another."""

from __future__ import annotations

import dataclasses

import pytest
import torch

import draft_zoo
from slipstream import kernels
from slipstream.learned import ALGORITHMS, make_net
from slipstream.measure.draft_proof import answers
from slipstream.nets.draft_config import Tables
from slipstream.nets.draft_layers import Segment

pytestmark = pytest.mark.skipif(not kernels.available(), reason=f"no kernels: {kernels.reason()}")

# of the largest logit; wider than the rounding of a weight, since it goes through layers, narrower than another result
BOUNDS = {"none": 0.03, "int8": 0.03, "w8a8": 0.06, "int4": 0.35}


def packed(form: str) -> Tables:
    """The zoo's tables as float32, with maps packed in a format."""
    from slipstream.kernels.linear import maps_of

    exact = draft_zoo.tables()
    return dataclasses.replace(
        exact,
        dtype=torch.float32,
        embed=lambda ids: exact.embed(ids).float(),
        head=lambda x: exact.head(x.double()).float(),
        maps=maps_of(form),
    )


@pytest.mark.parametrize("form", BOUNDS)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_answers_are_close_to_those_in_float64(algorithm, form):
    found = draft_zoo.tiny(algorithm, scale=0.2)
    exact, near = answers(found, draft_zoo.tables()), answers(found, packed(form))
    assert near[0].dtype is torch.float32
    for a, b in zip(exact[:1], near[:1], strict=True):
        assert float((a - b).abs().max()) <= BOUNDS[form] * float(a.abs().max())


@pytest.mark.parametrize("form", BOUNDS)
def test_a_rows_states_do_not_depend_on_what_else_is_in_the_pass(form):
    found = draft_zoo.tiny("eagle3")
    width, g = found.config.features.width, torch.Generator().manual_seed(1)
    taps = {t: torch.randn(6, width, generator=g) for t in found.config.features.taps}
    tokens = torch.tensor([1, 2, 3, 4, 5, 6])

    def states(slots: list[int]) -> torch.Tensor:
        net = make_net(found, packed(form), rows=3, max_len=8, max_nodes=8)
        features = net.fuse(taps).repeat(len(slots), 1)
        return net.step(tokens.repeat(len(slots)), features, [Segment(slot, 0, range(6)) for slot in slots])

    alone, together = states([1]), states([0, 1, 2])
    assert torch.allclose(alone, together[6:12], rtol=0, atol=1e-5)


def test_tables_are_kept_as_the_file_has_them():
    found = draft_zoo.tiny("dspark")
    half = dataclasses.replace(found, tensors={k: v.bfloat16() for k, v in found.tensors.items()})
    net = make_net(half, packed("none"), rows=1, max_len=8, max_nodes=8)
    assert net.heads.w1.dtype is torch.bfloat16
    assert answers(half, packed("none"))[0].dtype is torch.float32
