"""What must hold after every test, and at every instant of it: the standing checks, as lists of what is wrong."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from persistence import events, turns
from persistence.database import Database
from persistence.records import parts
from persistence.records.message import CallStatus, Message, Origin, Result, Role
from persistence.records.status import TurnStatus
from tests.support.ledger import Ledger

_MESSAGES = """
SELECT seq, turn_id, iteration, role, origin, content, wire FROM messages WHERE session_id = %(id)s ORDER BY seq"""

_MESSAGES_AND_LIVE = """
SELECT seq, turn_id, iteration, role, origin, content, wire,
  (SELECT array_agg(id) FROM turns WHERE session_id = %(id)s AND exit_reason IS NULL) AS live
FROM messages WHERE session_id = %(id)s ORDER BY seq"""

_TURN = """
SELECT session_id, status, exit_reason, result, resumes, event_seq, last_seq, position, lease_expires_at, worker,
  iterations_used, iterations_max, waiting_for,
  (SELECT settings ->> 'attempts' FROM agents a WHERE a.id = t.agent_id)::int AS attempts_max,
  (SELECT count(*) FROM inbox i WHERE i.turn_id = t.id AND i.state = 'new') AS unread,
  (SELECT count(*) FROM tool_calls c WHERE c.turn_id = t.id AND c.status IN ('open', 'started')) AS open_calls,
  (SELECT array_agg(d.resumes ORDER BY d.resumes) FROM deliveries d WHERE d.turn_id = t.id) AS deliveries
FROM turns t WHERE id = %(id)s"""


def stored_messages(database: Database, session_id: UUID) -> list[Message]:
    return [turns.to_message(r) for r in database.rows(_MESSAGES, {"id": session_id})]


def wrong_with_session(database: Database, session_id: UUID) -> list[str]:
    """What is wrong with a stored history, at whatever instant it is looked at."""
    rows = database.rows(_MESSAGES_AND_LIVE, {"id": session_id})
    return wrong_with_history([turns.to_message(r) for r in rows], set(rows[0]["live"] or ()) if rows else set())


def wrong_with_history(messages: Sequence[Message], live: frozenset[UUID] | set[UUID] = frozenset()) -> list[str]:
    """What is wrong with all messages of a session: it has every one, and each could be sent."""
    gaps = [m.seq for m in messages] != list(range(1, len(messages) + 1))
    wrong = [f"the numbers of the messages have gaps: {[m.seq for m in messages]}"] if gaps else []
    return wrong + wrong_with_request(messages, live)


def wrong_with_request(messages: Sequence[Message], live: frozenset[UUID] | set[UUID] = frozenset()) -> list[str]:
    """Promise P5: only the newest assistant message of a live turn has open calls, all others have theirs answered.

    A compression leaves messages out, so their numbers say nothing here.
    """
    wrong: list[str] = []
    ids = [c.id for m in messages for c in m.calls]
    if len(ids) != len(set(ids)):
        wrong.append(f"call ids are repeated: {ids}")
    for before, message in zip([None, *messages], messages, strict=False):
        asked = () if before is None else before.calls
        answered = [b.id for b in message.content if isinstance(b, Result)]
        if [c.id for c in asked] != answered:
            wrong.append(f"message {message.seq} answers {answered}, not {[c.id for c in asked]}")
        if (message.role is Role.TOOL) != bool(answered):
            wrong.append(f"message {message.seq} has the role {message.role} and the results {answered}")
        if (
            message.role is Role.ASSISTANT
            and before is not None
            and before.role is Role.ASSISTANT
            and not parts.is_paused(before)
        ):
            wrong.append(f"message {message.seq} follows another one of the model")
    newest = messages[-1] if messages else None
    if newest is not None and newest.calls and newest.turn_id not in live:
        wrong.append(f"turn {newest.turn_id} has ended with open calls")
    return wrong


def wrong_with_ended(database: Database, turn_id: UUID, ledger: Ledger | None = None) -> list[str]:
    """What is wrong with a turn that should have ended."""
    row = database.one(_TURN, {"id": turn_id})
    if not TurnStatus(row["status"]).is_ending:
        return [f"the turn is {row['status']}"]
    messages = stored_messages(database, row["session_id"])
    wrong = wrong_with_history(messages) + _wrong_with_events(database, turn_id, row["exit_reason"], row["event_seq"])
    own = [m for m in messages if m.turn_id == turn_id]
    if own and own[-1].seq != row["last_seq"]:
        wrong.append(f"last_seq is {row['last_seq']}, the last message {own[-1].seq}")
    if sum(m.role is Role.USER and m.origin is Origin.USER for m in own) > 1:
        wrong.append("the request is stored twice")
    for left in ("lease_expires_at", "worker", "waiting_for"):
        if row[left] is not None:
            wrong.append(f"{left} is still {row[left]}")
    for left in ("unread", "open_calls"):
        if row[left]:
            wrong.append(f"{row[left]} {left}")
    if row["deliveries"] != list(range(row["resumes"] + 1)):
        wrong.append(f"the deliveries are {row['deliveries']} after {row['resumes']} resumes")
    wrong += _wrong_with_calls(database, turn_id, own)
    wrong += _wrong_with_budget(database, turn_id, own, row["iterations_max"], row["resumes"], row["attempts_max"])
    wrong += _wrong_with_spending(database, turn_id)
    return wrong + (_wrong_with_ledger(database, ledger, turn_id, own) if ledger else [])


def _wrong_with_events(database: Database, turn_id: UUID, exit_reason: str, event_seq: int) -> list[str]:
    told = list(events.read(database, turn_id, limit=100_000))
    types = [e.type for e in told]
    wrong: list[str] = []
    if [e.seq for e in told] != list(range(1, event_seq + 1)):
        wrong.append(f"the events have gaps: {[e.seq for e in told]}")
    if types.count("turn.ended") != types.count("turn.resumed") + 1:
        wrong.append(f"the turn ended {types.count('turn.ended')} times: {types}")
    if not types or types[-1] != "turn.ended" or told[-1].payload["exit_reason"] != exit_reason:
        wrong.append(f"the last event is not the ending {exit_reason}: {types}")
    return wrong


def _wrong_with_calls(database: Database, turn_id: UUID, own: Sequence[Message]) -> list[str]:
    """The record of calls and the history say the same of each."""
    rows = database.rows("SELECT call_id, status, result FROM tool_calls WHERE turn_id = %(id)s", {"id": turn_id})
    recorded = {r["call_id"]: r["status"] for r in rows}
    told = {b.id: b.status.value for m in own for b in m.content if isinstance(b, Result)}
    wrong = [] if recorded == told else [f"recorded calls {recorded} are not those of the history, {told}"]
    return wrong + [f"call {r['call_id']} keeps a result that is in the history" for r in rows if r["result"]]


def _wrong_with_budget(
    database: Database, turn_id: UUID, own: Sequence[Message], iterations_max: int, resumes: int, attempts_max: int
) -> list[str]:
    answers = sum(m.role is Role.ASSISTANT for m in own)
    wrong = [] if answers <= iterations_max + 1 + resumes else [f"{answers} answers for {iterations_max} iterations"]
    rows = database.rows(
        """SELECT iteration, provider, count(*) AS n FROM model_calls
           WHERE turn_id = %(id)s AND iteration > 0 AND coalesce(error, '') NOT IN ('outcome_unknown', 'interrupted') GROUP BY 1, 2""",
        {"id": turn_id},
    )
    # What was asked again at once with another key is counted apart, and bounded by the number of keys.
    told = "SELECT count(*) AS n FROM events WHERE turn_id = %(id)s AND payload ->> 'with_another_key' = 'true'"
    allowed = attempts_max * (resumes + 1) + database.one(told, {"id": turn_id})["n"]
    return wrong + [f"{r['n']} attempts at iteration {r['iteration']}" for r in rows if r["n"] > allowed]


_SUMS = """
SELECT coalesce(sum(input_tokens), 0) AS input_tokens, coalesce(sum(output_tokens), 0) AS output_tokens,
  sum(cost_usd) FILTER (WHERE input_tokens IS NOT NULL) AS cost_usd,
  count(*) FILTER (WHERE input_tokens IS NOT NULL AND cost_usd IS NULL) AS unpriced_attempts,
  count(*) FILTER (WHERE estimated_tokens IS NOT NULL OR error = 'outcome_unknown') AS unknown_attempts,
  coalesce(sum(estimated_tokens), 0) AS estimated_tokens,
  sum(cost_usd) FILTER (WHERE estimated_tokens IS NOT NULL) AS estimated_cost_usd
FROM model_calls WHERE turn_id = %(id)s"""


def _wrong_with_spending(database: Database, turn_id: UUID) -> list[str]:
    """Every attempt is in the sums of its turn, once."""
    expected = dict(database.one(_SUMS, {"id": turn_id}))
    stored = dict(database.one(f"SELECT {', '.join(expected)} FROM turns WHERE id = %(id)s", {"id": turn_id}))
    return [] if stored == expected else [f"the turn's sums {stored} are not those of its attempts, {expected}"]


def _wrong_with_ledger(database: Database, ledger: Ledger, turn_id: UUID, own: Sequence[Message]) -> list[str]:
    """No `once` call started twice; what has a result of its own did start, what was not run did not."""
    started = ledger.starts(turn_id)
    once = database.rows(
        "SELECT call_id, name FROM tool_calls WHERE turn_id = %(id)s AND effect = 'once'", {"id": turn_id}
    )
    wrong = [
        f"the {r['name']} call {r['call_id']} started {started.count(r['call_id'])} times"
        for r in once
        if started.count(r["call_id"]) > 1
    ]
    for result in (b for m in own for b in m.content if isinstance(b, Result)):
        if result.status is CallStatus.SUCCEEDED and result.id not in started:
            wrong.append(f"call {result.id} succeeded and never started")
        if result.status is CallStatus.NOT_RUN and result.id in started:
            wrong.append(f"call {result.id} started, and the model was told that it did not")
    return wrong
