"""What is sent to a turn while it lives. The checkpoint takes it (`persistence.checkpoint`)."""

from __future__ import annotations

from uuid import UUID

from persistence.database import Database
from persistence.errors import Refused
from persistence.records.message import dumps
from persistence.records.text import clean

# Locks the turn's row, so that nothing slips between an ending's last look and its commit.
_POST = """
WITH turn AS (
  UPDATE turns SET inbox_n = inbox_n + 1 WHERE id = %(id)s AND exit_reason IS NULL RETURNING id, inbox_n
)
INSERT INTO inbox (turn_id, n, kind, payload) SELECT id, inbox_n, %(kind)s, %(payload)s::json FROM turn RETURNING n"""


def steer(database: Database, turn_id: UUID, text: str) -> int:
    """Add words to a live turn; its number in the inbox. Raises Refused when the turn has ended (or is unknown)."""
    params = {"id": turn_id, "kind": "steer", "payload": dumps({"text": clean(text)})}
    row = database.one_or_none(_POST, params)
    if row is None:
        raise Refused(f"turn {turn_id} has ended or is unknown: send a new turn to its session instead")
    return row["n"]
