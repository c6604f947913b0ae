"""Sends the wakes that are missing: of turns that were never woken, and of those whose wake was lost."""

from __future__ import annotations

import redis
from celery import Celery

from persistence import queue
from persistence.database import Statements
from workers import wakes

# Woken turns for every free slot: enough that no slot waits, few enough that Redis stays shallow. Where slots are kept for
# other turns it is one: a wake too many would be taken into one of those.
_DEPTH = 2
_MOST = 500


class Dispatcher:
    def __init__(self, app: Celery, keys: redis.Redis) -> None:
        self._app = app
        self._keys = keys

    def run_once(self, database: Statements) -> int:
        """How many wakes were sent."""
        return sum(self._dispatch(database, name) for name in wakes.CELERY_QUEUE)

    def _dispatch(self, database: Statements, name: str) -> int:
        room = queue.room(database, name)
        # With an empty queue and free slots, a turn that was woken long ago and not claimed has lost its wake.
        resend = room.missed > 0 and room.free > 0 and self._is_empty(name)
        limit = share(room, resend=resend)
        if limit <= 0:
            return 0
        chosen = queue.dispatch(database, name, limit=limit, resend=resend)
        wakes.send(self._app, chosen)
        return len(chosen)

    def _is_empty(self, name: str) -> bool:
        return self._keys.llen(wakes.CELERY_QUEUE[name]) == 0


def share(room: queue.Room, *, resend: bool) -> int:
    """How many turns may be woken now; those whose wake was lost are among them if it is sent again.

    Any other that was woken and not claimed yet is on its way: a worker has taken its wake from the queue, and will claim
    it.
    """
    on_their_way = room.waiting - room.missed if resend else room.waiting
    depth = 1 if room.kept else _DEPTH
    return max(0, min(depth * room.free - on_their_way, _MOST))
