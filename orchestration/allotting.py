"""Share out what is left of a batch's caps among its items, in the order of the file."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID

from orchestration.endings import end
from persistence import allotments, checkpoint, turns
from persistence.allotments import Part, Purse, Waiting
from persistence.database import Database, Statements
from persistence.errors import InboxGrew, LeaseLost
from persistence.records.outcome import Ending
from persistence.records.status import ExitReason, TurnStatus

# Of the items that are ended one by one, so many in a round: the reaper waits for its end.
_MOST = 100

# What raises the cap that all share, and, for an item that has begun, its own besides: it is not known which ended it.
_OPTIONS = {
    ExitReason.COST_CAP: ("--max-cost USD", "--cost USD"),
    ExitReason.TOKEN_CAP: ("--max-tokens N", "--tokens N"),
}


def share_out(database: Statements, writes: Database) -> int:
    """Let the items start that there is enough for, and end those that there will never be enough for; how many."""
    moved = 0
    for purse in allotments.open_purses(database):
        waiting = allotments.waiting(database, purse.batch_id)
        fitting = fits(purse.left, waiting)
        if fitting:
            moved += len(allotments.allot(database, purse, fitting))
        elif not purse.has_live and allotments.take(database, purse):
            # Nobody gives anything back any more, so there will never be more than now.
            moved += _end_all(database, writes, purse, waiting)
    return moved


def fits(left: Part, waiting: Sequence[Waiting]) -> list[UUID]:
    """The first of the items that there is enough for, together. None is passed over: a larger one would wait for ever."""
    fitting: list[UUID] = []
    for item in waiting:
        if not left.holds(item.needs):
            break
        left = left.less(item.needs)
        fitting.append(item.turn_id)
    return fitting


def _end_all(database: Statements, writes: Database, purse: Purse, waiting: Sequence[Waiting]) -> int:
    ended = 0
    for reason, (shared, own) in _OPTIONS.items():
        of_reason = [item for item in waiting if purse.left.lacks(item.needs) is reason]
        fresh = [item.turn_id for item in of_reason if not item.has_past]
        begun = [item.turn_id for item in of_reason if item.has_past]
        ended += len(allotments.end(database, purse, fresh, reason, message=_message(purse, shared)))
        for turn_id in begun[:_MOST]:
            ended += _end_one(writes, turn_id, Ending(reason, message=_message(purse, f"{shared} {own}")))
    return ended


def _message(purse: Purse, options: str) -> str:
    return (
        "The cap of the batch has not enough left for this item:"
        f" `perdure batch resume {purse.batch_id} {options}` raises it."
    )


def _end_one(writes: Database, turn_id: UUID, ending: Ending) -> int:
    """End an item that was resumed, or that something was sent to."""
    turn = turns.outline(writes, turn_id)
    if turn.status is not TurnStatus.QUEUED:
        return 0
    try:
        checkpoint.store(writes, turn, end(turn, ending), lease=timedelta(0), foreign=True)
    except (LeaseLost, InboxGrew):
        return 0  # it is looked at again in the next round
    return 1
