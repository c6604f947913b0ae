"""Claim a turn: who gets it, when, and what becomes of one that cannot be loaded."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

from psycopg.errors import UniqueViolation

from persistence import turns
from persistence.database import Database
from persistence.errors import LeaseHeld, LeaseLost, NeedsNewerWorker, StoreError, Unreadable
from persistence.records.status import TurnStatus
from persistence.records.turn import LEARNED, UNREADABLE, Turn

# The version of the shapes that are stored (blocks, settings, summaries, counters): raised with every change that older
# workers would misread. A claim stamps the turn with it.
FORMAT = 1

# A turn that was woken this long ago and is not claimed has lost its wake. One that shall rest a while counts as woken so
# much later (`queue.dispatch`).
RESEND_AFTER = "interval '5 seconds'"

# The most seconds until a turn that could not be carried is tried again, and how often that is told.
_LATEST_S, _MOST_TOLD = 60, 7

# A turn that never started waits for its session's live turn and for the older ones, an item also for its batch, which may
# not be stored as a whole yet (then its session does not wait for it either), or may have been interrupted. One that has no part of its batch's caps waits for that.
CLAIMABLE = """status = 'queued' AND NOT awaits_allotment AND (started_at IS NOT NULL OR ((batch_id IS NULL OR EXISTS (
    SELECT FROM batches b WHERE b.id = t.batch_id AND b.status = 'running' AND b.interrupt_requested_at IS NULL))
  AND NOT EXISTS (
    SELECT FROM turns o WHERE o.session_id = t.session_id AND o.id <> t.id AND o.exit_reason IS NULL
      AND (o.started_at IS NOT NULL OR (o.created_at, o.id) < (t.created_at, t.id) AND NOT EXISTS (
        SELECT FROM batches f WHERE f.id = o.batch_id AND f.status = 'filling')))))"""

# What a later version wrote into a session, this one may misread, whichever of its turns it is.
_IS_NEWER = "EXISTS (SELECT FROM turns o WHERE o.session_id = t.session_id AND o.format > %(format)s)"

# What the agent's own model was found to refuse in the turn before this one.
_LEARNED = """
SELECT json_object_agg(learned.key, learned.value) FROM (
  SELECT o.remedies, o.model_index FROM turns o
  WHERE o.session_id = t.session_id AND o.agent_id = t.agent_id AND o.started_at IS NOT NULL
  ORDER BY o.created_at DESC LIMIT 1) before, json_each(before.remedies) learned
WHERE before.model_index = 0 AND learned.key = ANY (%(learned)s::text[])"""

_CLAIM = f"""
WITH claimed AS (
  UPDATE turns t SET
    status = 'running', fencing_token = fencing_token + 1, worker = %(worker)s,
    lease_expires_at = now() + %(lease)s, hand_back_at = now() + %(slice)s,
    last_seq = CASE WHEN started_at IS NULL
      THEN 1 + coalesce((SELECT max(seq) FROM messages m WHERE m.session_id = t.session_id), 0) ELSE last_seq END,
    deadline = CASE WHEN started_at IS NULL AND deadline IS NULL
      THEN now() + (SELECT make_interval(secs => (settings ->> 'deadline_s')::float) FROM agents a
        WHERE a.id = t.agent_id AND json_typeof(settings -> 'deadline_s') = 'number')
      ELSE deadline END,
    remedies = CASE WHEN started_at IS NULL THEN coalesce(({_LEARNED}), remedies) ELSE remedies END,
    started_at = coalesce(started_at, now()), event_seq = event_seq + 1, format = %(format)s
  WHERE id = %(id)s AND NOT {_IS_NEWER} AND ({CLAIMABLE} OR %(again)s AND status = 'running' AND worker = %(worker)s)
    AND (NOT is_suspect OR %(alone)s)
    AND EXISTS (SELECT FROM sessions s WHERE s.id = t.session_id
      AND (s.workspace_id IS NULL OR s.workspace_id = %(workspace)s::text))
  RETURNING *
), first_message AS (
  INSERT INTO messages (session_id, seq, turn_id, iteration, role, origin, content)
  SELECT session_id, last_seq, id, 0, 'user', 'user', input FROM claimed
  WHERE started_at = now() -- set by this very statement: the first claim
), rooted AS (
  UPDATE sessions s SET workspace_id = %(workspace)s::text FROM claimed
  WHERE s.id = claimed.session_id AND s.workspace_id IS NULL AND %(workspace)s::text IS NOT NULL
), told AS (
  INSERT INTO events (turn_id, seq, type, payload)
  SELECT id, event_seq, 'turn.claimed', json_build_object('worker', worker, 'fencing_token', fencing_token) FROM claimed
)
SELECT fencing_token, crash_streak >= max_crashes AS is_lost_too_often FROM claimed"""

# Old workers try it ever later; what they tell of it stays few lines.
_LEFT_TO_NEWER = f"""
WITH tried AS (
  SELECT count(*) AS n FROM events WHERE turn_id = %(id)s AND type = 'turn.handed_back' AND payload ->> 'needs' IS NOT NULL
), left_alone AS (
  UPDATE turns t SET dispatched_at = now() - {RESEND_AFTER} + make_interval(secs => least(power(2, tried.n), %(most)s)),
    event_seq = event_seq + (tried.n < %(told)s)::int
  FROM tried WHERE id = %(id)s AND status = 'queued' AND {_IS_NEWER}
  RETURNING t.id, t.event_seq, tried.n,
    (SELECT max(o.format) FROM turns o WHERE o.session_id = t.session_id) AS format
), told AS (
  INSERT INTO events (turn_id, seq, type, payload)
  SELECT id, event_seq, 'turn.handed_back', json_build_object('needs', 'newer_worker', 'format', format)
  FROM left_alone WHERE n < %(told)s
)
SELECT format FROM left_alone"""

# A loss like that of a worker: it is counted, and only an answer clears the count.
_GIVEN_BACK = f"""
WITH back AS (
  UPDATE turns SET status = 'queued', fencing_token = fencing_token + 1, worker = NULL, lease_expires_at = NULL,
    hand_back_at = NULL, activity = NULL, activity_since = NULL, event_seq = event_seq + 1,
    crash_count = crash_count + 1, crash_streak = crash_streak + 1,
    remedies = (remedies::jsonb || jsonb_build_object(%(unreadable)s::text,
      coalesce((remedies ->> %(unreadable)s::text)::int, 0) + 1))::json,
    dispatched_at = now() - {RESEND_AFTER} + make_interval(secs => least(power(2, crash_streak), %(most)s))
  WHERE id = %(id)s AND fencing_token = %(token)s AND status = 'running'
  RETURNING id, event_seq, crash_count
)
INSERT INTO events (turn_id, seq, type, payload)
SELECT id, event_seq, 'turn.handed_back', json_build_object('unreadable', true, 'crash_count', crash_count) FROM back"""


def claim(
    database: Database,
    turn_id: UUID,
    *,
    worker: str,
    lease: timedelta,
    slice_: timedelta,
    alone: bool = False,
    workspace_id: str | None = None,
    again: bool = False,
) -> Turn:
    """Take a queued turn for this worker and load it. A claim makes every older lease stale.

    The first claim appends the request to the session's messages. `alone` also takes a suspect (a turn that was taken
    back in the middle of a tool call), which only a process that carries nothing else may do. `workspace_id` names the
    worker's workspace root: a session stays with the root that it began in. `again` also takes what a claim of this
    very worker has taken whose answer was lost; nobody else in the process may be at that turn.

    One whose owners were lost too often is not loaded (that may be what kills them): it comes as its outline, and ends.

    Raises LeaseHeld when the turn is not queued, is not its session's next, is a suspect and we are not alone, or has
    its files elsewhere; NeedsNewerWorker; Unreadable; LeaseLost when it was taken from us before it was loaded.
    """
    params = {
        "id": turn_id,
        "worker": worker,
        "lease": lease,
        "slice": slice_,
        "alone": alone,
        "workspace": workspace_id,
        "again": again,
        "format": FORMAT,
        "learned": list(LEARNED),
    }
    try:
        row = database.one_or_none(_CLAIM, params)
    except UniqueViolation as error:  # another turn of the session was claimed at the same instant
        raise LeaseHeld(f"turn {turn_id} waits for another turn of its session") from error
    if row is None:
        _leave_to_newer(database, turn_id)
        raise LeaseHeld(f"turn {turn_id} cannot be claimed now")
    turn = (
        turns.outline(database, turn_id) if row["is_lost_too_often"] else _load(database, turn_id, row["fencing_token"])
    )
    if turn.fencing_token != row["fencing_token"]:  # we were frozen: what we look at is somebody else's by now
        raise LeaseLost(f"turn {turn_id} was taken away at once")
    return turn


def _load(database: Database, turn_id: UUID, token: int) -> Turn:
    try:
        return turns.load(database, turn_id)
    except StoreError:
        raise
    except Exception as error:  # a block, a setting, a lack of memory: to leave it would be to try it for ever
        params = {"id": turn_id, "token": token, "unreadable": UNREADABLE, "most": _LATEST_S}
        database.rows(_GIVEN_BACK, params)
        raise Unreadable(f"turn {turn_id} cannot be loaded here: {type(error).__name__}") from error


def _leave_to_newer(database: Database, turn_id: UUID) -> None:
    """Raises NeedsNewerWorker where that is why the turn cannot be claimed."""
    params = {"id": turn_id, "format": FORMAT, "most": _LATEST_S, "told": _MOST_TOLD}
    row = database.one_or_none(_LEFT_TO_NEWER, params)
    if row is not None:
        raise NeedsNewerWorker(
            f"turn {turn_id} needs a newer worker: its session is written in format {row['format']}, and this version"
            f" knows up to {FORMAT}"
        )


def is_suspect(database: Database, turn_id: UUID) -> bool:
    """Whether the turn is queued and must be carried alone."""
    row = database.one_or_none("SELECT is_suspect, status FROM turns WHERE id = %(id)s", {"id": turn_id})
    return row is not None and row["is_suspect"] and row["status"] == TurnStatus.QUEUED
