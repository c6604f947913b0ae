"""Load a turn, as its owner holds it or as far as its end needs it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from types import MappingProxyType
from uuid import UUID

from persistence.database import Database, Row
from persistence.errors import NotFound
from persistence.records.agent import AgentSettings
from persistence.records.compression import Compression, Weight, shown
from persistence.records.message import (
    Block,
    CallStatus,
    Effect,
    Message,
    Origin,
    Role,
    content_for_reading,
    content_from_json,
)
from persistence.records.outcome import CallState, Counters
from persistence.records.pending import Pending
from persistence.records.spending import Spending
from persistence.records.status import ExitReason, TurnStatus
from persistence.records.turn import Turn
from persistence.records.usage import Usage

# No `t.*`: a prepared statement fails for good once a migration has added a column, while old workers still run.
_ROW = """
SELECT t.id, t.session_id, t.tenant_id, t.queue, t.batch_id, t.status, t.exit_reason, t.fencing_token, t.position, t.last_seq,
  t.inbox_n, t.resumes, t.crash_count, t.max_crashes, t.iterations_max, t.max_tokens_total, t.max_cost_usd, t.iterations_used,
  t.grace_used, t.attempts, t.last_error, t.retry_after_s, t.model_index, t.remedies, t.crash_streak, t.is_suspect,
  t.input_tokens, t.output_tokens, t.cache_read_tokens, t.cache_write_tokens, t.reasoning_tokens, t.cost_usd,
  t.unpriced_attempts, t.unknown_attempts, t.estimated_tokens, t.estimated_cost_usd, t.pending,
  extract(epoch FROM now() - t.pending_since)::float AS pending_age_s,
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

# The same without a look at the messages: all calls of the iteration in which some wait for their own answer or a
# sibling's.
_LEFT_CALLS = """
SELECT call_id, n, name, effect, is_parallel, status, started_token, result FROM tool_calls
WHERE turn_id = %(id)s AND iteration = (SELECT max(iteration) FROM tool_calls
  WHERE turn_id = %(id)s AND (status IN ('open', 'started') OR result IS NOT NULL)) ORDER BY n"""

_NEWEST = """
SELECT seq, turn_id, iteration, role, origin, content, wire FROM messages
WHERE session_id = %(session_id)s AND turn_id = %(id)s ORDER BY seq DESC LIMIT 1"""

# Stand for settings, and for a pending answer, that cannot be read: nothing is asked of a model in their name.
_UNREADABLE = AgentSettings("unreadable", "unreadable:unreadable")
_UNREADABLE_ANSWER = Pending("unreadable", "unreadable", "unreadable", 0)


def load(database: Database, turn_id: UUID) -> Turn:
    """The turn as it stands, whoever carries it. Raises NotFound; what cannot be read is no StoreError."""
    row = _row(database, turn_id)
    compression = compression_of(database, row["session_id"])
    messages, hidden_call_ids = _seen(database, row["session_id"], compression)
    turn = replace(
        _to_turn(row, _agent(row["settings"]), _pending(row)),
        messages=shown(messages, row["remedies"]),
        calls=_open_calls(database, row["id"], messages),
        compression=compression,
        hidden_call_ids=hidden_call_ids,
        weight=_weight(database, messages),
    )
    pending = turn.counters.pending
    if pending is not None and pending.iteration != turn.iteration + 1:
        # Passed over by a worker of an older version, which knew of no such thing and bought that answer anew.
        return replace(turn, counters=replace(turn.counters, pending=None), pending_age_s=None)
    return turn


def outline(database: Database, turn_id: UUID) -> Turn:
    """The turn without its history, nor settings and a pending answer that cannot be read: enough to end it. Raises NotFound.

    Of its messages only the newest is there, and that only as an answer of the model: it may be the final one.
    """
    row = _row(database, turn_id)
    newest = _newest_answer(database, row)
    messages = () if newest is None else (newest,)
    calls = tuple(_to_call(r) for r in database.rows(_LEFT_CALLS, {"id": turn_id}))
    return replace(
        _to_turn(row, _agent_or_none(row["settings"]) or _UNREADABLE, _pending_or_unreadable(row)),
        messages=messages,
        calls=calls,
        weight=_weight(database, messages),
    )


def _row(database: Database, turn_id: UUID) -> Row:
    row = database.one_or_none(_ROW, {"id": turn_id})
    if row is None:
        raise NotFound(f"there is no turn {turn_id}; `perdure list` shows those that exist")
    return row


def _to_turn(row: Row, agent: AgentSettings, pending: Pending | None) -> Turn:
    """What the row says; the history is the caller's to add."""
    return Turn(
        id=row["id"],
        session_id=row["session_id"],
        tenant_id=row["tenant_id"],
        queue=row["queue"],
        agent=agent,
        system_prompt=row["system_prompt"] or "",
        status=TurnStatus(row["status"]),
        exit_reason=ExitReason(row["exit_reason"]) if row["exit_reason"] else None,
        fencing_token=row["fencing_token"],
        position=row["position"],
        counters=_counters(row, pending),
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
        messages=(),
        calls=(),
        crash_count=row["crash_count"],
        max_crashes=row["max_crashes"],
        claimed_position=row["position"],
        spending=spending_of(row),
        deadline_in_s=row["deadline_in_s"],
        pending_age_s=row["pending_age_s"],
        batch_id=row["batch_id"],
    )


def _newest_answer(database: Database, row: Row) -> Message | None:
    """The newest message of the turn, if it is an answer of the model."""
    found = database.one_or_none(_NEWEST, {"session_id": row["session_id"], "id": row["id"]})
    if found is None or found["role"] != Role.ASSISTANT:
        return None
    try:
        return to_message(found)
    except Exception:  # noqa: BLE001 (whatever is wrong with it must not keep the turn from its end)
        return Message(found["seq"], row["id"], found["iteration"], Role.USER, Origin.NOTICE, ())


def to_message(row: Row) -> Message:
    """Raises ValueError, or what else a block raises that this version cannot read."""
    return _to_message(row, content_from_json(row["content"]))


def to_message_for_reading(row: Row) -> Message:
    """The same, with blocks that cannot be read as they are stored."""
    return _to_message(row, content_for_reading(row["content"]))


def _to_message(row: Row, content: tuple[Block, ...]) -> Message:
    return Message(
        seq=row["seq"],
        turn_id=row["turn_id"],
        iteration=row["iteration"],
        role=Role(row["role"]),
        origin=Origin(row["origin"]),
        content=content,
        wire=row["wire"],
    )


def compression_of(database: Database, session_id: UUID) -> Compression | None:
    """The newest of a session, if it has any."""
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
    return tuple(_to_call(r) for r in rows)


def _to_call(row: Row) -> CallState:
    return CallState(
        call_id=row["call_id"],
        n=row["n"],
        name=row["name"],
        effect=Effect(row["effect"]),
        is_parallel=row["is_parallel"],
        status=CallStatus(row["status"]),
        started_token=row["started_token"],
        result=row["result"],
    )


def _counters(row: Row, pending: Pending | None) -> Counters:
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
        pending=pending,
    )


def _pending(row: Row) -> Pending | None:
    return None if row["pending"] is None else Pending.from_json(row["pending"])


def _pending_or_unreadable(row: Row) -> Pending | None:
    try:
        return _pending(row)
    except Exception:  # noqa: BLE001 (as above)
        return _UNREADABLE_ANSWER


@lru_cache(maxsize=512)
def _agent(settings: str) -> AgentSettings:
    return AgentSettings.from_json(json.loads(settings))


def _agent_or_none(settings: str) -> AgentSettings | None:
    try:
        return _agent(settings)
    except Exception:  # noqa: BLE001 (as above)
        return None
