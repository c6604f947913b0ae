"""The time limits and the stop of one model call, kept by the sockets that the call blocks on.

A call runs on its caller's thread, from the first look-up to the last byte, so its watch is found by thread and no
helper thread is needed. Whatever is about to block asks `remaining` how long it may, and says with `blocks_on` how it
can be woken. A stop comes from another thread, at any instant, and wakes it.
"""

from __future__ import annotations

import threading
import time
from enum import StrEnum
from types import TracebackType
from typing import Protocol, Self

from orchestration.ports import StopSignal, TimeLimits

MAX_ANSWER_BYTES = 128 * 1024 * 1024


class Limit(StrEnum):
    """A limit of a call, in the words of the sentence that says it passed."""

    CONNECT = "no connection"
    FIRST_TOKEN = "no first token"
    IDLE = "no further token"
    CALL = "no whole answer"


class LimitPassed(TimeoutError):
    """A limit of the call has passed; the watch says which."""


class StopCame(ConnectionAbortedError):
    """The stop came before the call was done."""


class AnswerTooLong(ConnectionAbortedError):
    """More bytes came than an answer can have: a server that never stops must not fill the memory."""


class Wakeable(Protocol):
    """Something that a call blocks on, and that another thread can make return at once."""

    def wake(self, watch: CallWatch) -> None:
        """Make the blocked thread return, if it still is `watch`'s."""
        ...


class CallWatch:
    """Use as a context manager around one call; inside, `watching` finds it on this thread. All times are monotonic."""

    def __init__(self, limits: TimeLimits, stop: StopSignal) -> None:
        now = time.monotonic()
        self._limits = limits
        self._stop = stop
        self._call_ends_at = now + limits.call_s
        self._wait_ends_at = now + limits.first_token_s
        self._waits_for = Limit.FIRST_TOKEN
        self._connect_ends_at: float | None = None
        self._blocked_on: Wakeable | None = None
        self._received = 0
        self.is_stopped = False
        self.passed: Limit | None = None

    def __enter__(self) -> Self:
        _here.watch = self
        self._unregister = self._stop.on_set(self._interrupt)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._unregister()
        self._blocked_on = None
        _here.watch = None

    @property
    def is_cut_short(self) -> bool:
        """Whether the call ends before its answer does: it was stopped, or a limit has passed."""
        return self.is_stopped or self.passed is not None

    @property
    def sentence(self) -> str:
        """What the limit that passed means, for a person."""
        seconds = {
            Limit.CONNECT: self._limits.connect_s,
            Limit.FIRST_TOKEN: self._limits.first_token_s,
            Limit.IDLE: self._limits.idle_s,
            Limit.CALL: self._limits.call_s,
        }
        passed = self.passed or Limit.CALL
        return f"{passed.value} within {seconds[passed]:g} s"

    def connecting(self) -> None:
        """A connection is being made: look-up, TCP and TLS share one limit."""
        if self._connect_ends_at is None:
            self._connect_ends_at = time.monotonic() + self._limits.connect_s
        self._wait_ends_at, self._waits_for = self._connect_ends_at, Limit.CONNECT

    def looking_up(self) -> None:
        """A connection to another host begins: its limit is new."""
        self._connect_ends_at = None
        self.connecting()

    def connected(self) -> None:
        """The connection stands; from now on the first token is awaited."""
        self._wait_ends_at, self._waits_for = time.monotonic() + self._limits.first_token_s, Limit.FIRST_TOKEN

    def token(self) -> None:
        """A real token came. Keep-alives are none, so nobody calls this for them."""
        self._wait_ends_at, self._waits_for = time.monotonic() + self._limits.idle_s, Limit.IDLE

    def settle(self, seconds: float) -> None:
        """The answer is whole; wait at most this long for what may still follow it."""
        self._wait_ends_at = time.monotonic() + seconds

    def received(self, size: int) -> None:
        """Count bytes of the answer. Raises AnswerTooLong."""
        self._received += size
        if self._received > MAX_ANSWER_BYTES:
            raise AnswerTooLong(f"the answer is longer than {MAX_ANSWER_BYTES} bytes")

    def blocks_on(self, what: Wakeable) -> None:
        """Say what a stop has to wake. Call it before `remaining`: a stop in between is then seen by one of the two."""
        self._blocked_on = what

    def remaining(self, at_most: float | None = None) -> float:
        """Seconds for which this thread may block now, more than zero. Raises StopCame or LimitPassed."""
        if self.is_stopped:
            raise StopCame
        left = min(self._wait_ends_at, self._call_ends_at) - time.monotonic()
        if left <= 0:
            self.expire()
            raise LimitPassed
        return left if at_most is None else min(left, at_most)

    def expire(self) -> None:
        """Note which limit it was that has just passed."""
        if self.passed is None:
            self.passed = Limit.CALL if self._call_ends_at <= self._wait_ends_at else self._waits_for

    def _interrupt(self) -> None:
        self.is_stopped = True
        blocked_on = self._blocked_on
        if blocked_on is not None:
            blocked_on.wake(self)


class _Here(threading.local):
    watch: CallWatch | None = None


_here = _Here()


def watching() -> CallWatch:
    """The watch of the call that this thread makes. Raises RuntimeError outside of a call."""
    if _here.watch is None:
        raise RuntimeError("a provider's connection is used outside of a model call")
    return _here.watch
