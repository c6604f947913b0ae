"""Events, read after a cursor. They are written by the statement that they belong to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from persistence.database import Database


@dataclass(frozen=True, slots=True)
class StoredEvent:
    """`seq` grows by one within a turn, in commit order."""

    seq: int
    at: datetime
    type: str
    payload: dict[str, Any]


def read(database: Database, turn_id: UUID, *, after: int = 0, limit: int = 1000) -> Sequence[StoredEvent]:
    """The turn's events with a seq above `after`, in order."""
    rows = database.rows(
        "SELECT seq, created_at, type, payload FROM events WHERE turn_id = %(id)s AND seq > %(after)s"
        " ORDER BY seq LIMIT %(limit)s",
        {"id": turn_id, "after": after, "limit": limit},
    )
    return [StoredEvent(r["seq"], r["created_at"], r["type"], r["payload"]) for r in rows]
