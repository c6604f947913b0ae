"""The text of a checkpoint: the parts that an outcome needs, as the CTEs of one statement.

Their order: `pending` locks the inbox rows to take; `held` moves the turn's row, and its WHERE is the fence; everything
else is inserted or updated *from* `held`, so a stale owner writes nothing at all. The lease's time is not looked at:
while nobody took the turn, its owner may write, so a database outage loses no paid answer.

Rows travel as one JSON parameter a table: a statement has the same text whatever their number, so it stays prepared, and
a value of type json is stored as the very bytes that stand in the parameter.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from persistence.records.outcome import Outcome

_HELD = """held AS (
  UPDATE turns SET
    position = position + 1,
    event_seq = event_seq + %(events_n)s{plus_told},
    last_seq = last_seq + %(messages_n)s{plus_taken},
    iterations_used = %(iterations_used)s, grace_used = %(grace_used)s, attempts = %(attempts)s,
    last_error = %(last_error)s, retry_after_s = %(retry_after_s)s, model_index = %(model_index)s,
    remedies = %(remedies)s::json, crash_streak = %(crash_streak)s, is_suspect = %(is_suspect)s,
    pending = %(pending)s::json,
    pending_since = CASE WHEN %(pending)s::json IS NOT NULL THEN coalesce(pending_since, now()) END{spent},
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

# In one JSON parameter, because psycopg gives a number a type by its size: as parameters of their own, token counts would
# make a dozen statements out of one, none of them prepared for long.
_SPENT = """,
    input_tokens = input_tokens + (%(spent)s::json ->> 'input')::bigint,
    output_tokens = output_tokens + (%(spent)s::json ->> 'output')::bigint,
    cache_read_tokens = cache_read_tokens + (%(spent)s::json ->> 'cache_read')::bigint,
    cache_write_tokens = cache_write_tokens + (%(spent)s::json ->> 'cache_write')::bigint,
    reasoning_tokens = reasoning_tokens + (%(spent)s::json ->> 'reasoning')::bigint,
    unpriced_attempts = unpriced_attempts + (%(spent)s::json ->> 'unpriced')::int,
    unknown_attempts = unknown_attempts + (%(spent)s::json ->> 'unknown')::int,
    estimated_tokens = estimated_tokens + (%(spent)s::json ->> 'estimated_tokens')::bigint,
    cost_usd = CASE WHEN %(spent)s::json ->> 'cost' IS NULL THEN cost_usd
      ELSE coalesce(cost_usd, 0) + (%(spent)s::json ->> 'cost')::numeric END,
    estimated_cost_usd = CASE WHEN %(spent)s::json ->> 'estimated_cost' IS NULL THEN estimated_cost_usd
      ELSE coalesce(estimated_cost_usd, 0) + (%(spent)s::json ->> 'estimated_cost')::numeric END"""

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
    m.content, m.wire
  FROM held, ROWS FROM (json_to_recordset(%(messages)s::json)
    AS (iteration int, role text, origin text, content json, wire json)) WITH ORDINALITY
    AS m (iteration, role, origin, content, wire, k)
)"""

_EVENTS = """new_events AS (
  INSERT INTO events (turn_id, seq, type, payload)
  SELECT held.id, held.event_seq - %(events_n)s + e.k, e.type, e.payload
  FROM held, ROWS FROM (json_to_recordset(%(events)s::json) AS (type text, payload json)) WITH ORDINALITY
    AS e (type, payload, k)
)"""

_OPENED = """opened AS (
  INSERT INTO tool_calls (turn_id, call_id, iteration, n, name, effect, is_parallel, status, result)
  SELECT held.id, c.call_id, %(iteration)s, c.n, c.name, c.effect, c.is_parallel, c.status, c.result
  FROM held, json_to_recordset(%(opened)s::json)
    AS c (call_id text, n int, name text, effect text, is_parallel bool, status text, result text)
)"""

_STARTED = """started AS (
  UPDATE tool_calls SET status = 'started', started_token = %(token)s FROM held
  WHERE tool_calls.turn_id = held.id AND tool_calls.call_id = ANY (%(started)s::text[])
)"""

_CLOSED = """closed AS (
  UPDATE tool_calls SET status = c.status, duration_s = coalesce(c.duration_s, tool_calls.duration_s), result = c.result
  FROM held, json_to_recordset(%(closed)s::json) AS c (call_id text, status text, duration_s float, result text)
  WHERE tool_calls.turn_id = held.id AND tool_calls.call_id = c.call_id
)"""

_MODEL_CALL = """model_call AS (
  INSERT INTO model_calls (turn_id, fencing_token, position, iteration, provider, model, error, input_tokens,
    output_tokens, cache_read_tokens, cache_write_tokens, reasoning_tokens, cost_usd, latency_s, request_id,
    estimated_tokens, key_label)
  SELECT held.id, %(token)s, held.position, m.iteration, m.provider, m.model, m.error, m.input, m.output, m.cache_read,
    m.cache_write, m.reasoning, m.cost, m.latency_s, m.request_id, m.estimated_tokens, m.key_label
  FROM held, json_to_record(%(model_call)s::json)
    AS m (iteration int, provider text, model text, error text, input bigint, output bigint, cache_read bigint,
      cache_write bigint, reasoning bigint, cost numeric, latency_s float, request_id text, estimated_tokens bigint,
      key_label text)
)"""

# Attempts whose owner was lost in the middle of them: whoever carries the turn next knows what was asked, and its price.
_LOST = """lost AS (
  UPDATE model_calls SET estimated_tokens = e.estimated_tokens, cost_usd = e.cost
  FROM held, json_to_record(%(lost)s::json) AS e (estimated_tokens bigint, cost numeric)
  WHERE model_calls.turn_id = held.id AND error = 'outcome_unknown' AND model_calls.estimated_tokens IS NULL
)"""

_COMPRESSION = """compression AS (
  INSERT INTO compressions (session_id, n, turn_id, from_seq, to_seq, summary)
  SELECT held.session_id, c.n, held.id, c.from_seq, c.to_seq, c.summary
  FROM held, json_to_record(%(compression)s::json) AS c (n int, from_seq bigint, to_seq bigint, summary json)
)"""

# Whoever ended the turn has the first go at the delivery; the sender comes after it.
_DELIVERY = """delivery AS (
  INSERT INTO deliveries (turn_id, resumes, kind, next_at) SELECT held.id, held.resumes, 'celery_result', now() + interval '2 seconds' FROM held
)"""

_NEWS = """
SELECT position, last_seq, inbox_n, is_interrupted, is_slice_over, is_past_deadline, {taken} AS taken FROM held"""


@dataclass(frozen=True, slots=True)
class Shape:
    """Which parts a statement has. There are few that come often, so each is put together once."""

    takes_inbox: bool
    ends: bool
    waits: bool
    hands_back: bool
    messages: bool
    opened: bool
    started: bool
    closed: bool
    model_call: bool
    lost: bool
    compression: bool
    events: bool

    @classmethod
    def of(cls, outcome: Outcome) -> Shape:
        return cls(
            outcome.takes_inbox,
            outcome.ending is not None,
            outcome.wait is not None,
            outcome.hands_back,
            bool(outcome.messages),
            bool(outcome.opened),
            bool(outcome.started),
            bool(outcome.closed),
            outcome.model_call is not None,
            outcome.lost is not None,
            outcome.compression is not None,
            bool(outcome.events),
        )


@lru_cache(maxsize=256)
def statement(shape: Shape) -> str:
    """The statement, with the parameters that `persistence.checkpoint` gives it."""
    takes, settles = shape.takes_inbox, shape.takes_inbox or shape.ends
    move = _END if shape.ends else _WAIT if shape.waits else _HAND_BACK if shape.hands_back else _STAY
    pending = "(SELECT count(*) FROM pending)"
    held = _HELD.format(
        plus_told=f" + {pending}" if settles else "",
        plus_taken=f" + {pending}" if takes else "",
        spent=_SPENT if shape.model_call or shape.lost else "",
        move=move,
        inbox_fence=" AND inbox_n = %(inbox_n)s" if settles or shape.waits else "",
    )
    parts = (
        (settles, _PENDING),
        (True, held),
        (settles, _NUMBERED),
        (settles, _TOLD),
        (takes, _TAKEN),
        (shape.messages, _MESSAGES.format(minus_taken=f" - {pending}" if takes else "")),
        (shape.opened, _OPENED),
        (shape.started, _STARTED),
        (shape.closed, _CLOSED),
        (shape.model_call, _MODEL_CALL),
        (shape.lost, _LOST),
        (shape.compression, _COMPRESSION),
        (shape.events, _EVENTS),
        (shape.ends, _DELIVERY),
    )
    taken = "(SELECT json_agg(json_build_array(seq, content) ORDER BY seq) FROM taken)" if takes else "NULL::json"
    return "WITH " + ",\n".join(sql for wanted, sql in parts if wanted) + _NEWS.format(taken=taken)
