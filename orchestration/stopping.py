"""A stop that can be polled, waited for, or acted on at once by whoever is blocked in a socket."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

log = logging.getLogger(__name__)

# How long whoever stops waits for a provider to hear that its answer is not wanted any more: a stop is to be over within
# a second, whatever a provider does.
TELL_S = 0.5


class Stop:
    """Set once, from any thread. Callbacks run in the thread that sets it and must not block."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._lock = threading.Lock()
        self._callbacks: dict[int, Callable[[], None]] = {}
        self._next = 0

    def is_set(self) -> bool:
        return self._event.is_set()

    def wait(self, timeout_s: float) -> bool:
        return self._event.wait(timeout_s)

    def set(self) -> None:
        with self._lock:
            self._event.set()
            callbacks, self._callbacks = list(self._callbacks.values()), {}
        for callback in callbacks:
            try:
                callback()
            except Exception:  # the others have a stop to hear of too, and who sets it has more turns to see to
                log.exception("stop.callback_failed")

    def on_set(self, callback: Callable[[], None]) -> Callable[[], None]:
        with self._lock:
            if not self._event.is_set():
                self._next += 1
                key = self._next
                self._callbacks[key] = callback
                return lambda: self._forget(key)
        callback()
        return lambda: None

    def _forget(self, key: int) -> None:
        with self._lock:
            self._callbacks.pop(key, None)
