"""Interrupt a turn, whatever state it is in."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

from orchestration.endings import end, interrupted
from persistence import checkpoint, interrupts, queue, turns
from persistence.database import Database
from persistence.errors import InboxGrew, LeaseLost
from persistence.records.status import ExitReason, TurnStatus


def interrupt(database: Database, turn_id: UUID, reason: ExitReason = ExitReason.INTERRUPTED_BY_USER) -> TurnStatus:
    """Ask for the end of a turn, durably; its status after that. `reason` says whose wish that is; the first one counts.

    A running turn ends at its next safe point, on its worker. A queued or waiting one, which nobody carries, ends here,
    its open calls answered; where an answer is pending, it is queued, for a worker that tells the provider and ends it.
    An ended one stays as it is. Raises NotFound.
    """
    while True:
        status = interrupts.stamp(database, turn_id, reason)
        if status not in (TurnStatus.QUEUED, TurnStatus.WAITING):
            return status
        turn = turns.outline(database, turn_id)
        if turn.status not in (TurnStatus.QUEUED, TurnStatus.WAITING):
            continue
        if turn.counters.pending is not None:
            queue.end_wait(database, turn_id)
            return TurnStatus.QUEUED
        ending = interrupted(interrupts.reason_of(database, turn_id))
        try:
            checkpoint.store(database, turn, end(turn, ending), lease=timedelta(0), foreign=True)
        except (LeaseLost, InboxGrew):
            continue  # it was claimed, queued or written to meanwhile: look again
        return TurnStatus.INTERRUPTED
