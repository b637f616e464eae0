"""Host and accelerator: moving without waiting, what the host knows already, and refusals that can wait.

Reading a value from an accelerator makes the host wait for everything queued there. A round does so once, at its end:
what the host made and sent over it still knows (`moved`, `on_host`), a shortcut that would have to ask is not taken
(`maybe`, `certainly`), and a check that would have to ask is noted and read with the verdict (`refuse`, `Faults`).
On a CPU all of this is the plain thing. No arithmetic here.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_KNOWN = "_on_host"
_LISTED = "_host_values"


def moved(x: Tensor, device: torch.device | str) -> Tensor:
    """Send x, a tensor of the host, to `device` without waiting for what is queued there.

    The host keeps knowing its values: neither x nor the copy may be written to afterwards.
    """
    if (device if isinstance(device, str) else device.type) == "cpu":
        return x
    device = torch.device(device)
    out = _pinned(x, device).to(device, non_blocking=True)
    setattr(out, _KNOWN, x)
    return out


def fill(out: Tensor, x: Tensor) -> None:
    """Copy x, a tensor of the host, into `out` without waiting."""
    out.copy_(_pinned(x, out.device), non_blocking=True)


def _pinned(x: Tensor, device: torch.device) -> Tensor:
    # a copy from pageable memory would wait for the whole queue
    return x.pin_memory() if device.type == "cuda" and torch.cuda.is_available() else x


def on_host(x: Tensor) -> Tensor:
    """Return x on the CPU: at once if it was `moved` from there, else by waiting for it, once."""
    if x.is_cpu:
        return x
    known: Tensor | None = getattr(x, _KNOWN, None)
    if known is None:
        known = x.cpu()
        setattr(x, _KNOWN, known)
    return known


def known(x: Tensor) -> bool:
    """Say whether the host knows the values of x, so that `on_host` does not wait."""
    return x.is_cpu or hasattr(x, _KNOWN)


def listed(x: Tensor) -> list[Any]:
    """Return the values of x as nested lists: those that are `remembered`, else read now. They may not be written to.

    What is read is not remembered: x may be a guest's, who writes into it in the next round.
    """
    host = on_host(x)
    values: list[Any] | None = getattr(host, _LISTED, None)
    return host.tolist() if values is None else values


def remembered(x: Tensor, values: list[Any]) -> Tensor:
    """Return x, made by who knows its values; neither it nor they may be written to from here on.

    A round asks for the same few numbers again and again, each time a tensor operation that takes longer than the rest.
    """
    setattr(x, _LISTED, values)
    return x


@functools.lru_cache(maxsize=4096)
def one_each(ids: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Return one id for each row, as [B] and as [B, 1], on the host: a text's tokens come again, and are made once.

    They are shared: read, never written.
    """
    flat = torch.tensor(ids, dtype=torch.int64)
    return remembered(flat, list(ids)), remembered(flat[:, None], [[token] for token in ids])


def maybe(mask: Tensor) -> bool:
    """Say whether any element is true; an accelerator is not asked: there it may always be so."""
    return bool(on_host(mask).any()) if known(mask) else True


def certainly(mask: Tensor) -> bool:
    """Say whether all elements are true; an accelerator is not asked: there it is never certain."""
    return bool(on_host(mask).all()) if known(mask) else False


class Faults:
    """Refusals on an accelerator: noted while the context is open, not waited for; who opens it settles them."""

    def __init__(self) -> None:
        self._notes: list[tuple[Tensor, Callable[[], Exception]]] = []
        self._before: Faults | None = None

    def __enter__(self) -> Faults:
        """Collect."""
        self._before = getattr(_open, "faults", None)
        _open.faults = self
        return self

    def __exit__(self, *error: object) -> None:
        """Collect no more."""
        _open.faults = self._before

    def note(self, wrong: Tensor, error: Callable[[], Exception]) -> None:
        """Remember that `error` holds if any element of `wrong` is true."""
        self._notes.append((wrong.any(), error))

    def flags(self) -> Tensor | None:
        """Return the notes as int64 [F], None when there are none."""
        return torch.stack([flag for flag, _ in self._notes]).long() if self._notes else None

    def settle(self, flags: list[int]) -> None:
        """Raise the first noted error whose flag is set."""
        for flag, (_, error) in zip(flags, self._notes, strict=True):
            if flag:
                raise error()


_open = threading.local()


def refuse(wrong: Tensor, error: Callable[[], Exception]) -> None:
    """Raise `error()` if any element of `wrong` is true: now, or with the round's verdict when they are collected."""
    faults: Faults | None = getattr(_open, "faults", None)
    if faults is None or known(wrong):
        if bool(on_host(wrong).any()):
            raise error()
    else:
        faults.note(wrong, error)


class StepAside:
    """Keep torch to one thread while the context is open, where a target runs on threads of its own (`own_threads`).

    Torch's other threads do not sleep at once when their share of an operation is done: they spin, on processors that
    the target's threads are waiting for. Torch counts its threads for each calling thread.
    """

    def __init__(self, own_threads: bool) -> None:
        self._own, self._before = own_threads, 1

    def __enter__(self) -> None:
        """Leave the processors to the target."""
        self._before = torch.get_num_threads() if self._own else 1
        if self._before > 1:
            torch.set_num_threads(1)

    def __exit__(self, *error: object) -> None:
        """Take back as many threads as there were."""
        if self._before > 1:
            torch.set_num_threads(self._before)


class AtWork(threading.local):
    """What rounds run in: no gradients, and torch stepping aside. Each thread opens it for itself.

    Opening it again inside itself does nothing: who runs many rounds opens it once, around all of them.
    """

    def __init__(self, own_threads: bool) -> None:
        self._aside, self._mode, self._depth = StepAside(own_threads), torch.inference_mode(), 0

    def __enter__(self) -> None:
        """Begin, or go on."""
        self._depth += 1
        if self._depth == 1:
            self._aside.__enter__()
            self._mode.__enter__()

    def __exit__(self, *error: object) -> None:
        """End where it began."""
        self._depth -= 1
        if self._depth == 0:
            self._mode.__exit__(None, None, None)
            self._aside.__exit__()


class Stopwatch:
    """Seconds of work on a device, without waiting for it: read `seconds` after something else has waited."""

    def __init__(self, at: Tensor) -> None:
        """Start; `at` lies on the device."""
        self._events: list[Any] = []
        self._cuda = at.is_cuda and torch.cuda.is_available()
        self._end = 0.0
        if self._cuda:
            self._mark()
        self._start = time.perf_counter()

    def stop(self) -> None:
        """End the measurement at what is queued now."""
        self._end = time.perf_counter()
        if self._cuda:
            self._mark()

    @property
    def seconds(self) -> float:
        """Return the seconds between start and stop, by the device's own clock where it has one."""
        if self._cuda:
            return float(self._events[0].elapsed_time(self._events[1])) / 1000
        return self._end - self._start

    def _mark(self) -> None:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        self._events.append(event)
