"""The caps that the items of a batch share: each item takes its own cap out of what is left before it may start.

What is left is not kept: it is the cap, less what the ended items have spent, less the own caps of those that are under way.
So no ending locks the batch. One with an attempt that nobody knows the cost of counts with its whole cap.
Whoever takes something out raises `allotment_n`, and only from the number at which it looked: two leaders never give the
same money away. Meanwhile endings can only have made more of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from uuid import UUID

from persistence import unstarted
from persistence.database import Statements
from persistence.records.message import dumps
from persistence.records.status import ExitReason

_TOKENS = "(input_tokens + output_tokens + cache_read_tokens + cache_write_tokens + estimated_tokens)"
_COST = "(coalesce(cost_usd, 0) + coalesce(estimated_cost_usd, 0))"
_IS_UNCLEAR = """(unknown_attempts > 0 AND EXISTS (SELECT FROM model_calls c WHERE c.turn_id = t.id
  AND c.error = 'outcome_unknown' AND c.estimated_tokens IS NULL))"""
_COUNTS_WHOLE = f"(t.ended_at IS NULL AND NOT awaits_allotment OR {_IS_UNCLEAR})"

_OPEN = f"""
SELECT b.id, b.allotment_n,
  b.max_tokens_total - sum(CASE WHEN {_COUNTS_WHOLE} THEN greatest(t.max_tokens_total, {_TOKENS}) ELSE {_TOKENS} END)
    AS tokens,
  b.max_cost_usd - sum(CASE WHEN {_COUNTS_WHOLE} THEN greatest(t.max_cost_usd, {_COST}) ELSE {_COST} END) AS cost,
  bool_or(t.ended_at IS NULL AND NOT awaits_allotment) AS has_live
FROM batches b JOIN turns t ON t.batch_id = b.id
WHERE b.ended_at IS NULL AND b.status = 'running' AND b.interrupt_requested_at IS NULL
  AND (b.max_tokens_total IS NOT NULL OR b.max_cost_usd IS NOT NULL)
  AND EXISTS (SELECT FROM turns w WHERE w.batch_id = b.id AND w.awaits_allotment AND w.ended_at IS NULL)
GROUP BY b.id ORDER BY b.id"""

_WAITING = f"""
SELECT id, started_at IS NOT NULL OR inbox_n > 0 AS has_past,
  CASE WHEN max_tokens_total IS NULL THEN NULL WHEN {_IS_UNCLEAR} THEN 0
    ELSE greatest(max_tokens_total - {_TOKENS}, 0) END AS tokens,
  CASE WHEN max_cost_usd IS NULL THEN NULL WHEN {_IS_UNCLEAR} THEN 0
    ELSE greatest(max_cost_usd - {_COST}, 0) END AS cost
FROM turns t WHERE batch_id = %(id)s AND awaits_allotment AND ended_at IS NULL ORDER BY n LIMIT %(limit)s"""

_TAKE = """
UPDATE batches SET allotment_n = allotment_n + 1
WHERE id = %(id)s AND allotment_n = %(seen)s AND status = 'running' AND interrupt_requested_at IS NULL RETURNING id"""

_ALLOT = f"""
WITH held AS ({_TAKE})
UPDATE turns SET awaits_allotment = false FROM held
WHERE turns.batch_id = held.id AND turns.id = ANY (%(ids)s::uuid[]) AND awaits_allotment RETURNING turns.id"""

_END = unstarted.ending("id = ANY (%(ids)s::uuid[]) AND awaits_allotment ORDER BY id FOR UPDATE", "incomplete")


@dataclass(frozen=True, slots=True)
class Part:
    """Tokens and money; None where they are not capped."""

    tokens: int | None
    cost: Decimal | None

    def holds(self, other: Part) -> bool:
        return self.lacks(other) is None

    def lacks(self, other: Part) -> ExitReason | None:
        """The cap in which there is no room for `other`."""
        if self.cost is not None and (other.cost is None or other.cost > self.cost):
            return ExitReason.COST_CAP
        if self.tokens is not None and (other.tokens is None or other.tokens > self.tokens):
            return ExitReason.TOKEN_CAP
        return None

    def less(self, other: Part) -> Part:
        return Part(
            None if self.tokens is None else self.tokens - (other.tokens or 0),
            None if self.cost is None else self.cost - (other.cost or 0),
        )


@dataclass(frozen=True, slots=True)
class Purse:
    """What is left of a batch's caps. `has_live`: some items are under way, and may give back what they do not spend."""

    batch_id: UUID
    seen: int
    left: Part
    has_live: bool


@dataclass(frozen=True, slots=True)
class Waiting:
    """An item that has no part yet, and the one that it needs. `has_past`: something was written of it, or sent to it."""

    turn_id: UUID
    needs: Part
    has_past: bool


def open_purses(database: Statements) -> list[Purse]:
    """Those of the batches in which an item waits for its part."""
    return [
        Purse(
            r["id"],
            r["allotment_n"],
            Part(None if r["tokens"] is None else int(r["tokens"]), r["cost"]),
            r["has_live"],
        )
        for r in database.rows(_OPEN)
    ]


def waiting(database: Statements, batch_id: UUID, *, limit: int = 1000) -> list[Waiting]:
    """The items that wait, in the order of the file."""
    rows = database.rows(_WAITING, {"id": batch_id, "limit": limit})
    return [Waiting(r["id"], Part(r["tokens"], r["cost"]), r["has_past"]) for r in rows]


def allot(database: Statements, purse: Purse, turn_ids: Sequence[UUID]) -> list[UUID]:
    """Let these items start; which of them may. None where somebody else has taken something out since."""
    params = {"id": purse.batch_id, "seen": purse.seen, "ids": list(turn_ids)}
    return [r["id"] for r in database.rows(_ALLOT, params)]


def take(database: Statements, purse: Purse) -> bool:
    """Keep everybody else from taking something out on the ground of what we looked at."""
    return bool(database.rows(_TAKE, {"id": purse.batch_id, "seen": purse.seen}))


def end(
    database: Statements, purse: Purse, turn_ids: Sequence[UUID], reason: ExitReason, *, message: str
) -> list[UUID]:
    """End items for which nothing is left and of which nothing was written yet; which ones."""
    params = {
        "id": purse.batch_id,
        "ids": list(turn_ids),
        "reason": reason.value,
        "result": dumps({"output_text": "", "message": message}),
    }
    return [r["id"] for r in database.rows(_END, params)]
