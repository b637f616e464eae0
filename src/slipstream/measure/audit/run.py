"""The whole audit, in order: proofs, streams, toy rows, the real model sampled and greedy, controls; then Holm.

In: an `LLM` and `AuditOptions`. Out: an `Audit`, decided. Progress goes to a callback.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from slipstream.build import hooks_of
from slipstream.control.adaptive import AdaptiveBudget
from slipstream.control.budget import FixedBudget
from slipstream.measure.audit.certificate import Audit
from slipstream.measure.audit.controls import controls
from slipstream.measure.audit.exact import enumerate_rule
from slipstream.measure.audit.findings import Check, decide, skipped
from slipstream.measure.audit.greedy import greedy
from slipstream.measure.audit.pit import curve
from slipstream.measure.audit.real import SAME_LAW, Spy, cache, decode, law_error, seeded, shaping
from slipstream.measure.audit.statistics import power, statistics
from slipstream.measure.audit.streams import logged, seeds, source
from slipstream.measure.audit.toy_rounds import Play, play, play_three
from slipstream.measure.audit.watch import Emitted, Watch
from slipstream.measure.record import record
from slipstream.measure.workloads import load_prompts
from slipstream.sampling import new_seed
from slipstream.types import Draw, RequestError, SamplingParams
from slipstream.verify import RULES

if TYPE_CHECKING:
    from slipstream.llm import LLM

QUICK_ROWS, ROWS = 4000, 12_000  # toy rows played per kind of draft

Say = Callable[[str, int], object]  # what is being done, and tokens decoded since the last call


@dataclass(frozen=True)
class AuditOptions:
    """`tokens`: sampled tokens to watch on the real model; a quarter as many are decoded greedily. `quick`: only the
    rule in use is proved, and fewer toy rows are played. A seed in `params` repeats the whole audit."""

    params: SamplingParams
    tokens: int = 4000
    quick: bool = False
    prompts: list[Any] | None = None


def run_audit(llm: LLM, options: AuditOptions, say: Say = lambda what, n: None) -> Audit:
    """Run every part and decide. Where drafts are chosen by cost, drafting goes on whatever it costs: what never
    happens cannot be tested."""
    with _drafting(llm):
        return _run_audit(llm, options, say)


@contextlib.contextmanager
def _drafting(llm: LLM) -> Iterator[None]:
    engine, own = llm.engine, llm.engine.controller
    if isinstance(own, AdaptiveBudget):
        alone = FixedBudget(llm.draft_tokens, hooks_of(engine.drafter))
        engine.controller = own.always(llm.draft_tokens) if len(own.arms) > 1 else alone
    try:
        yield
    finally:
        engine.controller = own


def _run_audit(llm: LLM, options: AuditOptions, say: Say) -> Audit:
    start = time.perf_counter()
    rule = llm.engine.rule
    params = options.params
    given = options.prompts or [prompt.messages for prompt in load_prompts()]
    prompts = [_fitting(llm, prompt) for prompt in given]
    seed = new_seed() >> 31 if params.seed is None else params.seed
    options = dataclasses.replace(options, params=dataclasses.replace(params, seed=seed))
    audit = Audit(_subject(llm, params), lossless=rule.lossless)
    toys: dict[str, Emitted] = {}
    for part in (_proofs(llm, options), _streams(llm, seed), _toys(llm, options, toys)):
        for check in part:
            audit.checks.append(check)
            say(check.name, 0)
    watch = _sampled(llm, options, prompts, audit, say)
    per_prompt = max(8, min(128, options.tokens // 4 // min(len(prompts), 8)))
    audit.checks += greedy(llm, prompts[:8], per_prompt, lambda n: say("greedy decoding", n))
    for check in controls():
        audit.checks.append(check)
        say(check.name, 0)
    decide(audit.checks)
    tests = sum(c.p_value is not None for c in audit.checks)
    seen = {f"{label} toy rows": emitted for label, emitted in toys.items()} | {"the model's rows": watch.emitted()}
    audit.power = {where: power(emitted, tests) for where, emitted in seen.items()}
    audit.curves = {where: curve(emitted.u) for where, emitted in seen.items()}
    folder, device = llm.opened.folder, llm.opened.device
    audit.record = record(model=folder, drafter=llm.drafter_folder, prompts=prompts, device=device) | {"seed": seed}
    audit.seconds = time.perf_counter() - start
    return audit


def _fitting(llm: LLM, prompt: Any) -> list[int]:
    """Return a prompt's ids, cut to half the context; a model without a chat template gets the last message as text."""
    if isinstance(prompt, str):
        ids = llm.tokenizer.encode(prompt)
    else:
        try:
            ids = llm.tokenizer.chat(prompt)
        except RequestError:
            ids = llm.tokenizer.encode(prompt[-1]["content"])
    return list(ids[: max(1, llm.max_model_len // 2)])


def _subject(llm: LLM, params: SamplingParams) -> dict[str, Any]:
    fields = dataclasses.fields(SamplingParams)
    sampling = {f.name: getattr(params, f.name) for f in fields if getattr(params, f.name) != f.default}
    return {
        "model": llm.model,
        "drafter": llm.drafter,
        "draft_tokens": llm.draft_tokens,
        "verify": llm.config.verify,
        "dtype": str(llm.opened.dtype).removeprefix("torch."),
        "sampling": {k: v for k, v in sampling.items() if k not in ("seed", "logits_processors")},
    }


def _proofs(llm: LLM, options: AuditOptions) -> Iterator[Check]:
    engine, own = llm.engine, llm.config.verify
    # the drafters here are toys, which cannot be looked at or taken in turns
    controller = FixedBudget(llm.draft_tokens) if isinstance(engine.controller, AdaptiveBudget) else engine.controller
    rules = {own: engine.rule} | ({} if options.quick else {n: rule for n, rule in RULES.items() if n != own})
    for name, rule in rules.items():
        yield from enumerate_rule(name, rule, controller, options.params)


def _streams(llm: LLM, seed: int) -> Iterator[Check]:
    yield source(llm.engine.make_rngs, seed=seed & 0xFFFF)
    yield from seeds(llm.engine.rule, llm.engine.make_rngs)


def _toys(llm: LLM, options: AuditOptions, toys: dict[str, Emitted]) -> Iterator[Check]:
    """The rule with the engine's own random streams on many small laws: what enumeration cannot see."""
    rule, make = llm.engine.rule, llm.engine.make_rngs
    rows = QUICK_ROWS if options.quick else ROWS
    kinds = {"drawn": Draw.SAMPLED, "fixed": Draw.FIXED} | ({"distinct": Draw.DISTINCT} if rule.tree else {})
    for label, kind in kinds.items():
        what, seed = Play(rule, kind, make), (options.params.seed or 0) & 0xFFFF
        watch = play(what, rows, seed)
        toys[label] = watch.emitted()
        yield from statistics(watch, f"{label} toy rows")
        if kind == Draw.SAMPLED:
            p = play_three(what, 2 * rows, seed).p_value()
            yield Check("a law of three tokens comes out", "tested", f"{2 * rows} rows, p = {p:.2g}", p_value=p)


def _sampled(llm: LLM, options: AuditOptions, prompts: list[list[int]], audit: Audit, say: Say) -> Watch:
    """Watch the real model decode at the user's temperature (1 if that is 0), then judge what was watched."""
    params = options.params
    if params.greedy:
        params = dataclasses.replace(params, temperature=1.0)
        audit.checks.append(skipped("sampling at temperature 0", "greedy is a point mass; laws are tested at 1"))
    length = max(8, min(options.tokens, params.max_tokens or 256, -(-options.tokens // len(prompts))))
    seed = params.seed or 0
    watch = Watch(seed & 0xFFFF, drafted_too=not llm.engine.rule.shared_noise)
    spy = Spy(watch, every=max(1, options.tokens // 200), tick=lambda n: say("sampling", n))
    many = seeded(params, len(prompts), seed, max_tokens=length)
    with logged() as log:
        runs = decode(llm, prompts, many, spy)
    again = decode(llm, prompts[:1], [dataclasses.replace(many[0], max_tokens=min(16, length))], None)
    twice = decode(llm, prompts[:1], [dataclasses.replace(many[0], max_tokens=min(16, length))], None)
    same = again[0].done.token_ids == twice[0].done.token_ids
    audit.checks += [*statistics(watch, "the model's rows"), log.check("in the run of the model")]
    audit.checks += [shaping(spy), cache(llm, spy, runs), _shaping_control(llm, spy, many[0])]
    audit.checks.append(Check("the same seed gives the same text, on the model", "tested", "one request, twice", same))
    return watch


def _shaping_control(llm: LLM, spy: Spy, params: SamplingParams) -> Check:
    """The definitions at another temperature must not be taken for the laws used."""
    from slipstream.testing.reference import next_law
    from slipstream.types import Sequence

    other = dataclasses.replace(params, temperature=params.temperature * 1.2)
    eos = tuple(llm.tokenizer.eos_ids)
    errors = [0.0]
    for kept in spy.kept[:12]:
        used = next_law(kept.logits.numpy(), [0], [0], params, eos)
        errors.append(law_error(used, kept.logits, [0], [0], Sequence(0, [0], 1, other, eos_ids=eos)))
    flagged = max(errors) > SAME_LAW
    said = f"total variation {max(errors):.2g}: " + ("flagged" if flagged else "NOT flagged")
    return Check("planted: laws of a temperature 1.2 times too high", "control", said, passed=flagged)
