"""Colour for terminals: on when the stream is one and NO_COLOR is unset; every painted text ends by resetting."""

from __future__ import annotations

import os
from typing import TextIO

_CODES = {"green": "32", "red": "31;9", "yellow": "33", "blue": "34", "dim": "2", "bold": "1"}
RESET = "\x1b[0m"


class Painter:
    """Paint text for one stream, or leave it as it is."""

    def __init__(self, stream: TextIO) -> None:
        self.on = stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"

    def __call__(self, text: str, colour: str) -> str:
        """Return `text` in a colour; a line break is left unpainted so that no background or style leaks."""
        if not self.on or not text:
            return text
        code = _CODES[colour]
        return "\n".join(f"\x1b[{code}m{part}{RESET}" if part else "" for part in text.split("\n"))
