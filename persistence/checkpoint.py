"""The checkpoint: one data-modifying statement, one round trip, one commit (`persistence.checkpoint_statement`)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from decimal import Decimal
from typing import Any

from persistence.checkpoint_statement import Shape, statement
from persistence.database import Database, Row
from persistence.errors import InboxGrew, LeaseLost
from persistence.records.compression import Compression
from persistence.records.message import Json, Message, Origin, Role, block_to_json, content_from_json, dumps
from persistence.records.outcome import CallState, ClosedCall, ModelCall, News, Outcome
from persistence.records.spending import Estimate
from persistence.records.turn import Turn

Params = dict[str, Any]


def store(database: Database, turn: Turn, outcome: Outcome, *, lease: timedelta, foreign: bool = False) -> News:
    """Make `outcome` durable, or write nothing.

    May be called again with the same arguments after DatabaseUnavailable: a commit whose answer was lost is recognised
    by the position. `foreign` is an ending written by somebody who does not carry the turn (status as in `turn`).

    Raises LeaseLost when the turn is no longer ours, InboxGrew when an ending or a wait did not know of something that
    arrived, DatabaseUnavailable when it is unknown whether the statement was committed.
    """
    row = database.one_or_none(statement(Shape.of(outcome)), _params(turn, outcome, lease, foreign))
    if row is None:
        raises_token = foreign or outcome.wait is not None or outcome.hands_back
        row = _reread(database, turn, turn.fencing_token + raises_token)
    return News(
        position=row["position"],
        last_seq=row["last_seq"],
        inbox_n=row["inbox_n"],
        is_interrupted=row["is_interrupted"],
        is_slice_over=row["is_slice_over"],
        is_past_deadline=row["is_past_deadline"],
        taken=tuple(_steer(turn, seq, content) for seq, content in row["taken"] or ()),
    )


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
        "pending": None if counters.pending is None else dumps(counters.pending.to_json()),
    }
    if outcome.takes_inbox or outcome.ending is not None:
        params["inbox_state"] = "not_delivered" if outcome.ending else "applied"
    if outcome.ending is not None:
        ending = outcome.ending
        params["new_status"] = ending.exit_reason.status.value
        params["exit_reason"] = ending.exit_reason.value
        params["result"] = dumps({"output_text": ending.output_text, "message": ending.message})
        params["foreign"] = int(foreign)
    if outcome.wait is not None:
        wait_s = outcome.wait.resume_in_s
        params["waiting_for"] = outcome.wait.waiting_for.value
        params["resume_in"] = None if wait_s is None else timedelta(seconds=wait_s)
    return params | _row_params(outcome)


def _row_params(outcome: Outcome) -> Params:
    """The new rows, a JSON parameter for each table that gets some."""
    params: Params = {}
    if outcome.messages:
        params["messages"] = dumps([_message_row(m) for m in outcome.messages])
    if outcome.events:
        params["events"] = dumps([{"type": e.type, "payload": dict(e.payload)} for e in outcome.events])
    if outcome.opened:
        params["opened"] = dumps([_opened_row(c) for c in outcome.opened])
    if outcome.started:
        params["started"] = list(outcome.started)
    if outcome.closed:
        params["closed"] = dumps([_closed_row(c) for c in outcome.closed])
    if outcome.model_call is not None:
        params["model_call"] = dumps(_model_call_row(outcome.model_call))
    if outcome.lost is not None:
        params["lost"] = dumps(_estimate_row(outcome.lost.estimate))
    if outcome.model_call is not None or outcome.lost is not None:
        params["spent"] = dumps(_spent_row(outcome))
    if outcome.compression is not None:
        params["compression"] = dumps(_compression_row(outcome.compression))
    return params


def _message_row(message: Message) -> Json:
    return {
        "iteration": message.iteration,
        "role": message.role.value,
        "origin": message.origin.value,
        "content": [block_to_json(b) for b in message.content],
        "wire": message.wire,
    }


def _opened_row(call: CallState) -> Json:
    return {
        "call_id": call.call_id,
        "n": call.n,
        "name": call.name,
        "effect": call.effect.value,
        "is_parallel": call.is_parallel,
        "status": call.status.value,
        "result": call.result,
    }


def _closed_row(call: ClosedCall) -> Json:
    return {
        "call_id": call.call_id,
        "status": call.status.value,
        "duration_s": call.duration_s,
        "result": call.result,
    }


def _model_call_row(call: ModelCall) -> Json:
    used = call.usage
    return {
        "iteration": call.iteration,
        "provider": call.provider,
        "model": call.model,
        "error": call.error,
        "input": used and used.input_tokens,
        "output": used and used.output_tokens,
        "cache_read": used and used.cache_read_tokens,
        "cache_write": used and used.cache_write_tokens,
        "reasoning": used and used.reasoning_tokens,
        "cost": _amount(call.cost_usd),
        "latency_s": call.latency_s,
        "request_id": call.request_id,
        "key_label": call.key_label,
    } | (_estimate_row(call.estimate) if call.estimate else {})


def _estimate_row(estimate: Estimate) -> Json:
    return {"estimated_tokens": estimate.tokens, "cost": _amount(estimate.cost_usd)}


def _spent_row(outcome: Outcome) -> Json:
    """What the turn's sums grow by."""
    used, spent = outcome.usage, outcome.spending
    return {
        "input": used.input_tokens,
        "output": used.output_tokens,
        "cache_read": used.cache_read_tokens,
        "cache_write": used.cache_write_tokens,
        "reasoning": used.reasoning_tokens,
        "cost": _amount(spent.cost_usd),
        "unpriced": spent.unpriced_attempts,
        "unknown": spent.unknown_attempts,
        "estimated_tokens": spent.estimated_tokens,
        "estimated_cost": _amount(spent.estimated_cost_usd),
    }


def _amount(dollars: Decimal | None) -> str | None:
    """As text: a JSON number would be rounded on its way."""
    return None if dollars is None else str(dollars)


def _compression_row(compression: Compression) -> Json:
    return {
        "n": compression.n,
        "from_seq": compression.from_seq,
        "to_seq": compression.to_seq,
        "summary": compression.to_json(),
    }


_REREAD = """
SELECT position, last_seq, inbox_n, fencing_token, status, interrupt_requested_at IS NOT NULL AS is_interrupted,
  coalesce(hand_back_at <= now(), false) AS is_slice_over, coalesce(deadline <= now(), false) AS is_past_deadline,
  (SELECT json_agg(json_build_array(seq, content) ORDER BY seq) FROM messages
    WHERE session_id = turns.session_id AND turn_id = turns.id AND seq > %(last_seq)s AND origin = 'steer') AS taken
FROM turns WHERE id = %(id)s"""


def _reread(database: Database, turn: Turn, token_after: int) -> Row:
    """Why the statement matched nothing: it had been committed, the inbox has grown, or the turn is not ours any more.

    `token_after` is the token that the statement leaves. An owner after us would have raised it by two at least.
    """
    row = database.one_or_none(_REREAD, {"id": turn.id, "last_seq": turn.last_seq})
    if row is not None and (row["fencing_token"], row["position"]) == (token_after, turn.position + 1):
        return row
    if row is None or row["fencing_token"] != turn.fencing_token:
        raise LeaseLost(f"turn {turn.id} has another owner")
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
