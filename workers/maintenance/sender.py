"""Sends the results that are due, and again those that Redis has forgotten."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from datetime import timedelta

import redis
from celery import Celery

from persistence import deliveries
from persistence.database import Database, Statements
from persistence.deliveries import Delivery
from workers import results
from workers.celery_app import RESULT_EXPIRES_S

log = logging.getLogger(__name__)

# A key that stands in Redis as long as nobody has emptied it.
_MEMORY = "perdure:memory"
# The reaper waits for the end of a round: what is not sent in this time is left to the next one.
_ROUND_S = 0.7
_AT_ONCE = 20
# Rounds between two looks at the newest results, and how many are looked at.
_AUDIT_EVERY = 5
_AUDIT = 100
_AGE = timedelta(seconds=RESULT_EXPIRES_S)


class Sender:
    def __init__(self, app: Celery, keys: redis.Redis, reads: Database) -> None:
        self._app = app
        self._keys = keys
        self._reads = reads
        self._round = 0

    def run_once(self, database: Statements) -> int:
        """How many results were tried. Raises one of results.UNREACHABLE while Redis is away."""
        if not self._keys.exists(_MEMORY):  # Redis was emptied, and every result with it
            deliveries.send_all_again(database, results.KIND, age=_AGE)
            self._keys.set(_MEMORY, "1")
        ends_at = time.monotonic() + _ROUND_S
        sent = 0
        while time.monotonic() < ends_at and (due := deliveries.take_due(database, results.KIND, limit=_AT_ONCE)):
            sent += self._send(due, ends_at)
        if self._round % _AUDIT_EVERY == 0:
            sent += self._send(self._overwritten(database), ends_at)
        self._round += 1
        return sent

    def _send(self, due: Sequence[Delivery], ends_at: float) -> int:
        """How many were tried. What there is no time for is due again soon, as if its sender had died."""
        for sent, delivery in enumerate(due):
            if time.monotonic() > ends_at:
                return sent
            try:
                results.deliver_now(self._app, self._reads, delivery.turn_id)
            except Exception:  # it stays due, ever later; the others have nothing to do with it
                log.exception("result.fault", extra={"turn_id": str(delivery.turn_id)})
        return len(due)

    def _overwritten(self, database: Statements) -> list[Delivery]:
        """Endings that a late STARTED, of a worker that was frozen, has written over."""
        recent = deliveries.recent(database, results.KIND, age=_AGE, limit=_AUDIT)
        return [d for d in recent if not results.is_stored(self._app, d.turn_id)]
