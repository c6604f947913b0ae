"""The durable side of an interrupt: the stamp on the turn's row. The Redis key is only its doorbell."""

from __future__ import annotations

from uuid import UUID

from persistence.database import Statements, Transaction
from persistence.errors import NotFound
from persistence.records.status import ExitReason, TurnStatus

# Whose interrupt it is, is said by the first.
_STAMP = """
UPDATE turns SET interrupt_requested_at = coalesce(interrupt_requested_at, now()),
  interrupt_reason = CASE WHEN interrupt_requested_at IS NULL THEN %(reason)s ELSE interrupt_reason END,
  -- A wait is over with it: whoever stamps may be lost before the turn has ended.
  resume_at = CASE WHEN status = 'waiting' THEN now() ELSE resume_at END
WHERE id = %(id)s AND exit_reason IS NULL RETURNING status"""


def stamp(
    database: Statements | Transaction, turn_id: UUID, reason: ExitReason = ExitReason.INTERRUPTED_BY_USER
) -> TurnStatus:
    """Ask a turn to end at its next safe point, durably; its status just now. An ended turn is left as it is.

    Raises NotFound.
    """
    row = database.one_or_none(_STAMP, {"id": turn_id, "reason": reason.value}) or database.one_or_none(
        "SELECT status FROM turns WHERE id = %(id)s", {"id": turn_id}
    )
    if row is None:
        raise NotFound(f"there is no turn {turn_id}; `perdure list` shows those that exist")
    return TurnStatus(row["status"])


def reason_of(database: Statements, turn_id: UUID) -> ExitReason:
    """What an interrupted turn ends as: whose interrupt it was."""
    row = database.one_or_none("SELECT interrupt_reason FROM turns WHERE id = %(id)s", {"id": turn_id})
    return ExitReason((row and row["interrupt_reason"]) or ExitReason.INTERRUPTED_BY_USER)


def live_among(database: Statements, turn_ids: list[UUID]) -> set[UUID]:
    """Those of `turn_ids` that exist and have not ended."""
    rows = database.rows(
        "SELECT id FROM turns WHERE id = ANY (%(ids)s::uuid[]) AND exit_reason IS NULL", {"ids": turn_ids}
    )
    return {r["id"] for r in rows}
