"""The checkpoint: one data-modifying statement, one round trip, one commit.

Its parts are CTEs, in this order: `pending` locks the inbox rows to take; `held` moves the turn's row, and its WHERE is
the fence; everything else is inserted or updated *from* `held`, so a stale owner writes nothing at all. The lease's time
is not looked at: while nobody took the turn, its owner may write, so a database outage loses no paid answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from persistence.database import Database, Row
from persistence.errors import InboxGrew, LeaseLost
from persistence.records.message import Message, Origin, Role, content_from_json, content_to_json, dumps
from persistence.records.turn import News, Outcome, Turn
from persistence.records.usage import Usage

Params = dict[str, Any]

_HELD = """held AS (
  UPDATE turns SET
    position = position + 1,
    event_seq = event_seq + %(events_n)s{plus_told},
    last_seq = last_seq + %(messages_n)s{plus_taken},
    iterations_used = %(iterations_used)s, grace_used = %(grace_used)s, attempts = %(attempts)s,
    last_error = %(last_error)s, retry_after_s = %(retry_after_s)s, model_index = %(model_index)s,
    remedies = %(remedies)s::json, crash_streak = %(crash_streak)s, is_suspect = %(is_suspect)s{usage},
    {move}
  WHERE id = %(id)s AND fencing_token = %(token)s AND position = %(position)s AND status = %(status)s{inbox_fence}
  RETURNING id, session_id, position, event_seq, last_seq, resumes, inbox_n, fencing_token,
    interrupt_requested_at IS NOT NULL AS is_interrupted, coalesce(hand_back_at <= now(), false) AS is_slice_over,
    coalesce(deadline <= now(), false) AS is_past_deadline
)"""

_STAY = "lease_expires_at = now() + %(lease)s"
_LEAVE = "lease_expires_at = NULL, worker = NULL, hand_back_at = NULL, activity = NULL, activity_since = NULL"
_END = (
    _LEAVE + ", status = %(new_status)s, exit_reason = %(exit_reason)s, result = %(result)s::json, ended_at = now(),"
    " waiting_for = NULL, resume_at = NULL, fencing_token = fencing_token + %(foreign)s"
)
_WAIT = (
    _LEAVE + ", status = 'waiting', waiting_for = %(waiting_for)s, fencing_token = fencing_token + 1, resume_at ="
    " CASE WHEN %(resume_in)s::interval IS NOT NULL THEN least(now() + %(resume_in)s::interval, deadline) END"
)
_HAND_BACK = _LEAVE + ", status = 'queued', dispatched_at = NULL, fencing_token = fencing_token + 1"

_USAGE = """,
    input_tokens = input_tokens + %(used_input)s, output_tokens = output_tokens + %(used_output)s,
    cache_read_tokens = cache_read_tokens + %(used_cache_read)s,
    cache_write_tokens = cache_write_tokens + %(used_cache_write)s,
    reasoning_tokens = reasoning_tokens + %(used_reasoning)s, unknown_attempts = unknown_attempts + %(used_unknown)s"""

_PENDING = """pending AS MATERIALIZED (
  SELECT n, payload FROM inbox WHERE turn_id = %(id)s AND state = 'new' AND kind = 'steer' ORDER BY n FOR UPDATE
)"""

_NUMBERED = (
    """numbered AS (SELECT n, payload, row_number() OVER (ORDER BY n) AS k, count(*) OVER () AS total FROM pending)"""
)

_TAKEN = """taken AS (
  INSERT INTO messages (session_id, seq, turn_id, iteration, role, origin, content)
  SELECT held.session_id, held.last_seq - total + k, held.id, %(iteration)s, 'user', 'steer',
    json_build_array(json_build_object('type', 'text', 'text', payload ->> 'text'))
  FROM held, numbered RETURNING seq, content
)"""

# Before the statement's own events: whatever became of the inbox, `turn.ended` is the last that a client reads.
_TOLD = """settled AS (
  UPDATE inbox SET state = %(inbox_state)s FROM held, pending WHERE inbox.turn_id = held.id AND inbox.n = pending.n
), told AS (
  INSERT INTO events (turn_id, seq, type, payload)
  SELECT held.id, held.event_seq - %(events_n)s - total + k, 'steer.' || %(inbox_state)s, json_build_object('n', n)
  FROM held, numbered
)"""

_MESSAGES = """new_messages AS (
  INSERT INTO messages (session_id, seq, turn_id, iteration, role, origin, content, wire)
  SELECT held.session_id, held.last_seq{minus_taken} - %(messages_n)s + m.k, held.id, m.iteration, m.role, m.origin,
    m.content::json, m.wire::json
  FROM held, unnest(%(m_iteration)s::int[], %(m_role)s::text[], %(m_origin)s::text[], %(m_content)s::text[],
    %(m_wire)s::text[]) WITH ORDINALITY AS m (iteration, role, origin, content, wire, k)
)"""

_EVENTS = """new_events AS (
  INSERT INTO events (turn_id, seq, type, payload)
  SELECT held.id, held.event_seq - %(events_n)s + e.k, e.type, e.payload::json
  FROM held, unnest(%(e_type)s::text[], %(e_payload)s::text[]) WITH ORDINALITY AS e (type, payload, k)
)"""

_OPENED = """opened AS (
  INSERT INTO tool_calls (turn_id, call_id, iteration, n, name, effect, is_parallel, status, result)
  SELECT held.id, c.call_id, %(iteration)s, c.n, c.name, c.effect, c.is_parallel, c.status, c.result
  FROM held, unnest(%(o_call)s::text[], %(o_n)s::int[], %(o_name)s::text[], %(o_effect)s::text[],
    %(o_parallel)s::bool[], %(o_status)s::text[], %(o_result)s::text[])
    AS c (call_id, n, name, effect, is_parallel, status, result)
)"""

_STARTED = """started AS (
  UPDATE tool_calls SET status = 'started', started_token = %(token)s FROM held
  WHERE tool_calls.turn_id = held.id AND tool_calls.call_id = ANY (%(s_call)s::text[])
)"""

_CLOSED = """closed AS (
  UPDATE tool_calls SET status = c.status, duration_s = coalesce(c.duration_s, tool_calls.duration_s), result = c.result
  FROM held, unnest(%(c_call)s::text[], %(c_status)s::text[], %(c_duration)s::float[], %(c_result)s::text[])
    AS c (call_id, status, duration_s, result)
  WHERE tool_calls.turn_id = held.id AND tool_calls.call_id = c.call_id
)"""

_MODEL_CALL = """model_call AS (
  INSERT INTO model_calls (turn_id, fencing_token, position, iteration, provider, model, error, input_tokens,
    output_tokens, cache_read_tokens, cache_write_tokens, reasoning_tokens, latency_s, request_id)
  SELECT held.id, %(token)s, held.position, %(mc_iteration)s, %(mc_provider)s, %(mc_model)s, %(mc_error)s::text,
    %(mc_input)s::bigint, %(mc_output)s::bigint, %(mc_cache_read)s::bigint, %(mc_cache_write)s::bigint, %(mc_reasoning)s::bigint, %(mc_latency)s::float, %(mc_request)s::text
  FROM held
)"""

# Whoever ended the turn has the first go at the delivery; the sender comes after it.
_DELIVERY = """delivery AS (
  INSERT INTO deliveries (turn_id, resumes, kind, next_at) SELECT held.id, held.resumes, 'celery_result', now() + interval '2 seconds' FROM held
)"""


def store(database: Database, turn: Turn, outcome: Outcome, *, lease: timedelta, foreign: bool = False) -> News:
    """Make `outcome` durable, or write nothing.

    May be called again with the same arguments after DatabaseUnavailable: a commit whose answer was lost is recognised
    by the position. `foreign` is an ending written by somebody who does not carry the turn (status as in `turn`).

    Raises LeaseLost when the turn is no longer ours, InboxGrew when an ending or a wait did not know of something that
    arrived, DatabaseUnavailable when it is unknown whether the statement was committed.
    """
    row = database.one_or_none(_statement(outcome), _params(turn, outcome, lease, foreign))
    if row is None:
        row = _reread(database, turn)
    return News(
        position=row["position"],
        last_seq=row["last_seq"],
        inbox_n=row["inbox_n"],
        is_interrupted=row["is_interrupted"],
        is_slice_over=row["is_slice_over"],
        is_past_deadline=row["is_past_deadline"],
        taken=tuple(_steer(turn, seq, content) for seq, content in row["taken"] or ()),
    )


def _statement(outcome: Outcome) -> str:
    takes, ends = outcome.takes_inbox, outcome.ending is not None
    settles = takes or ends
    move = _END if ends else _WAIT if outcome.wait else _HAND_BACK if outcome.hands_back else _STAY
    pending = "(SELECT count(*) FROM pending)"
    parts = (
        (settles, _PENDING),
        (
            True,
            _HELD.format(
                plus_told=f" + {pending}" if settles else "",
                plus_taken=f" + {pending}" if takes else "",
                usage=_USAGE if outcome.model_call else "",
                move=move,
                inbox_fence=" AND inbox_n = %(inbox_n)s" if settles or outcome.wait else "",
            ),
        ),
        (settles, _NUMBERED),
        (settles, _TOLD),
        (takes, _TAKEN),
        (outcome.messages, _MESSAGES.format(minus_taken=f" - {pending}" if takes else "")),
        (outcome.opened, _OPENED),
        (outcome.started, _STARTED),
        (outcome.closed, _CLOSED),
        (outcome.model_call, _MODEL_CALL),
        (outcome.events, _EVENTS),
        (ends, _DELIVERY),
    )
    taken = "(SELECT json_agg(json_build_array(seq, content) ORDER BY seq) FROM taken)" if takes else "NULL::json"
    return "WITH " + ",\n".join(sql for wanted, sql in parts if wanted) + f"\nSELECT held.*, {taken} AS taken FROM held"


def _params(turn: Turn, outcome: Outcome, lease: timedelta, foreign: bool) -> Params:
    counters = outcome.counters
    params: Params = {
        "id": turn.id,
        "token": turn.fencing_token,
        "position": turn.position,
        "status": turn.status.value,
        "inbox_n": turn.inbox_n,
        "iteration": outcome.messages[-1].iteration if outcome.messages else turn.iteration,
        "lease": lease,
        "inbox_state": "not_delivered" if outcome.ending else "applied",
        "foreign": int(foreign),
        "messages_n": len(outcome.messages),
        "events_n": len(outcome.events),
        "iterations_used": counters.iterations_used,
        "grace_used": counters.grace_used,
        "attempts": counters.attempts,
        "last_error": counters.last_error,
        "retry_after_s": counters.retry_after_s,
        "model_index": counters.model_index,
        "remedies": dumps(dict(counters.remedies)),
        "crash_streak": counters.crash_streak,
        "is_suspect": counters.is_suspect,
    }
    params |= _message_params(outcome) | _call_params(outcome) | _model_call_params(outcome)
    if outcome.ending is not None:
        ending = outcome.ending
        params |= {
            "new_status": ending.exit_reason.status.value,
            "exit_reason": ending.exit_reason.value,
            "result": dumps({"output_text": ending.output_text, "message": ending.message}),
        }
    if outcome.wait is not None:
        wait_s = outcome.wait.resume_in_s
        params |= {
            "waiting_for": outcome.wait.waiting_for.value,
            "resume_in": None if wait_s is None else timedelta(seconds=wait_s),
        }
    return params


def _message_params(outcome: Outcome) -> Params:
    return {
        "m_iteration": [m.iteration for m in outcome.messages],
        "m_role": [m.role.value for m in outcome.messages],
        "m_origin": [m.origin.value for m in outcome.messages],
        "m_content": [content_to_json(m.content) for m in outcome.messages],
        "m_wire": [None if m.wire is None else dumps(m.wire) for m in outcome.messages],
        "e_type": [e.type for e in outcome.events],
        "e_payload": [dumps(dict(e.payload)) for e in outcome.events],
    }


def _call_params(outcome: Outcome) -> Params:
    return {
        "o_call": [c.call_id for c in outcome.opened],
        "o_n": [c.n for c in outcome.opened],
        "o_name": [c.name for c in outcome.opened],
        "o_effect": [c.effect.value for c in outcome.opened],
        "o_parallel": [c.is_parallel for c in outcome.opened],
        "o_result": [c.result for c in outcome.opened],
        "o_status": [c.status.value for c in outcome.opened],
        "s_call": list(outcome.started),
        "c_call": [c.call_id for c in outcome.closed],
        "c_status": [c.status.value for c in outcome.closed],
        "c_duration": [c.duration_s for c in outcome.closed],
        "c_result": [c.result for c in outcome.closed],
    }


def _model_call_params(outcome: Outcome) -> Params:
    call = outcome.model_call
    if call is None:
        return {}
    usage = call.usage or Usage()
    kinds = {
        "input": usage.input_tokens,
        "output": usage.output_tokens,
        "cache_read": usage.cache_read_tokens,
        "cache_write": usage.cache_write_tokens,
        "reasoning": usage.reasoning_tokens,
    }
    return {
        **{f"used_{kind}": n for kind, n in kinds.items()},
        "used_unknown": int(call.usage is None),
        **{f"mc_{kind}": None if call.usage is None else n for kind, n in kinds.items()},
        "mc_iteration": call.iteration,
        "mc_provider": call.provider,
        "mc_model": call.model,
        "mc_error": call.error,
        "mc_latency": call.latency_s,
        "mc_request": call.request_id,
    }


_REREAD = """
SELECT position, last_seq, inbox_n, fencing_token, status, interrupt_requested_at IS NOT NULL AS is_interrupted,
  coalesce(hand_back_at <= now(), false) AS is_slice_over, coalesce(deadline <= now(), false) AS is_past_deadline,
  (SELECT json_agg(json_build_array(seq, content) ORDER BY seq) FROM messages
    WHERE session_id = turns.session_id AND turn_id = turns.id AND seq > %(last_seq)s AND origin = 'steer') AS taken
FROM turns WHERE id = %(id)s"""


def _reread(database: Database, turn: Turn) -> Row:
    """Why the statement matched nothing: it had been committed, the inbox has grown, or the turn is not ours any more."""
    row = database.one_or_none(_REREAD, {"id": turn.id, "last_seq": turn.last_seq})
    if row is None or row["fencing_token"] != turn.fencing_token:
        raise LeaseLost(f"turn {turn.id} has another owner")
    if row["position"] == turn.position + 1:
        return row
    if row["position"] == turn.position and row["status"] == turn.status and row["inbox_n"] != turn.inbox_n:
        raise InboxGrew(row["inbox_n"])
    raise LeaseLost(f"turn {turn.id} has moved on without us")


def _steer(turn: Turn, seq: int, content: list[Mapping[str, Any]]) -> Message:
    return Message(
        seq=seq,
        turn_id=turn.id,
        iteration=turn.iteration,
        role=Role.USER,
        origin=Origin.STEER,
        content=content_from_json([dict(block) for block in content]),
    )
