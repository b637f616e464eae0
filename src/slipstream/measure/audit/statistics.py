"""From watched tokens to checks: five tests, and how large a bias they would have found on these very rows.

In: `Emitted` and drafted U. Out: `Check`s with p-values, undecided (Holm decides them with all others), and the power.
"""

from __future__ import annotations

import bisect

import numpy as np

from slipstream.measure.audit import pit
from slipstream.measure.audit.findings import ALARM, Check, skipped
from slipstream.measure.audit.pit import Array
from slipstream.measure.audit.watch import Emitted, Watch

LEAST = 30  # tokens below which a test is not worth its place
STATED = 0.03
_SIZES = (0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.5)
_RUNS = 100


def statistics(watch: Watch, where: str) -> list[Check]:
    """Return the tests of what was watched; `where` says on what rows."""
    e, drafted = watch.emitted(), watch.drafted()
    if len(e) < LEAST:
        return [skipped(f"law of emitted tokens, {where}", f"only {len(e)} tokens were watched; {LEAST} are needed")]
    z = pit.mean_z(e.u)
    found = [
        _test(f"emitted tokens have the target's law, {where}", pit.ks(e.u), f"{len(e)} tokens, randomised PIT, KS"),
        _test(f"emitted tokens do not lean to the draft, {where}", pit.two_sided(z), f"{len(e)} tokens, z = {z:.2f}"),
        _serial(e.u, where),
    ]
    guessed = e.guessed
    if int(guessed.sum()) >= LEAST:
        z = pit.hits_z(e.hit[guessed], e.mass[guessed])
        said = f"{int(guessed.sum())} fixed guesses reached, {int(e.hit[guessed].sum())} emitted, z = {z:.2f}"
        name = f"fixed guesses are emitted as often as the target wants, {where}"
        found.append(_test(name, pit.hits_p(e.hit[guessed], e.mass[guessed]), said))
    if len(drafted) >= LEAST:
        p = min(1.0, 2 * min(pit.ks(drafted), pit.two_sided(pit.mean_z(drafted))))
        said = f"{len(drafted)} drawn tokens against the q recorded for them"
        found.append(_test(f"drafted tokens have the recorded law, {where}", p, said))
    return found


def _serial(u: Array, where: str) -> Check:
    z = pit.serial_z(u)
    return _test(f"emitted tokens are independent draws, {where}", pit.two_sided(z), f"neighbours, z = {z:.2f}")


def _test(name: str, p_value: float, said: str) -> Check:
    return Check(name, "tested", f"{said}, p = {p_value:.2g}", p_value=p_value)


def power(e: Emitted, tests: int) -> dict[str, float | int | None]:
    """Return how often a bias of `STATED` would be flagged on these rows, and the least that is in 99 of 100 runs.

    A bias of d moves d of each row's probability from tokens the draft underrates to tokens it overrates; rows without
    a draft, or where draft and target agree (`open_tokens` counts the others), stay right. `tests` is how many tests
    the audit corrects for.
    """
    limit = ALARM / max(1, tests)
    # the larger the bias the surer it is found: the first size that is sure is found by halving
    least = (
        bisect.bisect_left(_SIZES, True, key=lambda size: _flagged(e, size, limit) >= 0.99) if len(e) else len(_SIZES)
    )
    return {
        "tokens": len(e),
        "open_tokens": int(((e.under > 0) & (e.over > 0)).sum()),
        "bias": STATED,
        "probability": _flagged(e, STATED, limit) if len(e) else 0.0,
        "least_bias_found_99": _SIZES[least] if least < len(_SIZES) else None,
    }


def _flagged(e: Emitted, size: float, limit: float) -> float:
    rng = np.random.default_rng(0)
    found = 0
    for _ in range(_RUNS):
        u = biased(e, size, rng)
        values = [pit.ks(u), pit.two_sided(pit.mean_z(u))]
        if e.guessed.any():
            # in the order of q/p the fixed guesses come first
            values.append(pit.hits_p(u[e.guessed] < e.mass[e.guessed], e.mass[e.guessed]))
        found += min(values) <= limit
    return found / _RUNS


def biased(e: Emitted, size: float, rng: np.random.Generator) -> Array:
    """Draw U as a rule that leans to the draft by `size` would make it on these rows."""
    u = rng.random(len(e))
    able = (e.under > 0) & (e.over > 0)
    under = np.where(able, e.under, 1.0)
    moved = able & (u > 1.0 - under) & (rng.random(len(e)) < np.minimum(1.0, size / under))
    return np.asarray(np.where(moved, rng.random(len(e)) * e.over, u))
