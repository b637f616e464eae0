"""Calibration on a drafter that knows some texts: what was made too sure or too doubtful is set right, and measured."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from test_dspark_oracle import DOUBTFUL, KNOWN, SIZE, decoder, oracle  # noqa: F401  fixtures

from draft_zoo import tiny
from slipstream import LLM
from slipstream.drafters.calibration import Outcome, fit, load, prefix_errors
from slipstream.measure import calibrate as module
from slipstream.measure.calibrate import Fitted, calibrate
from slipstream.nets.draft_config import DraftCheckpoint
from slipstream.types import RequestError, SamplingParams, WorkError
from tiny_model import make_model

PARAMS = SamplingParams(max_tokens=40, ignore_eos=True)
PROMPTS = [*KNOWN, *DOUBTFUL, [7, 3], [44, 45], [120]]
ALIKE = [*KNOWN * 8, *(DOUBTFUL[0], KNOWN[0], KNOWN[1]) * 2]  # both halves are the same, and some of it stands


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    folder = make_model(tmp_path_factory.mktemp("calibrated"))
    return LLM(str(folder), "none", dtype="float32", device="cpu", max_rows=3, max_model_len=100)


def certain(found: DraftCheckpoint, logit: float) -> DraftCheckpoint:
    """The same drafter, saying the same of every token."""
    same = {name: torch.zeros_like(x) for name, x in found.tensors.items() if name.startswith("confidence.")}
    return replace(found, tensors={**found.tensors, **same, "confidence.bias": torch.tensor([logit])})


def of(llm: LLM, found: DraftCheckpoint, prompts: list[list[int]] = PROMPTS, **options: object) -> Fitted:
    return calibrate(llm, found, prompts, PARAMS, **{"least": 40} | options)  # type: ignore[arg-type]


def test_confidence_that_is_too_sure_is_set_right(llm: LLM, oracle: DraftCheckpoint) -> None:  # noqa: F811
    """Where every token has one logit, what stood gives the first temperature in closed form."""
    found = of(llm, certain(oracle, 4.0), ALIKE)
    assert len(found.depths) == SIZE
    first = found.depths[0]
    assert 0.6 < first.stood < 0.85
    assert first.temperature == pytest.approx(4.0 / math.log(first.stood / (1 - first.stood)), rel=0.04)
    assert [d for d in found.depths if d.before < 0.15 or d.after > 0.02] == []
    assert [d.said for d in found.depths] == pytest.approx([0.982014**n for n in range(1, SIZE + 1)], rel=1e-5)


def test_every_round_is_a_whole_block_and_both_halves_have_some(
    llm: LLM,
    oracle: DraftCheckpoint,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[tuple[list[Outcome], list[Outcome]]] = []
    inner, ticks = module._depths, []
    monkeypatch.setattr(module, "_depths", lambda halves, *rest: seen.append(halves) or inner(halves, *rest))
    found = of(llm, oracle, tick=lambda done, total: ticks.append((done, total)))
    (halves,) = seen
    assert min(len(half) for half in halves) > 20
    assert sum(len(o.logits) == SIZE for half in halves for o in half) > 0.8 * found.rounds
    assert found.tokens == len(PROMPTS) * 40
    assert ticks == [(3, 8), (6, 8), (8, 8)]
    # each half is judged by what the other was fitted to
    crossed = [fit(half, least=20).temperatures for half in (halves[1], halves[0])]
    first = [prefix_errors(half, heat)[0] for half, heat in zip(halves, crossed, strict=True)]
    weights = [len(half) for half in halves]
    assert found.depths[0].after == pytest.approx(sum(map(lambda e, w: e * w, first, weights)) / sum(weights))


def test_the_file_is_for_this_drafter_and_target_alone(llm: LLM, oracle: DraftCheckpoint, tmp_path: Path) -> None:  # noqa: F811
    found = of(llm, oracle)
    found.calibration.save(tmp_path / "t.json")
    again = load(tmp_path / "t.json", drafter=found.calibration.drafter, target=llm.opened.name)
    assert again == found.calibration
    assert again.temperatures == tuple(d.temperature for d in found.depths)
    with pytest.raises(RequestError, match="fitted to drafter"):
        load(tmp_path / "t.json", drafter="another")


def test_what_cannot_be_calibrated_is_refused(llm: LLM, oracle: DraftCheckpoint) -> None:  # noqa: F811
    with pytest.raises(RequestError, match="only dspark has one"):
        of(llm, tiny("eagle3"))
    markov = oracle.config.markov
    assert markov is not None
    bare = replace(oracle, config=replace(oracle.config, markov=replace(markov, confidence="none")))
    with pytest.raises(RequestError, match="no confidence head"):
        of(llm, bare)
    with pytest.raises(RequestError, match="at least 2"):
        calibrate(llm, oracle, PROMPTS[:1], PARAMS)
    with pytest.raises(WorkError, match="at least 500 are needed"):
        of(llm, oracle, least=500)


def test_depths_that_few_rounds_reached_are_named() -> None:
    outcomes = [Outcome((1.0, 1.0) if n % 4 == 0 else (1.0,), n % 2) for n in range(200)]
    made = fit(outcomes, least=100)
    depths = module._depths((outcomes[:100], outcomes[100:]), made, 100)
    found = Fitted(made, depths, 200, 300, 100)
    assert found.kept == [2]
    assert [d.rounds for d in depths] == [200, 50]
    assert depths[0].said == pytest.approx(float(torch.sigmoid(torch.tensor(1.0))))
    assert depths[0].stood == 0.5
    assert set(found.as_dict()["depths"][0]) == {"rounds", "stood", "said", "temperature", "before", "after"}
