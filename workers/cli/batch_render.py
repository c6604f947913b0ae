"""Batches as text for people."""

from __future__ import annotations

from collections.abc import Sequence

from orchestration.costs import dollars
from persistence.batch_views import BatchView
from persistence.records.batch import BatchStatus
from persistence.records.status import TurnStatus
from workers.cli import render
from workers.cli.notices import printable


def words(status: BatchStatus) -> str:
    return status.value.replace("_", " ")


def progress(view: BatchView) -> str:
    """How far it is, in one line."""
    state = "is being stored" if view.status is BatchStatus.FILLING else words(view.status)
    counts = [f"{n} {status.value}" for status in TurnStatus if (n := view.items.get(status, 0))]
    return f"{state}: {view.ended} of {render.times(view.size, 'item')} ended" + (
        f" ({', '.join(counts)})" if counts else ""
    )


def card(view: BatchView) -> str:
    """Everything that `batch show` knows, a line a fact."""
    used = view.usage
    stopping = ", being interrupted" if view.is_interrupted and not view.status.is_ending else ""
    caps = [] if view.max_cost_usd is None else [f"{dollars(view.max_cost_usd)} for all items"]
    caps += [] if view.max_tokens is None else [f"{view.max_tokens} tokens for all items"]
    facts: dict[str, object] = {
        "batch": view.batch_id,
        "name": view.name,
        "agent": view.agent,
        "status": words(view.status) + stopping,
        "items": f"{view.ended} of {view.size} ended",
        **{f"  {status.value}": view.items.get(status) for status in TurnStatus},
        "reasons": ", ".join(f"{n} {reason.value}" for reason, n in sorted(view.endings.items())) or None,
        "tokens": f"{used.input_tokens} in, {used.output_tokens} out, {used.cache_read_tokens} read from and "
        f"{used.cache_write_tokens} written to a cache, {used.reasoning_tokens} of reasoning",
        "cost": render.cost(view.spending),
        "estimated": render.estimated(view.spending),
        "caps": ", ".join(caps) or None,
        "resumed": render.times(view.resumes, "time") if view.resumes else None,
        "created": view.created_at,
        "ended": view.ended_at,
    }
    return printable(
        "\n".join(f"{name:<14}{render.instant(value)}" for name, value in facts.items() if value is not None)
    )


def table(views: Sequence[BatchView]) -> str:
    """A line a batch, its id first and whole."""
    head = ("BATCH", "STATUS", "ENDED", "COMPLETED", "AGENT", "TOKENS", "COST", "CREATED", "NAME")
    return render.columns([head, *(_row(view) for view in views)])


def _row(view: BatchView) -> tuple[str, ...]:
    return (
        str(view.batch_id),
        view.status.value,
        f"{view.ended}/{view.size}",
        str(view.items.get(TurnStatus.COMPLETED, 0)),
        view.agent,
        str(view.usage.total),
        render.cost(view.spending) or "",
        render.instant(view.created_at),
        view.name or "",
    )
