"""Turns and histories for people and programs that only read. The JSON shapes are public (README)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

from persistence.database import Database, Row
from persistence.errors import NotFound
from persistence.records import parts
from persistence.records.compression import Compression
from persistence.records.message import Message
from persistence.records.spending import Spending
from persistence.records.status import ExitReason, TurnStatus
from persistence.records.usage import Usage
from persistence.turns import compression_of, spending_of, to_message_for_reading, usage_of


@dataclass(frozen=True, slots=True)
class TurnView:
    """A turn as `show` and `list` give it. `message` is the sentence of its ending, where it needs one."""

    turn_id: UUID
    session_id: UUID
    agent: str
    status: TurnStatus
    exit_reason: ExitReason | None
    activity: str | None
    output_text: str | None
    message: str | None
    iterations_used: int
    iterations_max: int
    grace_used: bool
    usage: Usage
    spending: Spending
    crash_count: int
    fencing_token: int
    waiting_for: str | None
    batch_id: UUID | None
    custom_id: str | None
    parent_turn_id: UUID | None
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    resumes: int
    worker: str | None

    def spent_as_json(self) -> dict[str, Any]:
        return spent_as_json(self.usage, self.spending)


def spent_as_json(usage: Usage, spending: Spending) -> dict[str, Any]:
    """What was used and what that costs, in the words of the public JSON. A cost that is not known is null."""
    return {
        "usage": {
            "input_tokens": usage.input_tokens,
            "output_tokens": usage.output_tokens,
            "cache_read_tokens": usage.cache_read_tokens,
            "cache_write_tokens": usage.cache_write_tokens,
            "reasoning_tokens": usage.reasoning_tokens,
            "unknown_attempts": spending.unknown_attempts,
            "unpriced_attempts": spending.unpriced_attempts,
            "estimated_tokens": spending.estimated_tokens,
        },
        "cost_usd": _number(spending.total_usd),
        "known_cost_usd": _number(spending.cost_usd),
        "estimated_cost_usd": _number(spending.estimated_cost_usd),
    }


def _number(dollars: Decimal | None) -> float | None:
    return None if dollars is None else float(dollars)


@dataclass(frozen=True, slots=True)
class MessageView:
    """A stored message; `is_compressed` when the model sees a summary in its place, `open_calls` its unanswered calls.

    `parts` are the numbers of the messages that it was joined from, where an answer came in several.
    """

    message: Message
    is_compressed: bool
    open_calls: frozenset[str]
    parts: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class WorkerView:
    """A worker process that is taken to be alive: it has been heard of, `silent_s` ago, within the last 15 seconds."""

    name: str
    host: str
    pid: int
    queues: tuple[str, ...]
    slots: int
    busy: int
    silent_s: float = 0.0


# What the turn does just now follows from its history: it thinks while a model answer is due, it acts while calls are open.
_VIEW = """
SELECT t.id, t.session_id, a.name AS agent, t.status, t.exit_reason, t.result, t.iterations_used, t.iterations_max,
  t.grace_used, t.input_tokens, t.output_tokens, t.cache_read_tokens, t.cache_write_tokens, t.reasoning_tokens,
  t.cost_usd, t.unpriced_attempts, t.unknown_attempts, t.estimated_tokens, t.estimated_cost_usd, t.crash_count, t.fencing_token, t.waiting_for, t.batch_id, t.custom_id, t.parent_turn_id,
  t.created_at, t.started_at, t.ended_at, t.resumes, t.worker,
  CASE WHEN t.status <> 'running' THEN NULL
    WHEN EXISTS (SELECT FROM tool_calls c WHERE c.turn_id = t.id AND c.status IN ('open', 'started')) THEN 'acting'
    ELSE coalesce(t.activity, 'thinking') END AS activity
FROM turns t JOIN agents a ON a.id = t.agent_id
"""


def turn(database: Database, turn_id: UUID) -> TurnView:
    """Raises NotFound."""
    row = database.one_or_none(_VIEW + "WHERE t.id = %(id)s", {"id": turn_id})
    if row is None:
        raise NotFound(f"there is no turn {turn_id}; `perdure list` shows those that exist")
    return _to_view(row)


def turns(
    database: Database,
    *,
    status: str | None = None,
    session_id: UUID | None = None,
    batch_id: UUID | None = None,
    limit: int = 50,
) -> list[TurnView]:
    """The newest turns first."""
    rows = database.rows(
        _VIEW
        + "WHERE (%(status)s::text IS NULL OR t.status = %(status)s)"
        + " AND (%(session)s::uuid IS NULL OR t.session_id = %(session)s)"
        + " AND (%(batch)s::uuid IS NULL OR t.batch_id = %(batch)s)"
        + " ORDER BY t.created_at DESC, t.id DESC LIMIT %(limit)s",
        {"status": status, "session": session_id, "batch": batch_id, "limit": limit},
    )
    return [_to_view(r) for r in rows]


def history(database: Database, some_id: UUID) -> Iterator[MessageView]:
    """Every message of a session, or of the session of a turn, compressed ones too. Raises NotFound.

    An answer that came in parts is one message, without what the model was told between them.
    """
    session = database.one_or_none(
        "SELECT id FROM sessions WHERE id = %(id)s UNION SELECT session_id FROM turns WHERE id = %(id)s",
        {"id": some_id},
    )
    if session is None:
        raise NotFound(f"there is no session or turn {some_id}; `perdure list` shows those that exist")
    rows = database.rows(
        """SELECT m.seq, m.turn_id, m.iteration, m.role, m.origin, m.content, m.wire,
             coalesce(m.seq BETWEEN c.from_seq AND c.to_seq, false) AS is_compressed
           FROM messages m LEFT JOIN
             (SELECT * FROM compressions WHERE session_id = %(id)s ORDER BY n DESC LIMIT 1) c ON true
           WHERE m.session_id = %(id)s ORDER BY m.seq""",
        {"id": session["id"]},
    )
    open_calls = frozenset(
        r["call_id"]
        for r in database.rows(
            """SELECT c.call_id FROM tool_calls c JOIN turns t ON t.id = c.turn_id
               WHERE t.session_id = %(id)s AND t.exit_reason IS NULL AND c.status IN ('open', 'started')""",
            {"id": session["id"]},
        )
    )
    compressed = {r["seq"] for r in rows if r["is_compressed"]}
    read = parts.as_read(to_message_for_reading(r) for r in rows)
    return (MessageView(message, message.seq in compressed, open_calls, seqs) for message, seqs in read)


def seen(database: Database, some_id: UUID) -> Iterator[MessageView]:
    """The same as its model sees it: a summary stands for what is compressed. Raises NotFound."""
    compression: Compression | None = None
    for view in history(database, some_id):
        if not view.is_compressed:
            yield view
        elif compression is None:
            session = database.one("SELECT session_id FROM turns WHERE id = %(id)s", {"id": view.message.turn_id})
            compression = compression_of(database, session["session_id"])
            assert compression is not None, "what is compressed stays so"
            yield MessageView(compression.message(), False, frozenset())


def workers(database: Database) -> list[WorkerView]:
    """The workers that are alive."""
    rows = database.rows(
        "SELECT name, host, pid, queues, slots, busy, extract(epoch FROM now() - seen_at)::float8 AS silent_s"
        " FROM workers WHERE seen_at > now() - interval '15 seconds' ORDER BY name, host, pid"
    )
    return [
        WorkerView(r["name"], r["host"], r["pid"], tuple(r["queues"].split(",")), r["slots"], r["busy"], r["silent_s"])
        for r in rows
    ]


def _to_view(row: Row) -> TurnView:
    result: dict[str, Any] = row["result"] or {}
    return TurnView(
        turn_id=row["id"],
        session_id=row["session_id"],
        agent=row["agent"],
        status=TurnStatus(row["status"]),
        exit_reason=ExitReason(row["exit_reason"]) if row["exit_reason"] else None,
        activity=row["activity"],
        output_text=result.get("output_text"),
        message=result.get("message"),
        iterations_used=row["iterations_used"],
        iterations_max=row["iterations_max"],
        grace_used=row["grace_used"],
        usage=usage_of(row),
        spending=spending_of(row),
        crash_count=row["crash_count"],
        fencing_token=row["fencing_token"],
        waiting_for=row["waiting_for"],
        batch_id=row["batch_id"],
        custom_id=row["custom_id"],
        parent_turn_id=row["parent_turn_id"],
        created_at=row["created_at"],
        started_at=row["started_at"],
        ended_at=row["ended_at"],
        resumes=row["resumes"],
        worker=row["worker"],
    )
