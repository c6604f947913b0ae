"""A thread that calls one function every so often, for as long as the process lives."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from persistence.errors import StoreError
from workers.results import UNREACHABLE

log = logging.getLogger(__name__)


def _nothing_to_do() -> None:
    """Most services leave nothing open."""


class Service:
    """Calls `run_once` every `interval_s` seconds. A server that is away is a round that failed, no more."""

    def __init__(
        self,
        name: str,
        run_once: Callable[[], object],
        interval_s: float,
        *,
        at_end: Callable[[], None] = _nothing_to_do,
    ) -> None:
        self._at_end = at_end
        self._name = name
        self._run_once = run_once
        self._interval_s = interval_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._failing = False

    def start(self) -> Service:
        self._thread.start()
        return self

    def stop(self, timeout_s: float = 5.0) -> None:
        self._stop.set()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._run_once()
            except (StoreError, *UNREACHABLE) as error:
                if not self._failing:  # once an outage, not once a round
                    log.warning("service.failing", extra={"service": self._name, "reason": str(error)[:200]})
                self._failing = True
            except Exception:  # the service must outlive a fault of its round
                log.exception("service.fault", extra={"service": self._name})
                self._failing = True
            else:
                if self._failing:
                    log.info("service.recovered", extra={"service": self._name})
                self._failing = False
            self._stop.wait(self._interval_s)
        self._at_end()
