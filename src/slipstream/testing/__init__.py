"""Prove a rule or a drafter lossless: an enumerating source of randomness, a toy target, toy drafters, exact laws.

Ships with the package: plug-in authors and the `audit` command use what the tests use.
"""

from slipstream.testing.rounds import (
    distance,
    make_round,
    marginals,
    mean_emitted,
    plain_law,
    rows_after,
    run_law,
)
from slipstream.testing.toy_drafters import (
    NoneToy,
    PeekingToy,
    SampledToy,
    ScriptedToy,
    Sprout,
    ToyDrafter,
    TreeToy,
    every_toy,
    greedy_toy,
    never_toy,
    pack,
)
from slipstream.testing.toys import ByteTokenizer, RandomLaw, ToyTarget, logits_of, memoryless, one_hot, scripted
from slipstream.testing.trace import Trace, TraceFactory, TraceRngs, enumerate_traces

__all__ = [
    "ByteTokenizer",
    "NoneToy",
    "PeekingToy",
    "RandomLaw",
    "SampledToy",
    "ScriptedToy",
    "Sprout",
    "ToyDrafter",
    "ToyTarget",
    "Trace",
    "TraceFactory",
    "TraceRngs",
    "TreeToy",
    "distance",
    "enumerate_traces",
    "every_toy",
    "greedy_toy",
    "logits_of",
    "make_round",
    "marginals",
    "mean_emitted",
    "memoryless",
    "never_toy",
    "one_hot",
    "pack",
    "plain_law",
    "rows_after",
    "run_law",
    "scripted",
]
