"""The results of a batch as its items end, read from Postgres; and how far it is, for a person."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TypeVar
from uuid import UUID

from persistence import batch_views, views
from persistence.batch_views import BatchView, ItemResult
from persistence.database import Database
from persistence.errors import DatabaseUnavailable
from workers.cli import batch_render
from workers.cli.result_file import ResultFile

T = TypeVar("T")

PAUSE_S = 0.3
# How often it is told how far the batch is, if anything has changed, and how long nothing may end before it is looked
# whether any worker is alive.
_TELL_S, _QUIET_S = 5.0, 5.0


def follow(database: Database, batch_id: UUID, *, say: Callable[[str], None]) -> Iterator[Sequence[ItemResult]]:
    """The results that are new at each look, until the batch has ended; nothing is missed or told twice.

    What is there at the beginning comes in the order of the file, the rest as it ends. A Postgres that goes away is
    waited for, and that is said through `say`.
    """
    seen: set[tuple[int, datetime]] = set()
    newest: datetime | None = None
    has_ended = False
    while not has_ended:
        has_ended = _waiting_out(lambda: batch_views.status(database, batch_id), say).is_ending
        if newest is None or has_ended:
            parts = _all(database, batch_id, say)
        else:
            parts = iter([_waiting_out(partial(batch_views.results_since, database, batch_id, newest), say)])
        for part in parts:
            fresh = [r for r in part if (r.n, r.ended_at) not in seen]
            seen.update((r.n, r.ended_at) for r in fresh)
            endings = [r.ended_at for r in part]
            newest = max(endings if newest is None else [*endings, newest], default=None)
            if fresh:
                yield fresh
        if not has_ended:
            yield ()
            time.sleep(PAUSE_S)


def _all(database: Database, batch_id: UUID, say: Callable[[str], None]) -> Iterator[Sequence[ItemResult]]:
    """All results, a page at a time: they may be more than memory holds."""
    line = 0
    while page := _waiting_out(partial(batch_views.results_after, database, batch_id, line), say):
        yield page
        line = page[-1].n


def into_file(
    database: Database, batch_id: UUID, path: Path, *, say: Callable[[str], None], follows: bool
) -> BatchView:
    """Bring the file at `path` to the results of the batch, and with `follows` add to it until that has ended.

    Where the batch stands after that. Raises BadResultFile, NotFound.
    """
    batch_views.status(database, batch_id)
    with ResultFile(path, batch_views.turn_ids(database, batch_id)) as file:
        file.settle(batch_views.results(database, batch_id))
        if follows:
            progress = Progress(database, batch_id, say)
            for part in follow(database, batch_id, say=say):
                file.add(part)
                progress.look(len(part))
            _waiting_out(lambda: file.settle(batch_views.results(database, batch_id)), say)
    return batch_views.batch(database, batch_id)


def to_the_end(database: Database, batch_id: UUID, path: Path | None, *, say: Callable[[str], None]) -> BatchView:
    """Follow the batch until it has ended, into the file at `path` if one is given; how it ended.

    One that somebody resumes before that is read has not: it is followed on. Raises BadResultFile, NotFound.
    """
    while True:
        if path is not None:
            view = into_file(database, batch_id, path, say=say, follows=True)
        else:
            progress = Progress(database, batch_id, say)
            for part in follow(database, batch_id, say=say):
                progress.look(len(part))
            view = _waiting_out(partial(batch_views.batch, database, batch_id), say)
        if view.status.is_ending:
            return view
        say(f"batch {batch_id} had ended and was resumed: it is followed on")


class Progress:
    """Says now and then how far a batch is, and once that nobody is there to move it."""

    def __init__(self, database: Database, batch_id: UUID, say: Callable[[str], None]) -> None:
        self._database, self._batch_id, self._say = database, batch_id, say
        self._tell_at = time.monotonic() + _TELL_S
        self._quiet_since = time.monotonic()
        self._has_changed = False
        self._is_said = False

    def look(self, ended: int) -> None:
        """`ended` items have ended since the last look."""
        now = time.monotonic()
        if ended:
            self._has_changed, self._quiet_since = True, now
        try:
            if self._has_changed and now >= self._tell_at:
                self._say(batch_render.progress(batch_views.batch(self._database, self._batch_id)))
                self._tell_at, self._has_changed = now + _TELL_S, False
            if not self._is_said and now - self._quiet_since >= _QUIET_S:
                self._quiet_since = now
                self._is_said = self._say_if_nobody_is_there()
        except DatabaseUnavailable:
            return

    def _say_if_nobody_is_there(self) -> bool:
        if any("batch" in worker.queues for worker in views.workers(self._database)):
            return False
        self._say("no worker takes batch turns; the batch is stored and goes on when one does: call `perdure worker`")
        return True


def _waiting_out(look: Callable[[], T], say: Callable[[str], None]) -> T:
    """What `look` finds, once Postgres is there."""
    is_away = False
    while True:
        try:
            found = look()
        except DatabaseUnavailable as error:
            if not is_away:
                say(f"{error}. The batch is safe; its results go on here when Postgres is back")
            is_away = True
            time.sleep(PAUSE_S)
        else:
            if is_away:
                say("Postgres is back")
            return found
