"""Claim a turn and load it as its owner holds it; read one for people."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import timedelta
from functools import lru_cache
from types import MappingProxyType
from uuid import UUID

from psycopg.errors import UniqueViolation

from persistence.database import Database, Row
from persistence.errors import LeaseHeld, LeaseLost, NotFound
from persistence.records.agent import AgentSettings
from persistence.records.compression import Compression, Weight, shown
from persistence.records.message import CallStatus, Effect, Message, Origin, Role, content_from_json
from persistence.records.outcome import CallState, Counters
from persistence.records.spending import Spending
from persistence.records.status import ExitReason, TurnStatus
from persistence.records.turn import Turn
from persistence.records.usage import Usage

# A turn that never started waits for its session's live turn and for the older ones.
CLAIMABLE = """status = 'queued' AND (started_at IS NOT NULL OR NOT EXISTS (
    SELECT FROM turns o WHERE o.session_id = t.session_id AND o.id <> t.id AND o.exit_reason IS NULL
      AND (o.started_at IS NOT NULL OR (o.created_at, o.id) < (t.created_at, t.id))))"""

_CLAIM = f"""
WITH claimed AS (
  UPDATE turns t SET
    status = 'running', fencing_token = fencing_token + 1, worker = %(worker)s,
    lease_expires_at = now() + %(lease)s, hand_back_at = now() + %(slice)s,
    last_seq = CASE WHEN started_at IS NULL
      THEN 1 + coalesce((SELECT max(seq) FROM messages m WHERE m.session_id = t.session_id), 0) ELSE last_seq END,
    deadline = CASE WHEN started_at IS NULL AND deadline IS NULL
      THEN now() + (SELECT make_interval(secs => (settings ->> 'deadline_s')::float) FROM agents a WHERE a.id = t.agent_id)
      ELSE deadline END,
    started_at = coalesce(started_at, now()), event_seq = event_seq + 1
  WHERE id = %(id)s AND ({CLAIMABLE} OR %(again)s AND status = 'running' AND worker = %(worker)s)
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
SELECT fencing_token FROM claimed"""

# No `t.*`: a prepared statement fails for good once a migration has added a column, while old workers still run.
_ROW = """
SELECT t.id, t.session_id, t.tenant_id, t.queue, t.status, t.exit_reason, t.fencing_token, t.position, t.last_seq,
  t.inbox_n, t.resumes, t.crash_count, t.iterations_max, t.max_tokens_total, t.max_cost_usd, t.iterations_used,
  t.grace_used, t.attempts, t.last_error, t.retry_after_s, t.model_index, t.remedies, t.crash_streak, t.is_suspect,
  t.input_tokens, t.output_tokens, t.cache_read_tokens, t.cache_write_tokens, t.reasoning_tokens, t.cost_usd,
  t.unpriced_attempts, t.unknown_attempts, t.estimated_tokens, t.estimated_cost_usd,
  (SELECT count(*) FROM model_calls c WHERE c.turn_id = t.id AND c.error = 'outcome_unknown'
    AND c.estimated_tokens IS NULL) AS lost_attempts, extract(epoch FROM t.deadline - now())::float AS deadline_in_s,
  s.system_prompt, a.settings::text AS settings,
  t.interrupt_requested_at IS NOT NULL AS is_interrupted,
  coalesce(t.hand_back_at <= now(), false) AS is_slice_over, coalesce(t.deadline <= now(), false) AS is_past_deadline,
  coalesce((SELECT min(n) - 1 FROM inbox i WHERE i.turn_id = t.id AND i.state = 'new'), t.inbox_n) AS inbox_read
FROM turns t JOIN sessions s ON s.id = t.session_id JOIN agents a ON a.id = t.agent_id
WHERE t.id = %(id)s"""

_COMPRESSION = """
SELECT n, turn_id, from_seq, to_seq, summary FROM compressions WHERE session_id = %(session_id)s ORDER BY n DESC LIMIT 1"""

_MESSAGES = """
SELECT seq, turn_id, iteration, role, origin, content, wire FROM messages
WHERE session_id = %(session_id)s AND NOT seq BETWEEN %(from_seq)s AND %(to_seq)s ORDER BY seq"""

# An id is taken for good: the record of calls is kept by it, and a provider may see the call again after a fork.
_HIDDEN_CALLS = """
SELECT block ->> 'id' AS call_id FROM messages, json_array_elements(content) block
WHERE session_id = %(session_id)s AND seq BETWEEN %(from_seq)s AND %(to_seq)s AND role = 'assistant'
  AND block ->> 'type' = 'tool_call'"""

_ANSWERED = """
SELECT input_tokens + cache_read_tokens + cache_write_tokens AS tokens FROM model_calls
WHERE turn_id = %(turn_id)s AND iteration = %(iteration)s AND error IS NULL"""

_CALLS = """
SELECT call_id, n, name, effect, is_parallel, status, started_token, result FROM tool_calls
WHERE turn_id = %(id)s AND call_id = ANY (%(calls)s::text[]) ORDER BY n"""


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

    Raises LeaseHeld when the turn is not queued, is not its session's next, is a suspect and we are not alone, or has
    its files elsewhere;
    LeaseLost when it was taken from us before it was loaded.
    """
    params = {
        "id": turn_id,
        "worker": worker,
        "lease": lease,
        "slice": slice_,
        "alone": alone,
        "workspace": workspace_id,
        "again": again,
    }
    try:
        row = database.one_or_none(_CLAIM, params)
    except UniqueViolation as error:  # another turn of the session was claimed at the same instant
        raise LeaseHeld(f"turn {turn_id} waits for another turn of its session") from error
    if row is None:
        raise LeaseHeld(f"turn {turn_id} cannot be claimed now")
    turn = load(database, turn_id)
    if turn.fencing_token != row["fencing_token"]:  # we were frozen: what we look at is somebody else's by now
        raise LeaseLost(f"turn {turn_id} was taken away at once")
    return turn


def load(database: Database, turn_id: UUID) -> Turn:
    """The turn as it stands, whoever carries it. Raises NotFound."""
    row = database.one_or_none(_ROW, {"id": turn_id})
    if row is None:
        raise NotFound(f"there is no turn {turn_id}; `perdure list` shows those that exist")
    compression = _compression(database, row["session_id"])
    messages, hidden_call_ids = _seen(database, row["session_id"], compression)
    return Turn(
        id=row["id"],
        session_id=row["session_id"],
        tenant_id=row["tenant_id"],
        queue=row["queue"],
        agent=_agent(row["settings"]),
        system_prompt=row["system_prompt"] or "",
        status=TurnStatus(row["status"]),
        exit_reason=ExitReason(row["exit_reason"]) if row["exit_reason"] else None,
        fencing_token=row["fencing_token"],
        position=row["position"],
        counters=_counters(row),
        iterations_max=row["iterations_max"],
        max_tokens_total=row["max_tokens_total"],
        max_cost_usd=row["max_cost_usd"],
        usage=usage_of(row),
        last_seq=row["last_seq"],
        inbox_n=row["inbox_n"],
        inbox_read=row["inbox_read"],
        resumes=row["resumes"],
        is_interrupted=row["is_interrupted"],
        is_slice_over=row["is_slice_over"],
        is_past_deadline=row["is_past_deadline"],
        messages=shown(messages, row["remedies"]),
        calls=_open_calls(database, row["id"], messages),
        crash_count=row["crash_count"],
        claimed_position=row["position"],
        compression=compression,
        hidden_call_ids=hidden_call_ids,
        weight=_weight(database, messages),
        spending=spending_of(row),
        deadline_in_s=row["deadline_in_s"],
    )


def to_message(row: Row) -> Message:
    return Message(
        seq=row["seq"],
        turn_id=row["turn_id"],
        iteration=row["iteration"],
        role=Role(row["role"]),
        origin=Origin(row["origin"]),
        content=content_from_json(row["content"]),
        wire=row["wire"],
    )


def _compression(database: Database, session_id: UUID) -> Compression | None:
    row = database.one_or_none(_COMPRESSION, {"session_id": session_id})
    if row is None:
        return None
    return Compression.from_json(row["n"], row["turn_id"], row["from_seq"], row["to_seq"], row["summary"])


def _seen(
    database: Database, session_id: UUID, compression: Compression | None
) -> tuple[tuple[Message, ...], frozenset[str]]:
    """The messages as the model sees them, and the ids of the calls in those that it does not see."""
    if compression is None:
        rows = database.rows(_MESSAGES, {"session_id": session_id, "from_seq": 1, "to_seq": 0})
        return tuple(to_message(m) for m in rows), frozenset()
    params = {"session_id": session_id, "from_seq": compression.from_seq, "to_seq": compression.to_seq}
    messages = compression.applied_to(to_message(m) for m in database.rows(_MESSAGES, params))
    return messages, frozenset(r["call_id"] for r in database.rows(_HIDDEN_CALLS, params))


def _weight(database: Database, messages: Sequence[Message]) -> Weight | None:
    answer = next((m for m in reversed(messages) if m.role is Role.ASSISTANT), None)
    if answer is None:
        return None
    row = database.one_or_none(_ANSWERED, {"turn_id": answer.turn_id, "iteration": answer.iteration})
    return Weight(answer.seq - 1, row["tokens"]) if row and row["tokens"] is not None else None


def usage_of(row: Row) -> Usage:
    return Usage(
        input_tokens=row["input_tokens"],
        output_tokens=row["output_tokens"],
        cache_read_tokens=row["cache_read_tokens"],
        cache_write_tokens=row["cache_write_tokens"],
        reasoning_tokens=row["reasoning_tokens"],
    )


def spending_of(row: Row) -> Spending:
    return Spending(
        cost_usd=row["cost_usd"],
        unpriced_attempts=row["unpriced_attempts"],
        unknown_attempts=row["unknown_attempts"],
        estimated_tokens=row["estimated_tokens"],
        estimated_cost_usd=row["estimated_cost_usd"],
        lost_attempts=row.get("lost_attempts", 0),
    )


def _open_calls(database: Database, turn_id: UUID, messages: Sequence[Message]) -> tuple[CallState, ...]:
    """The calls of the newest assistant message that no message has answered yet."""
    newest = messages[-1] if messages else None
    if newest is None or newest.role is not Role.ASSISTANT or not newest.calls or newest.turn_id != turn_id:
        return ()
    rows = database.rows(_CALLS, {"id": turn_id, "calls": [c.id for c in newest.calls]})
    return tuple(
        CallState(
            call_id=r["call_id"],
            n=r["n"],
            name=r["name"],
            effect=Effect(r["effect"]),
            is_parallel=r["is_parallel"],
            status=CallStatus(r["status"]),
            started_token=r["started_token"],
            result=r["result"],
        )
        for r in rows
    )


def _counters(row: Row) -> Counters:
    return Counters(
        iterations_used=row["iterations_used"],
        grace_used=row["grace_used"],
        attempts=row["attempts"],
        last_error=row["last_error"],
        retry_after_s=row["retry_after_s"],
        model_index=row["model_index"],
        remedies=MappingProxyType(row["remedies"]),
        crash_streak=row["crash_streak"],
        is_suspect=row["is_suspect"],
    )


@lru_cache(maxsize=512)
def _agent(settings: str) -> AgentSettings:
    return AgentSettings.from_json(json.loads(settings))


def is_suspect(database: Database, turn_id: UUID) -> bool:
    """Whether the turn is queued and must be carried alone."""
    row = database.one_or_none("SELECT is_suspect, status FROM turns WHERE id = %(id)s", {"id": turn_id})
    return row is not None and row["is_suspect"] and row["status"] == TurnStatus.QUEUED
