"""Stop a batch, and let one go on: the statements of `orchestration.batch_steps` with the bells in Redis after them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from uuid import UUID

import redis
from celery import Celery

from orchestration import batch_steps
from orchestration.batch_steps import Resumed
from persistence import batch_moves
from persistence.batch_moves import Raise
from persistence.database import Database
from persistence.records.batch import Batch
from persistence.records.status import TurnStatus
from workers import results, wakes


def interrupt(database: Database, keys: redis.Redis, batch_id: UUID) -> Batch:
    """Ask a batch to end, durably; where it stands after that. Whoever leads goes on if we die. Raises NotFound."""
    batch = batch_moves.interrupt(database, batch_id)
    if not batch.status.is_ending:
        stop_items(database, keys, batch_id)
    return batch


def stop_items(database: Database, keys: redis.Redis, batch_id: UUID, *, within_s: float | None = None) -> None:
    """Ask every live item of an interrupted batch to end, or those for which there is time.

    Their results are sent by the sender: thousands may end here at once. A Redis that does not take one bell is not asked
    to take the others, each of which may cost seconds: the workers hear of it from Postgres.
    """
    ends_at = None if within_s is None else time.monotonic() + within_s
    is_there = True
    for stopped in batch_steps.stop_items(database, batch_id):
        if stopped.status is TurnStatus.RUNNING and is_there:
            is_there = wakes.set_interrupt(keys, stopped.turn_id)
        if ends_at is not None and time.monotonic() > ends_at:
            return


def resume(database: Database, keys: redis.Redis, app: Celery, batch_id: UUID, raised: Raise) -> Resumed:
    """Queue the items again that ended and are not completed. Raises NotFound, or Refused with what to do."""
    is_there = True

    def forget(turn_ids: Sequence[UUID]) -> None:
        nonlocal is_there
        if not is_there:
            return  # as above: what it still has of the others is replaced when they end
        wakes.clear_interrupts(keys, turn_ids)
        is_there = all(results.forget(app, turn_id) for turn_id in turn_ids)

    return batch_steps.resume(database, batch_id, raised, forget=forget)
