"""Draft with an EAGLE-3 network (Li et al. 2503.01840): `drafters.eagle` with fused taps of several layers.

In, out and the round are EAGLE's; fusing, feedback and the drafter's own vocabulary are the network's.
"""

from __future__ import annotations

from slipstream.drafters.eagle import Eagle


class Eagle3(Eagle):
    """Drafts from several of the target's layers at once."""

    name = "eagle3"
