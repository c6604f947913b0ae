"""What is sent to a turn while it lives. The checkpoint takes it (`persistence.checkpoint`)."""

from __future__ import annotations

from uuid import UUID

from persistence.database import Statements, Transaction
from persistence.errors import Refused
from persistence.records.message import dumps
from persistence.records.text import clean

# Locks the turn's row, so that nothing slips between an ending's last look and its commit.
_POST = """
WITH turn AS (
  UPDATE turns SET inbox_n = inbox_n + 1 WHERE id = %(id)s AND exit_reason IS NULL RETURNING id, inbox_n
)
INSERT INTO inbox (turn_id, n, kind, payload) SELECT id, inbox_n, %(kind)s, %(payload)s::json FROM turn RETURNING n"""


def steer(
    database: Statements | Transaction,
    turn_id: UUID,
    text: str,
    *,
    idempotency_key: str | None = None,
    request_hash: str | None = None,
) -> int:
    """Add words to a live turn; their number in the inbox. A key and a hash are those of the request that they came as.

    Raises Refused when the turn has ended (or is unknown), or when there are no words.
    """
    if not text.strip():
        raise Refused("the steer is empty: say what the turn should know")
    payload = {"text": clean(text)}
    if idempotency_key is not None and request_hash is not None:
        payload |= {"idempotency_key": idempotency_key, "request_hash": request_hash}
    row = database.one_or_none(_POST, {"id": turn_id, "kind": "steer", "payload": dumps(payload)})
    if row is None:
        raise Refused(f"turn {turn_id} has ended or is unknown: send a new turn to its session instead")
    return row["n"]
