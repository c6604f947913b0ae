"""The turns table as the queue of record: which turns to wake, which waits are due, who is there to take them."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from persistence.claims import CLAIMABLE, RESEND_AFTER
from persistence.database import Statements


@dataclass(frozen=True, slots=True)
class Wake:
    """A turn to be woken, and the Celery queue for it."""

    turn_id: UUID
    queue: str


@dataclass(frozen=True, slots=True)
class WorkerSigns:
    """What a worker says of itself at every renewal."""

    id: str
    name: str
    host: str
    boot: str
    pid_namespace: str
    pid: int
    queues: str
    slots: int
    busy: int
    stuck: int


# Fair by tenant: each tenant's first, then each one's second, and so on.
_DISPATCH = f"""
WITH ranked AS (
  SELECT q.id, row_number() OVER (PARTITION BY tenants.id ORDER BY q.priority DESC, q.created_at) AS place
  FROM tenants, LATERAL (
    SELECT id, priority, created_at FROM turns t
    WHERE queue = %(queue)s AND tenant_id = tenants.id AND {CLAIMABLE}
      AND (dispatched_at IS NULL OR (%(resend)s AND dispatched_at < now() - {RESEND_AFTER}))
    ORDER BY priority DESC, created_at LIMIT %(limit)s
  ) q
), chosen AS (
  SELECT turns.id FROM turns JOIN ranked ON ranked.id = turns.id
  ORDER BY place LIMIT %(limit)s FOR UPDATE OF turns SKIP LOCKED
)
UPDATE turns SET dispatched_at = now() FROM chosen
WHERE turns.id = chosen.id AND status = 'queued' RETURNING turns.id, queue"""

# What a worker says of itself may be some seconds old: what is written of its turns is not. A tenth of the slots of a
# worker that takes interactive turns, too, is kept free of batches: an item may take its slot for minutes. In one statement,
# so that a turn that is claimed meanwhile is counted once. Who has missed two renewals may be dead, and has no room.
_ROOM = f"""
WITH running AS (
  SELECT worker, count(*) AS n FROM turns WHERE status = 'running' GROUP BY worker
), there AS (
  SELECT slots - greatest(busy, coalesce(running.n, 0)) AS unused,
    CASE WHEN %(queue)s = 'batch' AND 'interactive' = ANY (string_to_array(queues, ',')) THEN slots / 10 ELSE 0 END AS kept
  FROM workers LEFT JOIN running ON running.worker = workers.id
  WHERE seen_at > now() - interval '7 seconds' AND %(queue)s = ANY (string_to_array(queues, ','))
)
SELECT coalesce(sum(greatest(unused - kept, 0)), 0) AS free, coalesce(sum(kept), 0) AS kept,
  (SELECT count(*) FROM turns WHERE status = 'queued' AND queue = %(queue)s AND dispatched_at <= now()) AS waiting,
  (SELECT count(*) FROM turns WHERE status = 'queued' AND queue = %(queue)s
    AND dispatched_at < now() - {RESEND_AFTER}) AS missed
FROM there"""

_WAITING = "SELECT count(*) AS n FROM turns WHERE status = 'queued' AND queue = %(queue)s AND dispatched_at <= now()"

_DUE = """
WITH due AS (
  SELECT id FROM turns WHERE status = 'waiting' AND resume_at <= now()
  ORDER BY id LIMIT %(limit)s FOR UPDATE SKIP LOCKED
)
UPDATE turns SET status = 'queued', waiting_for = NULL, resume_at = NULL, dispatched_at = NULL
FROM due WHERE turns.id = due.id RETURNING turns.id, queue"""

_SEEN = """
INSERT INTO workers (id, name, host, boot, pid_namespace, pid, queues, slots, busy, stuck)
VALUES (%(id)s, %(name)s, %(host)s, %(boot)s, %(pid_namespace)s, %(pid)s, %(queues)s, %(slots)s, %(busy)s, %(stuck)s)
ON CONFLICT (id) DO UPDATE SET slots = excluded.slots, busy = excluded.busy, stuck = excluded.stuck, seen_at = now()"""


@dataclass(frozen=True, slots=True)
class Room:
    """Free slots of a queue's workers, beside those that are `kept` for others, and turns that were woken but not claimed.

    `missed` are those among the latter whose wake was sent so long ago that it may have been lost.
    """

    free: int
    kept: int
    waiting: int
    missed: int = 0


def room(database: Statements, queue: str) -> Room:
    row = database.one(_ROOM, {"queue": queue})
    return Room(int(row["free"]), int(row["kept"]), int(row["waiting"]), int(row["missed"]))


def waiting(database: Statements, queue: str) -> int:
    """How many turns were woken and not claimed yet."""
    return database.one(_WAITING, {"queue": queue})["n"]


def dispatch(database: Statements, queue: str, *, limit: int, resend: bool) -> list[Wake]:
    """Choose up to `limit` claimable turns and stamp them as dispatched; the caller sends their wakes.

    `resend` also chooses those whose wake was sent over 5 s ago and may have been lost.
    """
    rows = database.rows(_DISPATCH, {"queue": queue, "limit": limit, "resend": resend})
    return [Wake(r["id"], r["queue"]) for r in rows]


def mark_dispatched(database: Statements, turn_id: UUID) -> None:
    database.rows(
        "UPDATE turns SET dispatched_at = now() WHERE id = %(id)s AND status = 'queued' AND dispatched_at IS NULL",
        {"id": turn_id},
    )


def continue_due_waits(database: Statements, *, limit: int = 500) -> list[Wake]:
    """Queue the turns whose wait is over."""
    return [Wake(r["id"], r["queue"]) for r in database.rows(_DUE, {"limit": limit})]


def end_wait(database: Statements, turn_id: UUID) -> None:
    """Queue the turn now, if it waits, whatever it waits for."""
    database.rows(
        "UPDATE turns SET status = 'queued', waiting_for = NULL, resume_at = NULL, dispatched_at = NULL"
        " WHERE id = %(id)s AND status = 'waiting'",
        {"id": turn_id},
    )


def report(database: Statements, worker: WorkerSigns) -> None:
    """Say that this worker is alive and how much room it has."""
    database.rows(_SEEN, {f: getattr(worker, f) for f in WorkerSigns.__dataclass_fields__})


def forget(database: Statements, worker_id: str) -> None:
    """A worker leaves in order, or is known to be dead."""
    database.rows("DELETE FROM workers WHERE id = %(id)s", {"id": worker_id})


def forget_silent(database: Statements) -> None:
    """Drop the workers that have not been seen for an hour."""
    database.rows("DELETE FROM workers WHERE seen_at < now() - interval '1 hour'")
