"""Views -> the JSON that scripts read. Names here are public: they may be added to, never renamed.

submit, resume  {"turn_id", "session_id", "status"}
steer           {"n"}
interrupt       {"turn_id", "status"}
show, list      {"turn_id", "session_id", "agent", "status", "exit_reason", "activity", "output_text",
                "error": null | {"code", "message"}, "iterations": {"used", "max"}, "grace_used",
                "usage": {"input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens",
                "reasoning_tokens", "unknown_attempts", "unpriced_attempts", "estimated_tokens"}, "cost_usd",
                "known_cost_usd", "estimated_cost_usd", "crash_count", "fencing_token", "waiting_for", "batch_id",
                "custom_id", "parent_turn_id", "created_at", "started_at", "ended_at"}
history         {"seq", "turn_id", "iteration", "role", "origin", "content": [blocks], "compressed"}, a line a message
                and "parts", the numbers of the messages that an answer in several parts is joined from
                blocks: {"type": "text", "text"}, {"type": "tool_call", "id", "name", "arguments"},
                {"type": "tool_result", "id", "content", "is_error", "status"} and "images" where there are any,
                {"type": "thinking", "text", "native"},
                {"type": "image", …}, {"type": "native", "native"}; an open call has "status": "open"
                the context of a request is a message of its own, with no blocks and "context": [{"source", "chars"}];
                what was sent in place of "content", where that differs, is "sent": [blocks] with --sent
events          {"seq", "at", "type", …}, a line an event; with --live between them, never kept: {"type": "live.text" |
                "live.thinking" | "live.end", "iteration", "attempt": [a, b], "n", "model", "at", "text"}, where a higher
                "attempt" takes the place of all that was said in its iteration before; {"type": "live.progress", "tool",
                "text"}; {"type": "live.state", "text"}
costs           {"tenant" | "agent" | "batch" | "turn_id", "turns", "usage", "cost_usd", "known_cost_usd",
                "estimated_cost_usd"}, a line a sum, the last four as in show
batch submit    {"batch_id", "items"}
batch interrupt {"batch_id", "status"}
batch resume    {"batch_id", "items", "left": [{"custom_id", "turn_id", "why"}]}
batch show,     {"batch_id", "name", "agent", "status", "interrupt_requested", "items", "counts": {status: n},
batch list      "exit_reasons": {exit reason: n}, "usage", "cost_usd", "known_cost_usd", "estimated_cost_usd", "max_tokens",
                "max_cost_usd", "resumes", "created_at", "ended_at"}; usage and costs are sums, as in show
batch results   {"custom_id", "turn_id", "status", "exit_reason", "output_text", "output", "error", "usage", "cost_usd",
                "known_cost_usd", "estimated_cost_usd", "iterations"}, a line an item that has ended, each as in show;
                "output" is the value of an answer that fits the agent's output_schema, else null
up              {"database_url", "redis_url"}

Instants are ISO 8601 in UTC; "arguments" is the model's own JSON text; "error" is there for failed turns only, and its
"code" is the exit reason. "cost_usd" is what the usage costs, null where that is not known: a price is missing for
"unpriced_attempts" of it, and "known_cost_usd" is the cost of the others. "unknown_attempts" are beside all of that: they
may have been billed and nobody told their usage, so "estimated_tokens" and "estimated_cost_usd" stand in for it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeAlias

from orchestration.structured_output import json_text
from persistence.batch_views import BatchView, ItemResult
from persistence.events import StoredEvent
from persistence.records.context import sources_of
from persistence.records.message import Block, Call, Text, block_to_json
from persistence.records.status import TurnStatus
from persistence.submission import Submitted
from persistence.sums import Sum
from persistence.views import MessageView, TurnView, spent_as_json
from workers.settings import libpq_url

if TYPE_CHECKING:
    from workers.live.reader import Entry
    from workers.stack import Servers

Json: TypeAlias = dict[str, Any]


# Line breaks to Unicode and to many readers, though not to JSON: escaped, they read the same and break no line.
_BREAKS = {0x85: "\\u0085", 0x2028: "\\u2028", 0x2029: "\\u2029"}


def cost_sum(of: str, found: Sum) -> Json:
    return {of: found.name, "turns": found.turns, **spent_as_json(found.usage, found.spending)}


def line(value: Mapping[str, Any]) -> str:
    """One object on one line, whatever its reader takes for the end of one."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).translate(_BREAKS)


def submitted(found: Submitted) -> Json:
    return {"turn_id": str(found.turn_id), "session_id": str(found.session_id), "status": found.status.value}


def turn(view: TurnView) -> Json:
    failed = view.status is TurnStatus.FAILED
    return {
        "turn_id": str(view.turn_id),
        "session_id": str(view.session_id),
        "agent": view.agent,
        "status": view.status.value,
        "exit_reason": _text(view.exit_reason),
        "activity": view.activity,
        "output_text": view.output_text,
        "error": {"code": _text(view.exit_reason), "message": view.message or ""} if failed else None,
        "iterations": {"used": view.iterations_used, "max": view.iterations_max},
        "grace_used": view.grace_used,
        **view.spent_as_json(),
        "crash_count": view.crash_count,
        "fencing_token": view.fencing_token,
        "waiting_for": view.waiting_for,
        "batch_id": _text(view.batch_id),
        "custom_id": view.custom_id,
        "parent_turn_id": _text(view.parent_turn_id),
        "created_at": _instant(view.created_at),
        "started_at": _instant(view.started_at),
        "ended_at": _instant(view.ended_at),
    }


def item(found: ItemResult) -> Json:
    """How an item of a batch ended."""
    failed, completed = found.status is TurnStatus.FAILED, found.status is TurnStatus.COMPLETED
    return {
        "custom_id": found.custom_id,
        "turn_id": str(found.turn_id),
        "status": found.status.value,
        "exit_reason": found.exit_reason.value,
        "output_text": found.output_text,
        "output": _value(found.output_text) if completed and found.has_schema else None,
        "error": {"code": found.exit_reason.value, "message": found.message or ""} if failed else None,
        **spent_as_json(found.usage, found.spending),
        "iterations": {"used": found.iterations_used, "max": found.iterations_max},
    }


def batch(view: BatchView) -> Json:
    return {
        "batch_id": str(view.batch_id),
        "name": view.name,
        "agent": view.agent,
        "status": view.status.value,
        "interrupt_requested": view.is_interrupted,
        "items": view.size,
        "counts": {status.value: view.items.get(status, 0) for status in TurnStatus},
        "exit_reasons": {reason.value: n for reason, n in sorted(view.endings.items())},
        **spent_as_json(view.usage, view.spending),
        "max_tokens": view.max_tokens,
        "max_cost_usd": None if view.max_cost_usd is None else float(view.max_cost_usd),
        "resumes": view.resumes,
        "created_at": _instant(view.created_at),
        "ended_at": _instant(view.ended_at),
    }


def _value(text: str | None) -> Any:
    """What an answer in JSON says; it was checked against its schema when it came."""
    try:
        return json.loads(json_text(text or ""))
    except ValueError:
        return None


def message(view: MessageView, *, sent: bool = False) -> Json:
    """With `sent`, also what the model was sent instead of the content, where the two differ."""
    stored = view.message
    sources = sources_of(stored)
    wire = {"sent": [block_to_json(b) for b in stored.sent]} if sent and stored.wire else {}
    return {
        "seq": stored.seq,
        "turn_id": str(stored.turn_id),
        "iteration": stored.iteration,
        "role": stored.role.value,
        "origin": stored.origin.value,
        "content": [_block(block, view.open_calls) for block in stored.content],
        "compressed": view.is_compressed,
        **({"parts": list(view.parts)} if view.parts else {}),
        **({} if sources is None else {"context": sources}),
        **wire,
    }


def event(stored: StoredEvent) -> Json:
    return {"seq": stored.seq, "at": _instant(stored.at), "type": stored.type, **stored.payload}


def live(entry: Entry) -> Json:
    """Live text, for those who ask for it: it has no number, is not kept, and may have gaps."""
    words: Json = {"iteration": entry.iteration, "attempt": list(entry.attempt), "n": entry.n, "model": entry.model}
    own = {"tool": entry.tool} if entry.kind == "progress" else words | {"at": entry.at} if entry.iteration else {}
    return {"type": f"live.{entry.kind}", **own, "text": entry.text}


def addresses(found: Servers) -> Json:
    """As psql and redis-cli take them, passwords and all."""
    return {"database_url": libpq_url(found.database_url), "redis_url": found.redis_url}


def _block(block: Block, open_calls: frozenset[str]) -> Json:
    shown = block_to_json(block)
    if isinstance(block, Text | Call):
        shown.pop("native", None)
    if isinstance(block, Call) and block.id in open_calls:
        shown["status"] = "open"
    return shown


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _instant(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat()
