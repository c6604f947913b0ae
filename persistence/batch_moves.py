"""Stop a batch, open an ended one again, and end one that is over.

What becomes of the items is not kept beside them: no ending of an item locks the batch, and who wants sums adds them up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from uuid import UUID

from persistence import unstarted
from persistence.batches import COLUMNS
from persistence.database import Statements, Transaction
from persistence.errors import NotFound, Refused
from persistence.records.batch import Batch
from persistence.records.message import dumps
from persistence.records.status import CAPS, ExitReason

# One that is stopped before it is filled has the items that it has.
_INTERRUPT = f"""
WITH stopped AS (
  UPDATE batches b SET interrupt_requested_at = now(), event_seq = event_seq + 1, status = 'running',
    sealed_at = coalesce(sealed_at, now()),
    size = CASE WHEN status = 'filling' THEN (SELECT count(*) FROM turns t WHERE t.batch_id = b.id) ELSE size END
  WHERE id = %(id)s AND ended_at IS NULL AND interrupt_requested_at IS NULL RETURNING id, event_seq
), told AS (
  INSERT INTO batch_events (batch_id, seq, type, payload)
  SELECT id, event_seq, 'batch.interrupted', '{{}}'::json FROM stopped
)
SELECT {COLUMNS} FROM batches WHERE id = %(id)s"""

_REOPEN = f"""
WITH opened AS (
  UPDATE batches SET status = 'filling', sealed_at = NULL, interrupt_requested_at = NULL, ended_at = NULL,
    max_tokens_total = max_tokens_total + %(tokens)s, max_cost_usd = max_cost_usd + %(cost)s,
    resumes = resumes + 1, event_seq = event_seq + 1
  WHERE id = %(id)s AND resumes = %(resumes)s AND status <> 'filling'
    AND (ended_at IS NOT NULL OR interrupt_requested_at IS NULL) RETURNING {COLUMNS}, event_seq
), told AS (
  INSERT INTO batch_events (batch_id, seq, type, payload)
  SELECT id, event_seq, 'batch.resumed', json_build_object('resumes', resumes) FROM opened
)
SELECT * FROM opened"""

# The last of the items by its ending; one that has none comes first. A look at one entry of an index for each batch.
_OVER = """
SELECT id, resumes FROM batches b WHERE ended_at IS NULL AND status = 'running'
  AND NOT coalesce((SELECT t.ended_at IS NULL FROM turns t WHERE t.batch_id = b.id ORDER BY t.ended_at DESC LIMIT 1), false)
ORDER BY id LIMIT 100"""

# `resumes` is the fence: the items were seen to have ended by an earlier statement, and only a resume changes that. An
# interrupt that had to wait for items which were just being stored has not counted those.
_END = """
WITH counted AS (
  SELECT count(*) AS items, count(*) FILTER (WHERE status = 'completed') AS completed,
    count(*) FILTER (WHERE status = 'incomplete') AS incomplete,
    count(*) FILTER (WHERE status = 'interrupted') AS interrupted, count(*) FILTER (WHERE status = 'failed') AS failed,
    count(*) FILTER (WHERE exit_reason = 'batch_interrupted') AS stopped
  FROM turns WHERE batch_id = %(id)s
), ended AS (
  UPDATE batches SET ended_at = now(), event_seq = event_seq + 1, size = items, status = CASE
    WHEN stopped > 0 OR items = 0 THEN 'interrupted' WHEN completed = items THEN 'completed'
    WHEN completed = 0 THEN 'failed' ELSE 'completed_with_failures' END
  FROM counted WHERE id = %(id)s AND resumes = %(resumes)s AND status = 'running' AND ended_at IS NULL
  RETURNING id, event_seq, status
)
INSERT INTO batch_events (batch_id, seq, type, payload)
SELECT id, event_seq, 'batch.ended', json_build_object('status', status, 'completed', completed, 'incomplete', incomplete,
  'interrupted', interrupted, 'failed', failed) FROM ended, counted RETURNING batch_id, payload"""

_END_UNSTARTED = unstarted.ending(
    "status = 'queued' ORDER BY id LIMIT %(limit)s FOR UPDATE SKIP LOCKED",
    "interrupted",
    " interrupt_requested_at = coalesce(interrupt_requested_at, now()), interrupt_reason = %(reason)s,",
)

# Not those whose worker knows already.
_LIVE = """
SELECT id FROM turns WHERE batch_id = %(id)s AND ended_at IS NULL
  AND (status <> 'running' OR interrupt_requested_at IS NULL) ORDER BY id LIMIT %(limit)s"""

_TO_STOP = """
SELECT id FROM batches WHERE ended_at IS NULL AND status = 'running' AND interrupt_requested_at IS NOT NULL ORDER BY id"""

_ENDED_ITEMS = """
SELECT id, custom_id, exit_reason, started_at IS NOT NULL AS has_started,
  EXISTS (SELECT FROM turns o WHERE o.session_id = t.session_id AND o.id <> t.id
    AND (o.created_at, o.id) > (t.created_at, t.id)
    AND NOT coalesce(o.started_at IS NULL AND o.batch_id = t.batch_id, false)) AS has_successor
FROM turns t WHERE batch_id = %(id)s AND ended_at IS NOT NULL AND status <> 'completed' ORDER BY n"""

# Locked, so that nobody queues them meanwhile; and not those that somebody else has queued already, which may have a new
# ending by now.
_STILL_ENDED = """
SELECT id FROM turns t WHERE batch_id = %(id)s AND id = ANY (%(ids)s::uuid[]) AND ended_at IS NOT NULL
  AND status <> 'completed' AND EXISTS (SELECT FROM batches b WHERE b.id = t.batch_id AND b.status = 'filling')
ORDER BY id FOR UPDATE OF t"""

_RESUME_UNSTARTED = """
WITH is_filling AS (
  SELECT id FROM batches WHERE id = %(id)s AND status = 'filling' FOR SHARE
), turn AS (
  UPDATE turns t SET status = 'queued', exit_reason = NULL, ended_at = NULL, result = NULL, dispatched_at = NULL,
    interrupt_requested_at = NULL, interrupt_reason = NULL, resumes = resumes + 1, fencing_token = fencing_token + 1,
    awaits_allotment = EXISTS (SELECT FROM batches b
      WHERE b.id = t.batch_id AND (b.max_tokens_total IS NOT NULL OR b.max_cost_usd IS NOT NULL)),
    iterations_max = iterations_max + %(iterations)s, max_tokens_total = max_tokens_total + %(tokens)s,
    max_cost_usd = max_cost_usd + %(cost)s, event_seq = event_seq + 1
  FROM is_filling WHERE t.batch_id = is_filling.id AND t.id = ANY (%(ids)s::uuid[]) AND t.ended_at IS NOT NULL
    AND t.started_at IS NULL
  RETURNING t.id, t.event_seq, t.resumes
), told AS (
  INSERT INTO events (turn_id, seq, type, payload)
  SELECT id, event_seq, 'turn.resumed', json_build_object('resumes', resumes) FROM turn
), given_up AS (
  UPDATE deliveries SET state = 'given_up' FROM turn
  WHERE deliveries.turn_id = turn.id AND kind = 'celery_result' AND state <> 'given_up'
)
SELECT id FROM turn"""


@dataclass(frozen=True, slots=True)
class Raise:
    """By how much a resume raises the caps of each item, and those that all items share."""

    iterations: int = 0
    tokens: int = 0
    cost: Decimal = Decimal(0)
    shared_tokens: int = 0
    shared_cost: Decimal = Decimal(0)

    @property
    def has_shared(self) -> bool:
        return bool(self.shared_tokens or self.shared_cost)

    @property
    def is_negative(self) -> bool:
        return min(self.iterations, self.tokens, self.cost, self.shared_tokens, self.shared_cost) < 0

    def lifts(self, reason: ExitReason, *, has_started: bool = True) -> bool:
        """Whether an item that ended so can go on with it. One that never started has used nothing of its own caps."""
        cap = CAPS.get(reason)
        shared = {"tokens": self.shared_tokens, "cost": self.shared_cost}.get(cap or "", 0)
        return cap is None or getattr(self, cap) > 0 or (shared > 0 and not has_started)


@dataclass(frozen=True, slots=True)
class EndedItem:
    """An item that has ended without being completed. `has_successor`: its session has gone on outside of the batch."""

    turn_id: UUID
    custom_id: str
    exit_reason: ExitReason
    has_started: bool
    has_successor: bool


def find(database: Statements, batch_id: UUID) -> Batch:
    """Raises NotFound."""
    return _known(database.one_or_none(f"SELECT {COLUMNS} FROM batches WHERE id = %(id)s", {"id": batch_id}), batch_id)


def interrupt(database: Statements, batch_id: UUID) -> Batch:
    """Ask a batch to end, durably: none of its items starts any more. An ended one is left as it is. Raises NotFound."""
    _known(database.one_or_none(_INTERRUPT, {"id": batch_id}), batch_id)
    return find(database, batch_id)


def to_stop(database: Statements) -> list[UUID]:
    """The batches that were asked to end and have not."""
    return [r["id"] for r in database.rows(_TO_STOP)]


def end_unstarted(database: Statements, batch_id: UUID, *, message: str, limit: int = 500) -> list[UUID]:
    """End up to `limit` items that never started; which ones."""
    params = {
        "id": batch_id,
        "limit": limit,
        "reason": ExitReason.BATCH_INTERRUPTED.value,
        "result": dumps({"output_text": "", "message": message}),
    }
    return [r["id"] for r in database.rows(_END_UNSTARTED, params)]


def unasked_items(database: Statements, batch_id: UUID, *, limit: int = 1000) -> list[UUID]:
    """Those that have not ended, and have to be asked to."""
    return [r["id"] for r in database.rows(_LIVE, {"id": batch_id, "limit": limit})]


def ended_items(database: Statements, batch_id: UUID) -> list[EndedItem]:
    """The items that a resume may queue again, in the order of the file."""
    return [
        EndedItem(r["id"], r["custom_id"], ExitReason(r["exit_reason"]), r["has_started"], r["has_successor"])
        for r in database.rows(_ENDED_ITEMS, {"id": batch_id})
    ]


def reopen(database: Statements, batch: Batch, raised: Raise) -> Batch | None:
    """Make it `filling` again, for its items to be queued anew, and raise the caps that all of them share.

    In one statement, fenced by the resumes that were seen: whoever does the same again raises nothing twice. None when
    somebody else has just done so.
    """
    params = {"id": batch.id, "resumes": batch.resumes, "tokens": raised.shared_tokens, "cost": raised.shared_cost}
    row = database.one_or_none(_REOPEN, params)
    return None if row is None else Batch.from_row(row)


def require_caps(database: Statements, batch_id: UUID, raised: Raise) -> None:
    """Raises Refused for a shared cap that is to be raised and that the batch has not got."""
    row = database.one_or_none(
        """SELECT 1 FROM batches WHERE id = %(id)s AND (%(tokens)s = 0 OR max_tokens_total IS NOT NULL)
             AND (%(cost)s = 0 OR max_cost_usd IS NOT NULL)""",
        {"id": batch_id, "tokens": raised.shared_tokens, "cost": raised.shared_cost},
    )
    if row is None:
        raise Refused(f"batch {batch_id} has no such cap for all of its items: leave --max-cost and --max-tokens out")


def still_ended(transaction: Transaction, batch_id: UUID, turn_ids: Sequence[UUID]) -> list[UUID]:
    """Those of the items that are yet to be queued again; nobody queues them until the transaction ends."""
    return [r["id"] for r in transaction.rows(_STILL_ENDED, {"id": batch_id, "ids": list(turn_ids)})]


def resume_unstarted(database: Statements, batch_id: UUID, turn_ids: Sequence[UUID], raised: Raise) -> list[UUID]:
    """Queue items again that ended before they started, while the batch is being filled; which ones."""
    params = {"id": batch_id, "ids": list(turn_ids), "iterations": raised.iterations, "tokens": raised.tokens}
    return [r["id"] for r in database.rows(_RESUME_UNSTARTED, params | {"cost": raised.cost})]


def end_what_is_over(database: Statements) -> list[tuple[UUID, Mapping[str, Any]]]:
    """End the batches of which every item has ended, each once a run; which ones, and what `batch.ended` says of them."""
    ended: list[tuple[UUID, Mapping[str, Any]]] = []
    for over in database.rows(_OVER):
        ended += [
            (r["batch_id"], r["payload"]) for r in database.rows(_END, {"id": over["id"], "resumes": over["resumes"]})
        ]
    return ended


def _known(row: Mapping[str, Any] | None, batch_id: UUID) -> Batch:
    if row is None:
        raise NotFound(f"there is no batch {batch_id}; `perdure batch list` shows those that exist")
    return Batch.from_row(row)
