"""Events as they come, read from Postgres after a cursor. Nothing is missed or told twice, also over an outage."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from uuid import UUID

from persistence import events
from persistence.database import Database
from persistence.errors import DatabaseUnavailable
from persistence.events import StoredEvent

PAUSE_S = 0.12
AT_A_TIME = 1000


def follow(database: Database, turn_id: UUID, *, say: Callable[[str], None]) -> Iterator[Sequence[StoredEvent]]:
    """What is new at each look, oldest first, until the turn has ended; empty where nothing is, so that callers can act.

    A Postgres that goes away is waited for, and that is said through `say`: the turn is stored.
    """
    cursor, has_ended, is_away = 0, False, False
    while True:
        try:
            found = events.read(database, turn_id, after=cursor, limit=AT_A_TIME)
        except DatabaseUnavailable as error:
            if not is_away:
                say(f"{error}. The turn is safe; its events go on here when Postgres is back")
            is_away, found = True, ()
        else:
            if is_away:
                say("Postgres is back")
            is_away = False
        for event in found:
            cursor = event.seq
            has_ended = has_ended_after(event, has_ended)
        yield found
        if len(found) == AT_A_TIME:
            continue
        if has_ended and not is_away:
            return
        time.sleep(PAUSE_S)


def has_ended_after(event: StoredEvent, has_ended: bool) -> bool:
    """Whether the turn has ended once `event` has happened. Other events may stand behind the ending's own."""
    return event.type == "turn.ended" or (has_ended and event.type != "turn.resumed")


def stored(database: Database, turn_id: UUID) -> Iterator[Sequence[StoredEvent]]:
    """What has happened so far."""
    cursor = 0
    while found := events.read(database, turn_id, after=cursor, limit=AT_A_TIME):
        yield found
        cursor = found[-1].seq
