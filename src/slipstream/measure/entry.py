"""The exit statuses of a module run with `python -m`: what went wrong is one line on stderr, never a traceback."""

from __future__ import annotations

import sys
from collections.abc import Callable

from slipstream.types import RequestError, WorkError


def guarded(run: Callable[[], int], stopped: str = "stopped") -> int:
    """Return what `run` returns; 2: wrong request, 3: unfinished work, 130: interrupted, and then say `stopped`."""
    try:
        return run()
    except RequestError as e:
        print(f"error: {e}", file=sys.stderr)
        return 2
    except WorkError as e:
        print(f"error: {e}", file=sys.stderr)
        return 3
    except KeyboardInterrupt:
        print(stopped, file=sys.stderr)
        return 130
