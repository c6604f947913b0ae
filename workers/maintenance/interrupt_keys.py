"""Makes a bare SET of an interrupt key durable, and deletes the keys of turns that have ended or never were."""

from __future__ import annotations

from uuid import UUID

import redis
from celery import Celery

from orchestration.interrupting import interrupt
from persistence import interrupts
from persistence.database import Database, Statements
from persistence.records.status import TurnStatus
from workers import results, wakes
from workers.wakes import KEY


class InterruptKeys:
    def __init__(self, app: Celery, keys: redis.Redis, writes: Database) -> None:
        self._app = app
        self._keys = keys
        self._writes = writes

    def run_once(self, database: Statements) -> int:
        """How many keys were seen. Raises redis.RedisError while Redis is away."""
        names = list(self._keys.scan_iter(match=f"{KEY}*", count=1000))
        known = {name: turn_id for name in names if (turn_id := _turn_id(name)) is not None}
        live = interrupts.live_among(database, list(known.values()))
        stale = [name for name in names if known.get(name) not in live]
        if stale:
            self._keys.delete(*stale)
        for turn_id in live:
            if interrupt(self._writes, turn_id) is TurnStatus.INTERRUPTED:
                results.deliver_now(self._app, self._writes, turn_id)
                wakes.clear_interrupts(self._keys, [turn_id])
        return len(names)


def _turn_id(name: str) -> UUID | None:
    try:
        return UUID(name.removeprefix(KEY))
    except ValueError:
        return None
