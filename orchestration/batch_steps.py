"""Stop the items of a batch, and queue those again that are not completed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from uuid import UUID

from orchestration.endings import interrupted
from orchestration.history import RESUMED_NOTICE
from orchestration.interrupting import interrupt
from persistence import batch_moves, batches, resumption
from persistence.batch_moves import EndedItem, Raise
from persistence.database import Database
from persistence.errors import NotFound, Refused
from persistence.records.batch import BatchStatus
from persistence.records.status import ExitReason, TurnStatus

_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class Stopped:
    """What became of an item that was asked to end: it has ended, or its worker ends it."""

    turn_id: UUID
    status: TurnStatus


@dataclass(frozen=True, slots=True)
class Resumed:
    """The items that are queued again, and those that stay as they are, each with why.

    `has_reopened`: this resume began it, so the caps that all items share are raised; else none is, or another did both.
    """

    turn_ids: tuple[UUID, ...]
    left: tuple[tuple[EndedItem, str], ...]
    has_reopened: bool = True


def _forget_nothing(_turn_ids: Sequence[UUID]) -> None:
    """Nothing is known of the items outside of Postgres."""


def stop_items(database: Database, batch_id: UUID) -> Iterator[Stopped]:
    """Ask every live item of an interrupted batch to end. May be called again, by anybody, until none is live."""
    message = interrupted(ExitReason.BATCH_INTERRUPTED).message or ""
    while ended := batch_moves.end_unstarted(database, batch_id, message=message, limit=_AT_ONCE):
        yield from (Stopped(turn_id, TurnStatus.INTERRUPTED) for turn_id in ended)
    for turn_id in batch_moves.unasked_items(database, batch_id):
        yield Stopped(turn_id, interrupt(database, turn_id, ExitReason.BATCH_INTERRUPTED))


def resume(
    database: Database, batch_id: UUID, raised: Raise, *, forget: Callable[[Sequence[UUID]], None] = _forget_nothing
) -> Resumed:
    """Queue the items again that ended and are not completed, each with its caps raised, and let the batch go on.

    One that a cap ended is left as it is, unless that cap is raised, and so is one whose session has gone on without it.
    A resume that died in the middle is finished by the next one, which raises no shared cap a second time. With nothing to
    queue the batch stays as it is, and so do its caps. `forget` drops what is known elsewhere of how items ended, before
    they are queued: one that had begun may start at once, and end anew.
    Raises NotFound; Refused for a batch that is not stored as a whole, or that somebody interrupts meanwhile.
    """
    if raised.is_negative:
        raise Refused("a cap can only be raised: give numbers above 0")
    batch = batch_moves.find(database, batch_id)
    if batch.status is BatchStatus.FILLING and not batch.resumes:
        raise Refused(f"batch {batch_id} is not stored as a whole yet: submit its file once more")
    if batch.status is BatchStatus.RUNNING and batch.is_interrupted:
        raise Refused(f"batch {batch_id} is still being interrupted: its last items end once a worker is there")
    batch_moves.require_caps(database, batch_id, raised)
    found = batch_moves.ended_items(database, batch_id)
    left = [(item, why) for item in found if (why := _why_not(item, raised))]
    wanted = [item for item in found if not _why_not(item, raised)]
    is_joined = batch.status is BatchStatus.FILLING
    if not is_joined and (not wanted or batch_moves.reopen(database, batch, raised) is None):
        return Resumed((), tuple(left), has_reopened=False)
    queued: list[UUID] = []
    for part in _parts(wanted):
        _forget(database, batch_id, part, forget)
        unstarted = [item.turn_id for item in part if not item.has_started]
        queued += batch_moves.resume_unstarted(database, batch_id, unstarted, raised)
        for item in part:
            if item.has_started:
                try:
                    _queue(database, batch_id, item, raised)
                except (Refused, NotFound) as error:
                    left.append((item, str(error)))
                else:
                    queued.append(item.turn_id)
    batches.seal(database, batch_id, items=len(queued))
    return Resumed(tuple(queued), tuple(left), has_reopened=not is_joined)


def _why_not(item: EndedItem, raised: Raise) -> str | None:
    if item.has_successor:
        return "its session has gone on without it"
    if not raised.lifts(item.exit_reason, has_started=item.has_started):
        return f"it ended as {item.exit_reason}: raise that cap"
    return None


def _forget(
    database: Database, batch_id: UUID, items: Sequence[EndedItem], forget: Callable[[Sequence[UUID]], None]
) -> None:
    with database.transaction() as transaction:
        if still := batch_moves.still_ended(transaction, batch_id, [item.turn_id for item in items]):
            forget(still)


def _queue(database: Database, batch_id: UUID, item: EndedItem, raised: Raise) -> None:
    resumption.resume(
        database,
        item.turn_id,
        notice=RESUMED_NOTICE,
        iterations=raised.iterations,
        tokens=raised.tokens,
        cost=raised.cost,
        batch_id=batch_id,
    )


def _parts(items: Sequence[EndedItem]) -> Iterator[Sequence[EndedItem]]:
    for start in range(0, len(items), _AT_ONCE):
        yield items[start : start + _AT_ONCE]
