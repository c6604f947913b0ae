"""Batches and the results of their items, for people and programs that only read. The JSON shapes are public (README)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

from persistence import sums
from persistence.database import Database, Row
from persistence.errors import NotFound
from persistence.records.batch import BatchStatus
from persistence.records.spending import Spending
from persistence.records.status import ExitReason, TurnStatus
from persistence.records.usage import Usage
from persistence.turns import spending_of, usage_of

# An ending is dated when its statement begins, and seen when that is committed. The few that take longer are seen at the
# end of the batch, when all results are read once more.
_LATE = timedelta(seconds=5)


@dataclass(frozen=True, slots=True)
class BatchView:
    """A batch as it stands. `items` counts those that are stored by their status, `endings` by exit reason."""

    batch_id: UUID
    name: str | None
    agent: str
    status: BatchStatus
    is_interrupted: bool
    size: int
    items: Mapping[TurnStatus, int]
    endings: Mapping[ExitReason, int]
    usage: Usage
    spending: Spending
    resumes: int
    max_tokens: int | None
    max_cost_usd: Decimal | None
    created_at: datetime
    ended_at: datetime | None

    @property
    def ended(self) -> int:
        """How many items have ended."""
        return sum(n for status, n in self.items.items() if status.is_ending)


@dataclass(frozen=True, slots=True)
class ItemResult:
    """How an item ended. `has_schema`: its final answer is JSON that fits a schema."""

    n: int
    custom_id: str
    turn_id: UUID
    status: TurnStatus
    exit_reason: ExitReason
    output_text: str | None
    message: str | None
    has_schema: bool
    usage: Usage
    spending: Spending
    iterations_used: int
    iterations_max: int
    ended_at: datetime


_BATCH = """
SELECT b.id, b.name, b.agent, b.status, b.interrupt_requested_at IS NOT NULL AS is_interrupted, b.size, b.resumes,
  b.max_tokens_total, b.max_cost_usd,
  b.created_at, b.ended_at FROM batches b"""

_ITEMS = f"""
SELECT t.batch_id, t.status, t.exit_reason, {sums.SUMS}
FROM turns t WHERE t.batch_id = ANY (%(ids)s::uuid[]) GROUP BY 1, 2, 3"""

_RESULT = """
SELECT t.n, t.custom_id, t.id, t.status, t.exit_reason, t.result, t.iterations_used, t.iterations_max, t.ended_at,
  json_typeof(a.settings -> 'output_schema') = 'object' AS has_schema,
  t.input_tokens, t.output_tokens, t.cache_read_tokens, t.cache_write_tokens, t.reasoning_tokens, t.cost_usd,
  t.unpriced_attempts, t.unknown_attempts, t.estimated_tokens, t.estimated_cost_usd
FROM turns t JOIN agents a ON a.id = t.agent_id WHERE t.batch_id = %(id)s AND t.ended_at IS NOT NULL"""

_BY_LINE = _RESULT + " AND t.n > %(after)s ORDER BY t.n LIMIT %(limit)s"
_LATELY = _RESULT + " AND t.ended_at > %(since)s ORDER BY t.ended_at, t.n"


def batch(database: Database, batch_id: UUID) -> BatchView:
    """Raises NotFound."""
    rows = database.rows(_BATCH + " WHERE b.id = %(id)s", {"id": batch_id})
    if not rows:
        raise NotFound(f"there is no batch {batch_id}; `perdure batch list` shows those that exist")
    return _to_views(database, rows)[0]


def batches(database: Database, *, limit: int = 20) -> list[BatchView]:
    """The newest first."""
    return _to_views(
        database, database.rows(_BATCH + " ORDER BY b.created_at DESC, b.id DESC LIMIT %(n)s", {"n": limit})
    )


def status(database: Database, batch_id: UUID) -> BatchStatus:
    """Where it stands, without a look at its items. Raises NotFound."""
    row = database.one_or_none("SELECT status FROM batches WHERE id = %(id)s", {"id": batch_id})
    if row is None:
        raise NotFound(f"there is no batch {batch_id}; `perdure batch list` shows those that exist")
    return BatchStatus(row["status"])


def turn_ids(database: Database, batch_id: UUID) -> list[UUID]:
    """Those of all its items."""
    return [r["id"] for r in database.rows("SELECT id FROM turns WHERE batch_id = %(id)s", {"id": batch_id})]


def results(database: Database, batch_id: UUID, *, at_a_time: int = 500) -> Iterator[Sequence[ItemResult]]:
    """The items that have ended, in the order of the file."""
    after = 0
    while page := results_after(database, batch_id, after, limit=at_a_time):
        yield page
        after = page[-1].n


def results_after(database: Database, batch_id: UUID, line: int, *, limit: int = 500) -> Sequence[ItemResult]:
    """The first of them that stand behind a line of the file."""
    return [_to_result(r) for r in database.rows(_BY_LINE, {"id": batch_id, "after": line, "limit": limit})]


def results_since(database: Database, batch_id: UUID, newest: datetime) -> Sequence[ItemResult]:
    """The items that ended after `newest` or not long before, in that order: the newest known ending is no border."""
    return [_to_result(r) for r in database.rows(_LATELY, {"id": batch_id, "since": newest - _LATE})]


def _to_views(database: Database, rows: Sequence[Row]) -> list[BatchView]:
    items: dict[UUID, list[Row]] = {row["id"]: [] for row in rows}
    for found in database.rows(_ITEMS, {"ids": list(items)}):
        items[found["batch_id"]].append(found)
    return [_to_view(row, items[row["id"]]) for row in rows]


def _to_view(row: Row, items: Sequence[Row]) -> BatchView:
    by_status: dict[TurnStatus, int] = {}
    endings: dict[ExitReason, int] = {}
    usage, spending = Usage(), Spending()
    for found in items:
        status_ = TurnStatus(found["status"])
        by_status[status_] = by_status.get(status_, 0) + found["turns"]
        if found["exit_reason"] is not None:
            endings[ExitReason(found["exit_reason"])] = found["turns"]
        usage, spending = usage + usage_of(found), spending + spending_of(found)
    return BatchView(
        batch_id=row["id"],
        name=row["name"],
        agent=row["agent"],
        status=BatchStatus(row["status"]),
        is_interrupted=row["is_interrupted"],
        size=row["size"],
        items=by_status,
        endings=endings,
        usage=usage,
        spending=spending,
        resumes=row["resumes"],
        max_tokens=row["max_tokens_total"],
        max_cost_usd=row["max_cost_usd"],
        created_at=row["created_at"],
        ended_at=row["ended_at"],
    )


def _to_result(row: Row) -> ItemResult:
    result: dict[str, Any] = row["result"] or {}
    return ItemResult(
        n=row["n"],
        custom_id=row["custom_id"],
        turn_id=row["id"],
        status=TurnStatus(row["status"]),
        exit_reason=ExitReason(row["exit_reason"]),
        output_text=result.get("output_text"),
        message=result.get("message"),
        has_schema=bool(row["has_schema"]),
        usage=usage_of(row),
        spending=spending_of(row),
        iterations_used=row["iterations_used"],
        iterations_max=row["iterations_max"],
        ended_at=row["ended_at"],
    )
