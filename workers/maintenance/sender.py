"""Sends the results that are due, and again those that Redis has forgotten."""

from __future__ import annotations

from datetime import timedelta

import redis
from celery import Celery

from persistence import deliveries
from persistence.database import Database, Statements
from persistence.deliveries import Delivery
from workers import results
from workers.celery_app import RESULT_EXPIRES_S

# A key that stands in Redis as long as nobody has emptied it.
_MEMORY = "perdure:memory"
_MOST = 500
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
        """How many results were sent. Raises one of results.UNREACHABLE while Redis is away."""
        if not self._keys.exists(_MEMORY):  # Redis was emptied, and every result with it
            deliveries.send_all_again(database, results.KIND, age=_AGE)
            self._keys.set(_MEMORY, "1")
        due = deliveries.take_due(database, results.KIND, limit=_MOST)
        if self._round % _AUDIT_EVERY == 0:
            due += self._overwritten(database)
        self._round += 1
        for delivery in due:
            results.deliver_now(self._app, self._reads, delivery.turn_id)
        return len(due)

    def _overwritten(self, database: Statements) -> list[Delivery]:
        """Endings that a late STARTED, of a worker that was frozen, has written over."""
        recent = deliveries.recent(database, results.KIND, age=_AGE, limit=_AUDIT)
        return [d for d in recent if not results.is_stored(self._app, d.turn_id)]
