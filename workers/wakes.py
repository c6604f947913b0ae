"""Redis as a doorbell: wakes and interrupt keys. Losing either costs seconds, never a turn."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from uuid import UUID

import redis
from celery import Celery
from kombu.exceptions import OperationalError

from persistence import queue
from persistence.database import Database
from persistence.errors import DatabaseUnavailable
from persistence.queue import Wake
from workers import redis_connections
from workers.celery_app import BATCH, INTERACTIVE

log = logging.getLogger(__name__)

KEY = "perdure:interrupt:"
CELERY_QUEUE = {"interactive": INTERACTIVE, "batch": BATCH}

# Beyond this many woken, unclaimed turns the dispatcher decides: Redis is kept shallow.
_FEW = 50


def connect(redis_url: str) -> redis.Redis:
    """A client for keys, with limits on every wait. The default retry stays on: it heals connections that were closed."""
    return redis.Redis.from_url(
        redis_url,
        connection_class=redis_connections.of(redis_url),
        socket_timeout=5,
        socket_connect_timeout=3,
        decode_responses=True,
    )


def send(app: Celery, wakes: Iterable[Wake]) -> bool:
    """Ring for these turns. False when Redis did not take it: the dispatcher will ring again."""
    try:
        for wake in wakes:
            app.send_task(
                "perdure.run_turn",
                args=[str(wake.turn_id)],
                task_id=str(wake.turn_id),
                queue=CELERY_QUEUE[wake.queue],
                argsrepr="()",
                kwargsrepr="{}",
                ignore_result=True,
                retry=False,
            )
    except (OperationalError, redis.RedisError, OSError) as error:
        log.warning("wake.not_sent", extra={"reason": type(error).__name__})
        return False
    return True


def ring_after_commit(app: Celery, database: Database, wake: Wake) -> None:
    """Wake a turn that has just been queued, if it is interactive and few others wait: the short way to a worker.

    Never raises: the turn is stored, and who was told otherwise would submit it again. The dispatcher wakes it too.
    """
    try:
        if wake.queue != "interactive" or queue.waiting(database, wake.queue) >= _FEW:
            return
        queue.mark_dispatched(database, wake.turn_id)
    except DatabaseUnavailable as error:
        log.warning("wake.not_sent", extra={"turn_id": str(wake.turn_id), "reason": str(error)})
        return
    send(app, [wake])


def set_interrupt(keys: redis.Redis, turn_id: UUID) -> bool:
    """Ring the interrupt. The stamp in Postgres was made before; False when Redis did not take it."""
    try:
        keys.set(f"{KEY}{turn_id}", "1", ex=24 * 3600)
    except (redis.RedisError, OSError) as error:
        log.warning("interrupt.not_rung", extra={"turn_id": str(turn_id), "reason": type(error).__name__})
        return False
    return True


def clear_interrupts(keys: redis.Redis, turn_ids: Sequence[UUID]) -> None:
    """Delete the keys of turns that have ended or start anew; one that stays is deleted by the leader."""
    if not turn_ids:
        return
    try:
        keys.delete(*(f"{KEY}{turn_id}" for turn_id in turn_ids))
    except (redis.RedisError, OSError) as error:
        log.warning("interrupt.not_cleared", extra={"reason": type(error).__name__})
