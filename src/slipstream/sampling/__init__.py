"""Logits become laws, laws become tokens.

`laws` and `draft_law` apply every sampling parameter node by node; `RequestRngs` draws, reproducibly, for one round;
`token_logprobs` reports. Pure functions of their arguments: no model, no decoding, no state between rounds.
"""

from __future__ import annotations

from slipstream.sampling.laws import draft_law, fit_vocab, laws, needs_history
from slipstream.sampling.logprobs import token_logprobs
from slipstream.sampling.streams import RequestRngs, new_seed

__all__ = ["RequestRngs", "draft_law", "fit_vocab", "laws", "needs_history", "new_seed", "token_logprobs"]
