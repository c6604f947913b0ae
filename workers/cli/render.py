"""Turns and messages as text for people: plain lines, the same on a terminal and in a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from orchestration.costs import dollars
from persistence.records.context import sources_of
from persistence.records.message import Block, Call, Image, Opaque, Result, Text, Thinking
from persistence.records.spending import Spending
from persistence.sums import Sum
from persistence.views import MessageView, TurnView, WorkerView
from workers.cli.notices import printable

Payload = Mapping[str, Any]

# A worker is heard of every 3 s.
_SILENCE_S = 7.0


def tokens(used: int | None, made: int | None) -> str:
    """What went in and what came out of one model call, or of many."""
    return f"{_count(used)} → {_count(made)} tokens"


def seconds(duration_s: float | None) -> str:
    if duration_s is None:
        return "–"
    if duration_s < 60:
        return f"{duration_s:.1f} s" if duration_s >= 0.1 else f"{duration_s * 1000:.0f} ms"
    minutes, rest = divmod(round(duration_s), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"


def summary(view: TurnView) -> str:
    """How a turn ended and what it took, in one line."""
    used = view.usage
    parts = [
        view.status.value if view.exit_reason is None else f"{view.status.value} ({view.exit_reason.value})",
        times(view.iterations_used, "iteration"),
        tokens(used.input_tokens + used.cache_read_tokens + used.cache_write_tokens, used.output_tokens),
    ]
    if view.spending.cost_usd is not None:
        parts.append(("at least " if view.spending.unpriced_attempts else "") + dollars(view.spending.cost_usd))
    if view.started_at and view.ended_at:
        parts.append(seconds((view.ended_at - view.started_at).total_seconds()))
    if view.crash_count:
        parts.append(f"its worker was lost {times(view.crash_count, 'time')}")
    return ", ".join(parts)


def card(view: TurnView) -> str:
    """Everything that `show` knows, a line a fact."""
    used = view.usage
    facts: dict[str, object] = {
        "turn": view.turn_id,
        "session": view.session_id,
        "agent": view.agent,
        "status": view.status.value + (f", {view.activity}" if view.activity else ""),
        "exit reason": view.exit_reason,
        "why": view.message,
        "waiting for": view.waiting_for,
        "iterations": f"{view.iterations_used} of {view.iterations_max}" + (", grace call" if view.grace_used else ""),
        "tokens": f"{used.input_tokens} in, {used.output_tokens} out, {used.cache_read_tokens} read from and "
        f"{used.cache_write_tokens} written to a cache, {used.reasoning_tokens} of reasoning",
        "cost": cost(view.spending),
        "estimated": estimated(view.spending),
        "workers lost": view.crash_count or None,
        "parent": view.parent_turn_id,
        "batch": None if view.batch_id is None else f"{view.batch_id}, item {view.custom_id}",
        "created": view.created_at,
        "started": view.started_at,
        "ended": view.ended_at,
    }
    lines = [f"{name:<13}{instant(value)}" for name, value in facts.items() if value is not None]
    answer = ["", view.output_text.rstrip()] if view.output_text else []
    return printable("\n".join([*lines, *answer]))


def table(views: Sequence[TurnView]) -> str:
    """A line a turn, its id first and whole: what other commands want."""
    head = ("TURN", "STATUS", "REASON", "AGENT", "ITERATIONS", "TOKENS", "COST", "CREATED")
    rows = [head, *(_row(view) for view in views)]
    return columns(rows)


def columns(rows: Sequence[Sequence[str]]) -> str:
    """Rows of a table, the first of them its head."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return printable("\n".join("  ".join(c.ljust(w) for c, w in zip(r, widths, strict=True)).rstrip() for r in rows))


def sums(of: str, found: Sequence[Sum]) -> str:
    """A line a sum. What is only known in part, or estimated, is said so."""
    head = (of, "TURNS", "TOKENS", "COST", "ESTIMATED")
    rows = [
        head,
        *(
            (
                each.name or "(none)",
                str(each.turns),
                str(each.usage.total),
                cost(each.spending) or "",
                estimated(each.spending) or "",
            )
            for each in found
        ),
    ]
    return columns(rows)


def workers(alive: Sequence[WorkerView]) -> str:
    """A line a worker, as `doctor` shows them. None is no fault: a turn waits for one."""
    if not alive:
        return "..   No worker is alive: turns wait until `perdure up` or `perdure worker` starts one"
    return printable("\n".join(map(_worker, alive)))


def _worker(each: WorkerView) -> str:
    who = f"Worker {each.name} on {each.host}, process {each.pid}"
    if each.silent_s > _SILENCE_S:
        return f"..   {who}: not heard of for {each.silent_s:.0f} s; if it is dead, its turns are taken back"
    return f"ok   {who}: carries {each.busy} of {each.slots} turns of {', '.join(each.queues)}"


def message(view: MessageView, *, sent: bool = False) -> str:
    """One message: who wrote it where, then its blocks; with `sent` those that the model was sent in their place."""
    stored = view.message
    sources = sources_of(stored)
    head = f"── {stored.seq} · {stored.origin.value} · iteration {stored.iteration}"
    head += " · compressed" if view.is_compressed else ""
    told = [] if sources is None else [f"(context sent to the model: {sizes(sources)})"]
    blocks = stored.sent if sent else stored.content
    return printable("\n".join([head, *told, *(_block(block, view.open_calls) for block in blocks), ""]))


def clock(at: datetime) -> str:
    """The time of day here."""
    return at.astimezone().strftime("%H:%M:%S")


def _row(view: TurnView) -> tuple[str, ...]:
    return (
        str(view.turn_id),
        view.status.value,
        view.exit_reason.value if view.exit_reason else view.activity or view.waiting_for or "",
        view.agent,
        f"{view.iterations_used}/{view.iterations_max}",
        str(view.usage.total),
        "" if view.spending.total_usd is None else dollars(view.spending.total_usd),
        instant(view.created_at),
    )


def cost(spending: Spending) -> str | None:
    """What is known of it, and said to be a part where it is one."""
    known = None if spending.cost_usd is None else dollars(spending.cost_usd)
    if not spending.unpriced_attempts:
        return known
    without = f"no price is known for {times(spending.unpriced_attempts, 'attempt')}"
    return f"unknown: {without}" if known is None else f"at least {known}: {without}"


def estimated(spending: Spending) -> str | None:
    """What may have been billed beside the cost, and nobody told."""
    if not spending.unknown_attempts:
        return None
    priced = "" if spending.estimated_cost_usd is None else f", {dollars(spending.estimated_cost_usd)}"
    told = f"about {spending.estimated_tokens} tokens{priced}, for" if spending.estimated_tokens else "nothing yet for"
    return f"{told} {times(spending.unknown_attempts, 'attempt')} whose usage is not known"


def _block(block: Block, open_calls: frozenset[str]) -> str:
    match block:
        case Text():
            return block.text
        case Call():
            return f"→ {block.name}({block.arguments})" + ("  [open]" if block.id in open_calls else "")
        case Result():
            shown = "".join(f"\n(image, {image.media_type or image.url})" for image in block.images)
            return f"← [{block.status.value}] {block.content}{shown}"
        case Thinking():
            return f"(thinking) {block.text}"
        case Image():
            return f"(image, {block.media_type or block.url})"
        case Opaque():
            return f"(a block of {block.native.provider})"


def sizes(sources: Sequence[Payload]) -> str:
    return ", ".join(f"{each['source']} ({each['chars']:,} characters)" for each in sources)


def instant(value: object) -> str:
    """A date and time here; anything else as its text."""
    return value.astimezone().strftime("%Y-%m-%d %H:%M:%S") if isinstance(value, datetime) else str(value)


def _count(n: int | None) -> str:
    return "?" if n is None else str(n)


def times(n: int, what: str) -> str:
    return f"{n} {what}" if n == 1 else f"{n} {what}s"
