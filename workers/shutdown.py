"""SIGTERM: take nothing more, let running steps end, hand back what has not ended in time, leave with 0."""

from __future__ import annotations

import logging
import os
import threading
import time

from persistence import leases
from persistence.errors import DatabaseUnavailable
from workers import solo
from workers.wiring import Parts

log = logging.getLogger(__name__)

# From the last hand-back to the end of the process, should a thread not listen.
_LAST_WORDS_S = 5.0


class Drain:
    """Started once, by whichever signal comes first."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._lock = threading.Lock()
        self._has_begun = False

    def begin(self) -> None:
        """Returns at once; may be called from a signal handler's thread and more than once."""
        with self._lock:
            if self._has_begun:
                return
            self._has_begun = True
        log.info("worker.draining", extra={"turns": len(self._parts.registry.all())})
        self._parts.registry.drain()
        solo.children.stop()
        threading.Thread(target=self._hand_back_the_rest, name="drain", daemon=True).start()

    def _hand_back_the_rest(self) -> None:
        deadline = time.monotonic() + self._parts.settings.drain_s
        while (self._parts.registry.all() or solo.children.are_busy) and time.monotonic() < deadline:
            time.sleep(0.05)
        for carried in self._parts.registry.all():
            try:
                leases.hand_back(self._parts.renewals, carried.held)
            except DatabaseUnavailable:
                log.warning("turn.not_handed_back", extra={"turn_id": str(carried.turn.id)})
            carried.lose()
        end = time.monotonic() + _LAST_WORDS_S
        while (self._parts.registry.all() or solo.children.are_busy) and time.monotonic() < end:
            time.sleep(0.05)
        solo.children.kill()
        if self._parts.registry.all():
            log.warning("worker.left_threads", extra={"turns": len(self._parts.registry.all())})
            os._exit(0)
