"""Keep a lease, prove it, give it up in order, take it back from a dead owner."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import UUID

from persistence.database import Statements
from persistence.errors import LeaseLost
from persistence.records.drafts import OPEN


@dataclass(frozen=True, slots=True)
class Held:
    """A turn that a process carries, under which token; and what it does just now, for people to see."""

    turn_id: UUID
    fencing_token: int
    activity: str | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Signs:
    """What a renewal saw on the row."""

    is_interrupted: bool


@dataclass(frozen=True, slots=True)
class TakenBack:
    """A turn that its owner left behind; `crash_count` is after this crash."""

    turn_id: UUID
    queue: str
    worker: str
    crash_count: int
    is_suspect: bool


# Whoever renews, takes back or stamps locks rows in the order of their ids and skips what is locked: a row under a
# checkpoint is alive by that very fact.
_RENEW = """
WITH mine AS (
  SELECT t.id, h.activity
  FROM turns t JOIN unnest(%(ids)s::uuid[], %(tokens)s::bigint[], %(activities)s::text[]) AS h (id, token, activity)
    ON t.id = h.id AND t.fencing_token = h.token
  WHERE t.status = 'running' ORDER BY t.id FOR UPDATE OF t SKIP LOCKED
)
UPDATE turns SET lease_expires_at = now() + %(lease)s, activity = mine.activity,
  activity_since = CASE WHEN turns.activity IS NOT DISTINCT FROM mine.activity THEN activity_since
    WHEN mine.activity IS NOT NULL THEN now() END
FROM mine WHERE turns.id = mine.id
RETURNING turns.id, interrupt_requested_at IS NOT NULL AS is_interrupted"""

_STILL_OURS = """
SELECT t.id, t.interrupt_requested_at IS NOT NULL AS is_interrupted
FROM turns t JOIN unnest(%(ids)s::uuid[], %(tokens)s::bigint[]) AS h (id, token)
  ON t.id = h.id AND t.fencing_token = h.token
WHERE t.status = 'running'"""

_IN_TOOL = "EXISTS (SELECT FROM tool_calls c WHERE c.turn_id = t.id AND c.status IN ('open', 'started'))"

# Nothing was being bought while an answer was pending: whoever carries the turn next fetches it.
_IN_CALL = f"(NOT {_IN_TOOL} AND pending IS NULL)"

# So may several at once have been, to the references whose drafts were out (records.drafts).
_DRAFTS = f"coalesce((remedies ->> '{OPEN}')::int, 0)"
_IN_FLIGHT = """CASE WHEN NOT in_call THEN 0 WHEN drafts = 0 THEN 1
      ELSE length(replace(drafts::bit(32)::text, '0', '')) END"""

# A model call that may have been in flight is booked with its outcome unknown. What it may have come to, its next owner
# will know (`Outcome.lost`). After a crash it counts as a failed attempt: the provider has seen it like the others.
_BOOKED = """booked AS (
  INSERT INTO model_calls (turn_id, fencing_token, position, iteration, provider, model, error)
  SELECT back.id, back.fencing_token - 1, back.position + asked.n, asked.iteration,
    split_part(asked.model, ':', 1), substr(asked.model, strpos(asked.model, ':') + 1), 'outcome_unknown'
  FROM back JOIN agents a ON a.id = back.agent_id, LATERAL (
    SELECT n, 0 AS iteration, model FROM json_array_elements_text(settings -> 'references') WITH ORDINALITY r (model, n)
    WHERE drafts >> (n - 1)::int & 1 = 1
    UNION ALL SELECT 1, back.iterations_used + 1, coalesce(
    CASE WHEN back.model_index > 0 THEN coalesce(settings -> 'fallbacks' ->> (back.model_index - 1),
      settings -> 'fallbacks' ->> -1) END, settings ->> 'model', 'unknown:unknown') WHERE drafts = 0) asked
  WHERE in_call
)"""

# Calls without a start-mark may be repeated, and will be. Should the turn end before that, this tells that they may have
# run: to say "not run" of them would be a lie.
_TOUCHED = """touched AS (
  UPDATE tool_calls c SET started_token = back.fencing_token - 1 FROM back
  WHERE back.in_tool AND c.turn_id = back.id AND c.status = 'open' AND c.effect <> 'once'
)"""

_HAND_BACK = f"""
WITH ours AS (
  SELECT id, {_IN_TOOL} AS in_tool, {_IN_CALL} AS in_call, {_DRAFTS} AS drafts FROM turns t
  WHERE id = %(id)s AND fencing_token = %(token)s AND status = 'running' FOR UPDATE
), back AS (
  UPDATE turns t SET status = 'queued', fencing_token = fencing_token + 1, worker = NULL, lease_expires_at = NULL,
    hand_back_at = NULL, dispatched_at = NULL, activity = NULL, activity_since = NULL, event_seq = event_seq + 1,
    unknown_attempts = unknown_attempts + {_IN_FLIGHT}
  FROM ours WHERE t.id = ours.id
  RETURNING t.id, t.event_seq, t.position, t.fencing_token, t.iterations_used, t.agent_id, t.model_index,
    ours.in_tool, ours.in_call, ours.drafts
), told AS (
  INSERT INTO events (turn_id, seq, type, payload)
  SELECT id, event_seq, 'turn.handed_back', json_build_object('in_step', true) FROM back
), {_BOOKED}, {_TOUCHED}
SELECT id FROM back"""

# One crash is counted for a turn that was alone in its process, and for one that was not in the middle of a tool call
# (its own answer may have killed the worker). One in mid-tool may have been a poison turn's neighbour: it becomes a
# suspect instead. So does one that is lost a second time without an answer between: whoever of these it is that kills
# its workers, the others are not convicted with it.
_TAKE_BACK = f"""
WITH dead AS (
  SELECT id, worker, is_suspect AS was_alone, {_IN_TOOL} AS in_tool, {_IN_CALL} AS in_call,
    {_DRAFTS} AS drafts
  FROM turns t
  WHERE status = 'running' AND {{rule}} ORDER BY id LIMIT %(limit)s FOR UPDATE SKIP LOCKED
), back AS (
  UPDATE turns t SET
    status = 'queued', fencing_token = fencing_token + 1, worker = NULL, lease_expires_at = NULL, hand_back_at = NULL,
    dispatched_at = NULL, activity = NULL, activity_since = NULL, event_seq = event_seq + 1,
    crash_count = crash_count + (was_alone OR NOT in_tool)::int,
    crash_streak = crash_streak + (was_alone OR NOT in_tool)::int,
    is_suspect = was_alone OR in_tool OR crash_streak > 0,
    attempts = attempts + (in_call AND drafts = 0)::int,
    unknown_attempts = unknown_attempts + {_IN_FLIGHT}
  FROM dead WHERE t.id = dead.id
  RETURNING t.id, t.queue, dead.worker, t.crash_count, t.is_suspect, t.event_seq, t.position, t.fencing_token,
    t.iterations_used, t.agent_id, t.model_index, dead.in_tool, dead.in_call, dead.drafts
), told AS (
  INSERT INTO events (turn_id, seq, type, payload)
  SELECT id, event_seq, 'turn.taken_back',
    json_build_object('worker', worker, 'crash_count', crash_count, 'is_suspect', is_suspect) FROM back
), {_BOOKED}, {_TOUCHED}
SELECT id, queue, worker, crash_count, is_suspect FROM back"""


def renew(database: Statements, held: Sequence[Held], *, lease: timedelta) -> dict[UUID, Signs]:
    """Extend the leases of all these turns in one statement. A turn that is missing from the answer is lost."""
    params = _params(held, lease)
    found = list(database.rows(_RENEW, params))
    if len(found) < len(held):  # the others are locked by their own checkpoint, or lost
        found += database.rows(_STILL_OURS, params)
    return {r["id"]: Signs(r["is_interrupted"]) for r in found}


def prove(database: Statements, held: Held, *, lease: timedelta) -> None:
    """Extend one lease now. Raises LeaseLost when the turn is not ours any more."""
    if not database.rows(_RENEW.replace(" SKIP LOCKED", ""), _params([held], lease)):
        raise LeaseLost(f"turn {held.turn_id} has another owner")


def _params(held: Sequence[Held], lease: timedelta) -> dict[str, Any]:
    return {
        "ids": [h.turn_id for h in held],
        "tokens": [h.fencing_token for h in held],
        "activities": [h.activity for h in held],
        "lease": lease,
    }


def hand_back(database: Statements, held: Held) -> bool:
    """Queue the turn again although its step has not ended. Counts no crash; the step's late write will be refused."""
    return bool(database.rows(_HAND_BACK, {"id": held.turn_id, "token": held.fencing_token}))


def take_back_expired(database: Statements, *, limit: int = 100) -> list[TakenBack]:
    """Queue the turns whose lease has run out. The one way back from a dead owner, and the only place that counts crashes."""
    return _take_back(database, "lease_expires_at < now()", limit, [])


def take_back_from(database: Statements, workers: Sequence[str], *, limit: int = 1000) -> list[TakenBack]:
    """Queue the turns of workers that are known to be dead, without waiting for their leases."""
    return _take_back(database, "worker = ANY (%(workers)s::text[])", limit, workers)


def owners(database: Statements) -> list[str]:
    """The workers that carry a turn just now, or have said that they may."""
    found = database.rows("SELECT worker FROM turns WHERE status = 'running' UNION SELECT id FROM workers")
    return [r["worker"] for r in found]


def _take_back(database: Statements, rule: str, limit: int, workers: Sequence[str]) -> list[TakenBack]:
    rows = database.rows(_TAKE_BACK.format(rule=rule), {"limit": limit, "workers": list(workers)})
    return [TakenBack(r["id"], r["queue"], r["worker"], r["crash_count"], r["is_suspect"]) for r in rows]
