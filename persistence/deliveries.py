"""The outbox: results on their way out, written by the statement that ends a turn, sent as often as it takes."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from persistence.database import Statements


@dataclass(frozen=True, slots=True)
class Delivery:
    """One result for one receiver. Sending it twice does no harm; `attempts` were made before this one."""

    turn_id: UUID
    resumes: int
    kind: str
    target: str
    attempts: int


_TAKE = """
WITH due AS (
  SELECT turn_id, resumes, kind, target FROM deliveries
  WHERE state = 'pending' AND kind = %(kind)s AND next_at <= now()
  ORDER BY next_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED
)
UPDATE deliveries d SET attempts = attempts + 1, next_at = now() + least(interval '5 minutes', %(pause)s * power(2, least(d.attempts, 10)))
FROM due WHERE (d.turn_id, d.resumes, d.kind, d.target) = (due.turn_id, due.resumes, due.kind, due.target)
RETURNING d.turn_id, d.resumes, d.kind, d.target, d.attempts - 1 AS attempts"""

_RECENT = """
SELECT turn_id, resumes, kind, target, attempts FROM deliveries
WHERE state = 'sent' AND kind = %(kind)s AND sent_at > now() - %(age)s ORDER BY sent_at DESC LIMIT %(limit)s"""

_AGAIN = """
UPDATE deliveries SET state = 'pending', attempts = 0, next_at = now()
WHERE state = 'sent' AND kind = %(kind)s AND sent_at > now() - %(age)s"""

# Only what is pending: a sender that read the ending just before a resume does not bring a given up result back.
_SENT = """
UPDATE deliveries SET state = 'sent', sent_at = coalesce(sent_at, now())
WHERE turn_id = %(turn)s AND resumes = %(resumes)s AND kind = %(kind)s AND target = %(target)s AND state = 'pending'"""


def take_due(
    database: Statements, kind: str, *, limit: int = 100, pause: timedelta = timedelta(seconds=1)
) -> list[Delivery]:
    """The deliveries to send now. Each is put off before it is returned, so a sender that dies only delays it."""
    return _deliveries(database, _TAKE, {"kind": kind, "limit": limit, "pause": pause})


def recent(database: Statements, kind: str, *, age: timedelta, limit: int = 1000) -> list[Delivery]:
    """What was sent within `age`, newest first: for a receiver that can forget."""
    return _deliveries(database, _RECENT, {"kind": kind, "age": age, "limit": limit})


def send_all_again(database: Statements, kind: str, *, age: timedelta) -> None:
    """The receiver has forgotten everything: what was sent within `age` is due once more."""
    database.rows(_AGAIN, {"kind": kind, "age": age})


def mark_sent(database: Statements, delivery: Delivery) -> None:
    database.rows(
        _SENT,
        {
            "turn": delivery.turn_id,
            "resumes": delivery.resumes,
            "kind": delivery.kind,
            "target": delivery.target,
        },
    )


def _deliveries(database: Statements, sql: str, params: dict[str, object]) -> list[Delivery]:
    return [
        Delivery(r["turn_id"], r["resumes"], r["kind"], r["target"], r["attempts"]) for r in database.rows(sql, params)
    ]
