"""Carries the calls of one iteration: side by side where they allow it, in order where not, each with its limit."""

from __future__ import annotations

import itertools
import queue
import time
from collections import deque
from collections.abc import Iterator, Sequence

from orchestration.ports import StopSignal
from orchestration.tools.attempt import Attempt, Done, Told

# Python refuses a wait of centuries, and one without end cannot be given as a number.
_LONGEST_WAIT_S = 3600.0


def carry(attempts: Sequence[Attempt], done: Done, *, stop: StopSignal, width: int) -> None:
    """Bring every attempt to its `run`, up to `width` neighbours at a time. `done` is the queue they were made with.

    When `stop` comes, nothing further starts, and what runs is told, given a short time, and left behind.
    Raises what a tool raised that is no Exception; what still ran is left behind then.
    """
    unregister = stop.on_set(lambda: done.put(None))
    try:
        for group in _groups(attempts):
            _carry_group(deque(group), done, stop=stop, width=max(width, 1))
    finally:
        unregister()


def _groups(attempts: Sequence[Attempt]) -> Iterator[list[Attempt]]:
    for is_parallel, neighbours in itertools.groupby(attempts, key=lambda a: a.tool.is_parallel):
        if is_parallel:
            yield list(neighbours)
        else:
            yield from ([attempt] for attempt in neighbours)


def _carry_group(waiting: deque[Attempt], done: Done, *, stop: StopSignal, width: int) -> None:
    running: list[Attempt] = []
    try:
        while waiting or running:
            if stop.is_set():
                _skip(waiting, "the turn was interrupted before this call started.")
                for attempt in running:
                    attempt.tell(Told.STOP)
            while waiting and len(running) < width and not stop.is_set():
                _start(waiting.popleft(), running)
            finished = _next(done, running)
            if finished in running:
                running.remove(finished)
                if finished.crash is not None:
                    raise finished.crash
            _move_on(running)
    finally:
        for attempt in running:  # only where something was raised
            attempt.tell(Told.STOP)
            attempt.leave()


def _start(attempt: Attempt, running: list[Attempt]) -> None:
    try:
        attempt.start()
    except RuntimeError:
        attempt.skip("this worker could not start another thread for it.")
    else:
        running.append(attempt)


def _skip(waiting: deque[Attempt], reason: str) -> None:
    while waiting:
        waiting.popleft().skip(reason)


def _next(done: Done, running: list[Attempt]) -> Attempt | None:
    """Wait until an attempt is over (it is returned), the stop came, or one of `running` is due."""
    if not running:
        return None
    due = min(attempt.due for attempt in running)
    try:
        return done.get(timeout=min(max(due - time.monotonic(), 0), _LONGEST_WAIT_S))
    except queue.Empty:
        return None


def _move_on(running: list[Attempt]) -> None:
    """Tell those that are past their limit, leave those that were told and did not stop."""
    now = time.monotonic()
    for attempt in [a for a in running if a.due <= now]:
        if attempt.told is None:
            attempt.tell(Told.LIMIT)
        elif attempt.leave():
            running.remove(attempt)
