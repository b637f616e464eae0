"""The speed-up that was to be expected, beside the one that was measured.

In: a `Bench` whose plain outputs are there. Out: per drafter a ratio with a 90 % interval, from walking those outputs
without the drafter in the loop and from rounds timed apart (`predict_model`). One prompt at a time only: a prediction
knows nothing of batches. What cannot be predicted is left out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from slipstream.measure.bench_grid import Bench
from slipstream.measure.bench_plan import PLAIN, Cell
from slipstream.measure.report import Ratio
from slipstream.types import RequestError

MOST_TEXTS = 12  # enough for an interval; a walk runs the draft model over every position


def predict_all(bench: Bench, tick: Callable[[], object] = lambda: None) -> None:
    """Predict every drafter of every cell of batch 1 that has no prediction yet, and write it to the results."""
    known = predictions(bench)
    for cell in bench.plan.cells:
        for name in bench.plan.names if cell.batch == 1 else ():
            if (cell, name) not in known:
                found = _predict(bench, cell, name)
                bench.results.append({"predicted": {"cell": asdict(cell), "runner": name}, "speed_up": found})
                tick()


def predictions(bench: Bench) -> dict[tuple[Cell, str], Ratio | None]:
    """Return what was predicted, None where no prediction is possible."""
    found = {}
    for line in bench.results.lines:
        if "predicted" in line:
            key = (Cell(**line["predicted"]["cell"]), line["predicted"]["runner"])
            found[key] = Ratio(**line["speed_up"]) if line["speed_up"] else None
    return found


def _predict(bench: Bench, cell: Cell, name: str) -> dict[str, float] | None:
    from slipstream.measure.predict_model import forecast

    llm = bench.llms[name]
    texts = _texts(bench, cell)
    if not texts:
        return None
    try:
        found = forecast(llm, texts, bench.plan.params(cell.temperature, 0), draft_tokens=llm.draft_tokens).prediction
    except RequestError:  # this drafter cannot be walked offline
        return None
    low, high = (found.speedup if end is None else end for end in (found.low, found.high))
    return asdict(Ratio(found.speedup, low, high))


def _texts(bench: Bench, cell: Cell) -> list[Any]:
    """Return plain outputs of the first repeat, spread over the tasks."""
    from slipstream.measure.predict_offline import Text

    kept = {p.id for p in bench.plan.suite.limited(MOST_TEXTS).prompts}
    found = []
    for unit, runs in bench.units():
        name, output = unit["prompts"][0], runs[PLAIN].tokens[0]
        if Cell(**unit["cell"]) == cell and unit["repeat"] == 0 and name in kept and len(output) > 1:
            found.append(Text(name, bench.prompt(name), output, own=True))
    return found
